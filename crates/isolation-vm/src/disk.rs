//! The disk of a machine: a block image with an ext4 file system.
//!
//! An image's tree is made a block image once for each size, in a seat of its own that has no rights, and kept; each
//! disk begins as a copy of it that shares its bytes where the pool's file system can.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cove_isolation::{IsolationError, MachineSpec, Root};
use cove_model::{NetworkPolicy, Resources, SandboxId};
use cove_pool::Disk;
use cove_seats::{Seats, Work, rootfs};
use parking_lot::Mutex;
use rustix::fs::{SeekFrom, fchown, seek};

/// Where block images of images are kept, in the pool.
const KEPT: &str = "vm-images";
/// How many sizes of one image are kept.
const SIZES_MAX: usize = 4;
/// How long making one may take.
const MAKE_LIMIT: Duration = Duration::from_secs(300);
const MAKE_MEMORY_MB: u64 = 256;
/// Of the disk's limit, this part is left to what the pool writes about the block image itself.
const SLACK_PART: u64 = 64;
const MODE: u32 = 0o600;

pub struct Disks {
    dir: PathBuf,
    /// One image is made at a time.
    making: Mutex<()>,
}

/// A machine's disk, opened.
pub struct Opened {
    pub file: OwnedFd,
    /// It was made just now.
    pub fresh: bool,
}

impl Disks {
    /// May wait. A pool that is full or read-only keeps no server from starting.
    pub fn open(pool_dir: &Path) -> Self {
        let disks = Self {
            dir: pool_dir.join(KEPT),
            making: Mutex::default(),
        };
        if let Err(error) = disks.tidy() {
            tracing::warn!(%error, "cannot look at block images; trying again when the next one is made");
        }
        disks
    }

    fn pool(&self) -> &Path {
        self.dir.parent().unwrap_or(&self.dir)
    }

    /// Names have the path below the pool, so that the length of the pool's own does not matter.
    fn image_of(&self, path: &Path) -> Option<PathBuf> {
        image_of(path).map(|image| self.pool().join(image))
    }

    /// Drops what was half made, and block images of images that are gone.
    fn tidy(&self) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&self.dir, mode)?;
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if self.image_of(&path).is_none_or(|image| !image.exists()) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// The block image of a machine's disk, made if there is none, and as large as its limit says. May wait.
    pub fn of(
        &self,
        seats: &Seats,
        programs: &Path,
        (root, limits): (&Root, &Resources),
    ) -> Result<Opened, IsolationError> {
        let path = root.disk.dir().join(rootfs::BLOCK);
        let bytes = size_of(limits);
        let fresh = !rootfs::is_block(&root.disk);
        if fresh {
            let draft = path.with_extension("draft");
            remove(&draft).map_err(IsolationError::failed("remove half a disk"))?;
            match rootfs::is_tree(&root.disk) {
                // What another tier left: the tree as its sandbox saw it.
                true => self.make(seats, programs, (root, &draft, bytes))?,
                false => {
                    let kept = self.kept(seats, programs, (&root.image, bytes))?;
                    copy(&kept, &draft).map_err(IsolationError::failed("copy the disk"))?;
                }
            }
            let done = || {
                fs::File::open(&draft)?.sync_all()?;
                fs::rename(&draft, &path)
            };
            done().map_err(IsolationError::failed("keep the disk"))?;
        }
        // Also what an engine left that was killed between the two.
        rootfs::remove_tree(&root.disk).map_err(IsolationError::failed("remove the tree"))?;
        let opened = || -> io::Result<(fs::File, u64)> {
            let file = fs::File::options().read(true).write(true).open(&path)?;
            let found = file.metadata()?.len();
            if found < bytes {
                // The guest makes its file system as large when it boots.
                file.set_len(bytes)?;
            }
            Ok((file, found))
        };
        let (file, found) = opened().map_err(IsolationError::failed("open the disk"))?;
        if found > bytes {
            return Err(IsolationError::Unsupported(format!(
                "disk_mb is {}, and the disk has {} MB already; the tier 'vm' cannot make a disk smaller",
                limits.disk_mb,
                found >> 20
            )));
        }
        Ok(Opened {
            file: file.into(),
            fresh,
        })
    }

    fn kept(
        &self,
        seats: &Seats,
        programs: &Path,
        (image, bytes): (&Path, u64),
    ) -> Result<PathBuf, IsolationError> {
        let below = image.strip_prefix(self.pool()).unwrap_or(image);
        let name = name_of(below, bytes)?;
        let path = self.dir.join(&name);
        let _making = self.making.lock();
        if path.exists() {
            return Ok(path);
        }
        let failed = |step: &'static str| IsolationError::failed(step);
        self.tidy().map_err(failed("look at block images"))?;
        self.make_room(image)
            .map_err(failed("look at block images"))?;
        let scratch = self.dir.join(format!("{name}.scratch"));
        let draft = self.dir.join(format!("{name}.draft"));
        remove(&scratch).map_err(failed("remove a scratch directory"))?;
        fs::create_dir(&scratch).map_err(failed("make a scratch directory"))?;
        let root = Root {
            image: image.to_owned(),
            disk: Disk::at(scratch.clone()),
        };
        let made = self.make(seats, programs, (&root, &draft, bytes));
        let removed = remove(&scratch);
        if made.is_err() {
            let _ = remove(&draft);
        }
        made?;
        removed.map_err(failed("remove a scratch directory"))?;
        let done = || {
            fs::File::open(&draft)?.sync_all()?;
            fs::rename(&draft, &path)
        };
        done().map_err(failed("keep the block image"))?;
        Ok(path)
    }

    /// Removes the oldest sizes of an image when there are as many as are kept.
    fn make_room(&self, image: &Path) -> io::Result<()> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if self.image_of(&entry.path()).as_deref() == Some(image) {
                found.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        found.sort();
        let surplus = (found.len() + 1).saturating_sub(SIZES_MAX);
        for (_, path) in found.into_iter().take(surplus) {
            remove(&path)?;
        }
        Ok(())
    }

    /// Makes a block image of a tree, in a seat of its own.
    fn make(
        &self,
        seats: &Seats,
        programs: &Path,
        (root, to, bytes): (&Root, &Path, u64),
    ) -> Result<(), IsolationError> {
        let made = || -> io::Result<fs::File> {
            use std::os::unix::fs::OpenOptionsExt;
            let file = fs::File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(MODE)
                .open(to)?;
            file.set_len(bytes)?;
            Ok(file)
        };
        let file = made().map_err(IsolationError::failed("make the disk"))?;
        let spec = MachineSpec {
            id: SandboxId::random(),
            owner: None,
            hostname: "disk".into(),
            limits: Resources {
                memory_mb: MAKE_MEMORY_MB,
                ..Resources::default()
            },
            no_new_privs: false,
            accel: None,
            network: NetworkPolicy::default(),
            volumes: Vec::new(),
        };
        let given = file.try_clone();
        let given = given.map_err(IsolationError::failed("pass the disk on"))?;
        let work = |uid: u32| {
            let (user, group) = (
                rustix::fs::Uid::from_raw(uid),
                rustix::fs::Gid::from_raw(uid),
            );
            // The program opens it by its name among the descriptors, for which it must be its own.
            fchown(&given, Some(user), Some(group))
                .map_err(|errno| IsolationError::failed("pass the disk on")(errno.into()))?;
            Ok(Work {
                arguments: ARGUMENTS.map(str::to_owned).to_vec(),
                descriptors: vec![given.into()],
                saved: Vec::new(),
            })
        };
        let done = seats.do_once(&spec, root, (programs, MAKE_LIMIT), work);
        let root_user = (rustix::fs::Uid::ROOT, rustix::fs::Gid::ROOT);
        let taken_back = fchown(&file, Some(root_user.0), Some(root_user.1));
        match done {
            Err(IsolationError::Failed { source, .. })
                if source.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error()) =>
            {
                Err(IsolationError::Unsupported(format!(
                    "the image does not fit on a disk of {} MB; in the tier 'vm' the image is part of disk_mb, ask for more",
                    bytes >> 20
                )))
            }
            Err(error) => Err(error),
            Ok(()) => taken_back
                .map_err(|errno| IsolationError::failed("take the disk back")(errno.into())),
        }
    }
}

/// Of mke2fs. The image is descriptor 5, the tree is in `/root`.
const ARGUMENTS: [&str; 14] = [
    "disk",
    "-q",
    "-F",
    "-t",
    "ext4",
    "-m",
    "0",
    "-b",
    "4096",
    "-E",
    "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0",
    "-d",
    "/root",
    "/proc/self/fd/5",
];

/// Bytes of the block image of a machine with these limits.
pub fn size_of(limits: &Resources) -> u64 {
    let bytes = limits.disk_mb << 20;
    let whole = bytes - bytes / SLACK_PART;
    whole & !0xf_ffff
}

/// Which image a kept block image is of; `None` for what is none.
fn image_of(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?.strip_suffix(".ext4")?;
    let (image, _) = name.rsplit_once('-')?;
    let bytes = hex::decode(image).ok()?;
    Some(PathBuf::from(String::from_utf8(bytes).ok()?))
}

/// Names have a limit of 255 bytes, of which an image's path may take half.
fn name_of(image: &Path, bytes: u64) -> Result<String, IsolationError> {
    let text = image.to_string_lossy();
    let name = format!("{}-{}.ext4", hex::encode(text.as_bytes()), bytes >> 20);
    match name.len() > 240 {
        true => Err(IsolationError::Unsupported(format!(
            "the path {text} is too long for the tier 'vm'; use a shorter data directory"
        ))),
        false => Ok(name),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Shares the bytes where the file system can; else only what is no hole is written.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let source = fs::File::open(from)?;
    let target = fs::File::options()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(to)?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return Ok(());
    }
    let length = source.metadata()?.len();
    target.set_len(length)?;
    let mut at = 0;
    while at < length {
        let begins = match seek(&source, SeekFrom::Data(at)) {
            Ok(begins) => begins,
            // Nothing but a hole is left.
            Err(rustix::io::Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let ends = seek(&source, SeekFrom::Hole(begins))?;
        seek(&source, SeekFrom::Start(begins))?;
        seek(&target, SeekFrom::Start(begins))?;
        let mut part = io::Read::take(&source, ends - begins);
        io::copy(&mut part, &mut &target)?;
        at = ends;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_block_image_tells_its_image() {
        let image = Path::new("/var/lib/cove/pool/images/img_1-2");
        let name = name_of(image, 10 << 30).expect("short enough");
        assert_eq!(
            image_of(&Path::new("/x").join(name)).as_deref(),
            Some(image)
        );
        for other in ["x.draft", "zz-1.ext4", "lost+found", "6162.ext4"] {
            assert_eq!(image_of(Path::new(other)), None, "{other}");
        }
        name_of(Path::new(&"/long".repeat(60)), 1).expect_err("too long");
    }

    #[test]
    fn copies_have_the_same_bytes_and_holes() {
        use std::os::unix::fs::{FileExt, MetadataExt};
        let dir = tempfile::tempdir().expect("a directory");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let file = fs::File::create(&from).expect("a file");
        file.set_len(64 << 20).expect("a length");
        file.write_all_at(b"hello", 33 << 20).expect("written");
        copy(&from, &to).expect("copied");
        let found = fs::metadata(&to).expect("there");
        assert_eq!(found.len(), 64 << 20);
        assert!(found.blocks() < 1024, "{} blocks", found.blocks());
        assert!(fs::read(&to).expect("read") == fs::read(&from).expect("read"));
    }
}
