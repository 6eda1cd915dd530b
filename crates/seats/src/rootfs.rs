//! A sandbox's root: an overlay of its own volume over the image, both idmapped.
//!
//! On disk ids stay 0..65535, whatever range the sandbox has, so any range can mount any volume.
//! Above the image lies one more read-only layer, the *base*, made once per host: device nodes, the
//! places our mounts go to. It spares every sandbox a filesystem for /dev, and an image cannot leave
//! those places out or make them links.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use cove_isolation::{IsolationError, MountedVolume, Root};
use cove_model::identity::{METADATA_ADDRESS, METADATA_NAME};
use cove_pool::Disk;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::overlay::{Layers, Overlays};

/// Character devices every program expects; all harmless.
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
const PLACES: [&str; 6] = ["proc", "sys", "dev", "dev/pts", "dev/shm", ".cove"];

/// Makes the base layer if it is not there; a half-made one never gets its name.
pub fn make_base(dir: &Path) -> io::Result<()> {
    if dir.exists() {
        return Ok(());
    }
    let draft = dir.with_extension("draft");
    if draft.exists() {
        fs::remove_dir_all(&draft)?;
    }
    fs::create_dir_all(&draft)?;
    for place in PLACES {
        fs::create_dir(draft.join(place))?;
        fs::set_permissions(draft.join(place), fs::Permissions::from_mode(0o755))?;
    }
    for (name, major, minor) in DEVICES {
        let path = draft.join("dev").join(name);
        mknodat(
            CWD,
            &path,
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            makedev(major, minor),
        )?;
        // The umask may have taken bits away.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    }
    for (name, target) in LINKS {
        symlink(target, draft.join("dev").join(name))?;
    }
    fs::rename(&draft, dir)
}

/// Where on a disk the sandbox's changes are, and where the overlay works.
const UPPER: &str = "upper";
const WORK: &str = "work";

/// The trees of which the file system of a disk over its image is made, the upper one first.
pub fn trees(root: &Root) -> io::Result<Vec<PathBuf>> {
    let upper = root.disk.dir().join(UPPER);
    match upper.symlink_metadata() {
        Ok(_) => Ok(vec![upper, root.image.clone()]),
        // Nothing was ever changed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![root.image.clone()]),
        Err(error) => Err(error),
    }
}

/// What a disk is that a virtual machine has.
pub const BLOCK: &str = "disk.img";

/// Whether a disk is a block image, and no tree.
pub fn is_block(disk: &Disk) -> bool {
    disk.dir().join(BLOCK).symlink_metadata().is_ok()
}

/// Whether a disk has changes over its image as a tree.
pub fn is_tree(disk: &Disk) -> bool {
    disk.dir().join(UPPER).symlink_metadata().is_ok()
}

/// Leaves nothing of a tree on a disk. Only where something else has taken its place.
pub fn remove_tree(disk: &Disk) -> io::Result<()> {
    for name in [UPPER, WORK] {
        match fs::remove_dir_all(disk.dir().join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// A directory of programs, to be shown where it can only be read.
pub fn programs(dir: &Path) -> io::Result<OwnedFd> {
    const RDONLY: u64 = 0x1;
    const NOSUID: u64 = 0x2;
    const NODEV: u64 = 0x4;
    detached(dir, RDONLY | NOSUID | NODEV, 0)
}

/// A device file of the pool, to be shown elsewhere. It opens there alone: the pool itself opens no devices.
pub fn device(path: &Path) -> io::Result<OwnedFd> {
    const NOSUID: u64 = 0x2;
    const NODEV: u64 = 0x4;
    const NOEXEC: u64 = 0x8;
    detached_without(path, NOSUID | NOEXEC, NODEV, 0)
}

/// Gives a disk that came from another the empty directory an overlay works in: what the kernel keeps
/// there names the files of the volume it was copied from, and is refused in a copy.
fn renew_work(disk: &Disk) -> io::Result<()> {
    let work = disk.dir().join(WORK);
    match fs::remove_dir_all(&work) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::create_dir(work)
}

/// Makes the directory of changes; `false` when it is there already.
fn make_upper(disk: &Disk) -> io::Result<bool> {
    let upper = disk.dir().join(UPPER);
    match fs::create_dir(&upper) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        Err(error) => return Err(error),
    }
    fs::set_permissions(&upper, fs::Permissions::from_mode(0o755))?;
    Ok(true)
}

/// Makes a disk one that processes can be restored on. One that only holds their memory shows the image as
/// it is, because nothing had been changed when they were captured.
pub fn prepare_restore(disk: &Disk) -> io::Result<()> {
    make_upper(disk)?;
    renew_work(disk)
}

/// Gives a new disk its directories and the few files that carry the sandbox's own name, and that of
/// the resolver when the host has one.
pub fn prepare(
    disk: &Disk,
    hostname: &str,
    resolver: Option<std::net::Ipv4Addr>,
) -> io::Result<()> {
    if !make_upper(disk)? {
        return renew_work(disk);
    }
    fs::create_dir(disk.dir().join(WORK))?;
    let etc = disk.dir().join(UPPER).join("etc");
    fs::create_dir(&etc)?;
    fs::set_permissions(&etc, fs::Permissions::from_mode(0o755))?;
    let resolver = resolver.map(|address| {
        let text = format!("nameserver {address}\noptions timeout:3 attempts:2\n");
        ("resolv.conf", text)
    });
    let files = [
        ("hostname", format!("{hostname}\n")),
        (
            "hosts",
            format!(
                "127.0.0.1 localhost {hostname}\n::1 localhost ip6-localhost ip6-loopback\n{METADATA_ADDRESS} {METADATA_NAME}\n"
            ),
        ),
    ];
    for (name, text) in files.into_iter().chain(resolver) {
        let path = etc.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}

/// The mounted root, attached nowhere yet.
pub fn mount(
    root: &Root,
    base: &Path,
    user_ns: BorrowedFd<'_>,
    uid_base: u32,
    overlays: &Overlays,
) -> Result<OwnedFd, IsolationError> {
    let layer = |path: &Path| {
        idmapped(path, user_ns).map_err(|source| IsolationError::Failed {
            step: format!("map ids of {}", path.display()),
            source,
        })
    };
    let mounted = || -> Result<io::Result<OwnedFd>, IsolationError> {
        let layers = Layers {
            base: layer(base)?,
            image: layer(&root.image)?,
            volume: layer(root.disk.dir())?,
        };
        Ok(overlays.mount(layers, uid_base))
    };
    match mounted()? {
        // The volume is a copy of another, and the kernel notices.
        Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {
            renew_work(&root.disk).map_err(IsolationError::failed("prepare the disk"))?;
            mounted()?
        }
        other => other,
    }
    .map_err(IsolationError::failed("mount the overlay"))
}

const RDONLY: u64 = 0x1;
const NOSUID: u64 = 0x2;
const NODEV: u64 = 0x4;
const NOEXEC: u64 = 0x8;
const IDMAP: u64 = 0x0010_0000;

/// A detached copy of the tree at `path` whose ids are shifted into the namespace's range.
fn idmapped(path: &Path, user_ns: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    detached(path, IDMAP, user_ns.as_raw_fd() as u64)
}

/// A detached copy of the tree at `path` that nobody can change, and whose files, root's on the
/// disk, are those of the namespace's root.
pub fn read_only_copy(path: &Path, user_ns: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    detached(
        path,
        IDMAP | RDONLY | NOSUID | NODEV | NOEXEC,
        user_ns.as_raw_fd() as u64,
    )
}

/// A volume as its machine shows it: with the namespace's ids, programs that gain nothing by whose they are, and no
/// devices. The pool forbids running programs; a volume allows it again.
pub fn volume(volume: &MountedVolume, user_ns: BorrowedFd<'_>) -> Result<OwnedFd, IsolationError> {
    let mut attributes = IDMAP | NOSUID | NODEV;
    if volume.read_only {
        attributes |= RDONLY;
    }
    let mounted = detached_without(&volume.dir, attributes, NOEXEC, user_ns.as_raw_fd() as u64);
    mounted.map_err(|source| IsolationError::Failed {
        step: format!("map ids of the volume for {}", volume.path),
        source,
    })
}

fn detached(path: &Path, attr_set: u64, userns_fd: u64) -> io::Result<OwnedFd> {
    detached_without(path, attr_set, 0, userns_fd)
}

fn detached_without(
    path: &Path,
    attr_set: u64,
    attr_clr: u64,
    userns_fd: u64,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct MountAttr {
        attr_set: u64,
        attr_clr: u64,
        propagation: u64,
        userns_fd: u64,
    }
    const PRIVATE: u64 = 1 << 18;
    let tree = open_tree(
        CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )?;
    let attributes = MountAttr {
        attr_set,
        attr_clr,
        propagation: PRIVATE,
        userns_fd,
    };
    // SAFETY: the path is an empty C string, and the struct and its size match the kernel's.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 {
        Ok(tree)
    } else {
        Err(io::Error::last_os_error())
    }
}
