//! Bringing a loop-backed btrfs from a file to a mount, and back.
//!
//! Starts from the data directory's `pool.img`, which it makes when there is none, and ends with the
//! filesystem mounted on `pool/`. Every step finds what an earlier, interrupted run left and goes on
//! from there.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::config::{IMAGE_IN_PROGRESS, Layout, MIN_LOOP_BYTES};
use crate::error::{Context, PoolError};
use crate::loopdev::LoopDevice;
use crate::pool::is_read_only;
use crate::sys;

/// Sizes are rounded down to this, so that the file is a whole number of sectors and then some.
const SIZE_GRAIN: u64 = 1 << 20;

/// A default size is never larger than this; ext4 ends files at 16 TiB.
const MAX_DEFAULT_LOOP_BYTES: u64 = 8 << 40;

const UNMOUNT_ATTEMPTS: u32 = 20;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(10);
/// How long an unmount waits for children that are being started.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// mkfs looks at every mounted loop device of the host first, and fails when another process releases one meanwhile.
const MKFS_DISTURBED: &str = "cannot check mount status";
const MKFS_ATTEMPTS: u32 = 50;
const MKFS_PAUSE: Duration = Duration::from_millis(20);

/// How much of mkfs's complaints goes into the error.
const MAX_MKFS_OUTPUT: usize = 2000;

/// The kernel's own discards would also punch holes into the chunks that hold metadata. On a host disk that
/// someone else filled meanwhile, the next write into such a hole fails and the filesystem turns read-only. So
/// only [`crate::Pool::give_back`] returns deleted data to the host, and it leaves those chunks out.
const MOUNT_OPTIONS: &std::ffi::CStr = c"nodiscard";

/// Looked at in this order; the environment is not consulted.
const MKFS_PLACES: [&str; 4] = [
    "/usr/sbin/mkfs.btrfs",
    "/sbin/mkfs.btrfs",
    "/usr/bin/mkfs.btrfs",
    "/usr/local/sbin/mkfs.btrfs",
];

const BTRFS_MAGIC: u64 = 0x9123_683e;

pub(crate) fn find_mkfs() -> Option<PathBuf> {
    MKFS_PLACES.iter().map(PathBuf::from).find(|p| p.is_file())
}

pub(crate) fn is_on_btrfs(path: &Path) -> Result<bool, PoolError> {
    let stat = rustix::fs::statfs(path).context("statfs", path)?;
    Ok(stat.f_type as u64 == BTRFS_MAGIC)
}

/// Whether `pool/` is a mount point of its own.
pub(crate) fn is_mounted(layout: &Layout) -> Result<bool, PoolError> {
    let root = layout.root();
    let inner = match fs::symlink_metadata(&root) {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(PoolError::io("stat", root, e)),
    };
    let outer = fs::symlink_metadata(&layout.dir).context("stat", &layout.dir)?;
    // A subvolume of the surrounding btrfs has a device number of its own without being a mount.
    Ok(inner.dev() != outer.dev() && !(inner.ino() == 256 && is_same_btrfs(layout)?))
}

fn is_same_btrfs(layout: &Layout) -> Result<bool, PoolError> {
    if !is_on_btrfs(&layout.dir)? || !is_on_btrfs(&layout.root())? {
        return Ok(false);
    }
    Ok(fs_id(&layout.dir)? == fs_id(&layout.root())?)
}

pub(crate) fn fs_id(path: &Path) -> Result<[u8; 16], PoolError> {
    let file = File::open(path).context("open", path)?;
    sys::fs_id(file.as_fd()).context("identify the filesystem of", path)
}

/// Mounts the loop file on `pool/`, making both on first use.
pub(crate) fn attach_loop(layout: &Layout, size: Option<u64>) -> Result<(), PoolError> {
    if !rustix::process::geteuid().is_root() {
        return Err(PoolError::NotRoot {
            operation: "mounting a btrfs pool",
        });
    }
    prepare_image(layout, size)?;
    let image = layout.image();
    let root = layout.root();
    check_image(&image)?;
    let bound = LoopDevice::find(&image)?;
    if is_mounted(layout)? {
        // The file decides, not the filesystem's id: a copy of a pool has the same id.
        let ours = bound.map(|device| device.path);
        if ours.is_none() || mounted_device(&root)? != ours {
            return Err(PoolError::ForeignMount { path: root });
        }
    } else {
        let device = match bound {
            Some(device) => device,
            None => LoopDevice::bind(&image)?,
        };
        mount_device(&device, &root, MountFlags::empty())?;
    }
    if is_read_only(&root)? && !mount_again(layout)? {
        return Ok(());
    }
    let stat = rustix::fs::statvfs(&root).context("statvfs", &root)?;
    grow_to_image(&image, &root, stat.f_blocks * stat.f_frsize)
}

/// A filesystem that turned read-only stays so until nobody uses it any more. Mounts it anew when nobody does;
/// otherwise it stays as it is, readable. Tells whether it can be written to now.
fn mount_again(layout: &Layout) -> Result<bool, PoolError> {
    let (image, root) = (layout.image(), layout.root());
    match detach_loop(layout) {
        Ok(()) => {}
        Err(PoolError::Busy { .. }) => return Ok(false),
        Err(e) => return Err(e),
    }
    let mut held = LoopDevice::find(&image)?;
    for _ in 0..UNMOUNT_ATTEMPTS {
        if held.take().is_none() {
            break;
        }
        thread::sleep(UNMOUNT_PAUSE);
        held = LoopDevice::find(&image)?;
    }
    match held {
        // Sandboxes that run have mounts of their own of it.
        Some(device) => mount_device(&device, &root, MountFlags::RDONLY)?,
        None => mount_device(&LoopDevice::bind(&image)?, &root, MountFlags::empty())?,
    }
    Ok(!is_read_only(&root)?)
}

/// Nothing in a pool needs access times, and nothing in it is to be run, opened as a device or trusted with
/// set-id bits from the host side.
fn mount_device(device: &LoopDevice, root: &Path, more: MountFlags) -> Result<(), PoolError> {
    let flags =
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME | more;
    match mount(&device.path, root, "btrfs", flags, MOUNT_OPTIONS) {
        Ok(()) => Ok(()),
        Err(Errno::NODEV) => Err(PoolError::NoBtrfs),
        Err(Errno::PERM) => Err(PoolError::NotRoot {
            operation: "mounting a btrfs pool",
        }),
        Err(e) => Err(PoolError::io("mount the pool on", root, e)),
    }
}

/// Unmounts `pool/`; the loop device goes with its last mount.
pub(crate) fn detach_loop(layout: &Layout) -> Result<(), PoolError> {
    let root = layout.root();
    let deadline = Instant::now() + START_PATIENCE;
    let mut attempts = 0;
    loop {
        match unmount(&root, UnmountFlags::NOFOLLOW) {
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) => {}
            Err(e) => return Err(PoolError::io("unmount", root, e)),
        }
        // A child that another thread is just starting holds copies of our descriptors until it becomes another
        // program, so "busy" is believed only when it lasts without one. On a loaded machine a start takes long.
        if !is_starting_a_child() || Instant::now() > deadline {
            attempts += 1;
        }
        if attempts >= UNMOUNT_ATTEMPTS {
            return Err(PoolError::Busy {
                path: root,
                reason: "files in it are open or mounts in it remain",
            });
        }
        thread::sleep(UNMOUNT_PAUSE);
    }
}

/// Whether a child of this process is still this program.
fn is_starting_a_child() -> bool {
    let Ok(ours) = fs::read_link("/proc/self/exe") else {
        return false;
    };
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    tasks.flatten().any(|task| {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.split_whitespace().any(|pid| {
            fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program == ours)
        })
    })
}

fn prepare_image(layout: &Layout, size: Option<u64>) -> Result<(), PoolError> {
    remove_unfinished(layout)?;
    let image = layout.image();
    let size = size.map(round_size).transpose()?;
    match fs::metadata(&image) {
        Ok(meta) => match size {
            Some(size) if size < meta.len() => Err(PoolError::LoopSize {
                bytes: size,
                reason: "the existing one is larger, and shrinking it is not supported",
            }),
            Some(size) if size > meta.len() => {
                let file = OpenOptions::new()
                    .write(true)
                    .open(&image)
                    .context("open", &image)?;
                file.set_len(size).context("grow", &image)
            }
            _ => Ok(()),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => make_image(layout, size),
        Err(e) => Err(PoolError::io("stat", image, e)),
    }
}

/// Removes what a server killed in the middle of making its loop file left behind.
fn remove_unfinished(layout: &Layout) -> Result<(), PoolError> {
    for entry in fs::read_dir(&layout.dir).context("list", &layout.dir)? {
        let entry = entry.context("list", &layout.dir)?;
        let name = entry.file_name();
        if name
            .as_encoded_bytes()
            .starts_with(IMAGE_IN_PROGRESS.as_bytes())
        {
            fs::remove_file(entry.path()).context("remove", entry.path())?;
        }
    }
    Ok(())
}

fn round_size(bytes: u64) -> Result<u64, PoolError> {
    if bytes < MIN_LOOP_BYTES {
        return Err(PoolError::LoopSize {
            bytes,
            reason: "it must be at least 256 MiB",
        });
    }
    Ok(bytes / SIZE_GRAIN * SIZE_GRAIN)
}

/// Makes the filesystem under another name and renames it when it is whole and on disk.
fn make_image(layout: &Layout, size: Option<u64>) -> Result<(), PoolError> {
    let mkfs = find_mkfs().ok_or(PoolError::NoMkfs)?;
    let size = match size {
        Some(size) => size,
        None => {
            let host = rustix::fs::statvfs(&layout.dir).context("statvfs", &layout.dir)?;
            let whole = host.f_blocks.saturating_mul(host.f_frsize);
            round_size(whole.clamp(MIN_LOOP_BYTES, MAX_DEFAULT_LOOP_BYTES))?
        }
    };
    let unfinished = layout.image_in_progress();
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)
        .context("make", &unfinished)?;
    file.set_len(size).context("size", &unfinished)?;
    let mut attempt = 0;
    while let Err(complaint) = run_mkfs(&mkfs, &unfinished)? {
        attempt += 1;
        if !complaint.contains(MKFS_DISTURBED) || attempt >= MKFS_ATTEMPTS {
            let output = complaint.chars().take(MAX_MKFS_OUTPUT).collect();
            return Err(PoolError::Mkfs { output });
        }
        thread::sleep(MKFS_PAUSE);
    }
    file.sync_all().context("sync", &unfinished)?;
    let image = layout.image();
    fs::rename(&unfinished, &image).context("rename to", &image)?;
    let dir = File::open(&layout.dir).context("open", &layout.dir)?;
    dir.sync_all().context("sync", &layout.dir)
}

/// What it complains about when it fails.
fn run_mkfs(mkfs: &Path, file: &Path) -> Result<Result<(), String>, PoolError> {
    // The host file keeps metadata as safe as the host's disk does, so one copy of it is enough.
    let made = Command::new(mkfs)
        .args(["-q", "-K", "-m", "single", "-d", "single", "-L", "cove"])
        .arg(file)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .context("run mkfs.btrfs on", file)?;
    let complaint = || String::from_utf8_lossy(&made.stderr).trim().to_owned();
    Ok(made.status.success().then_some(()).ok_or_else(complaint))
}

/// Looks for the mark of a first superblock, so that a file of something else is distinguished from a failed mount.
fn check_image(image: &Path) -> Result<(), PoolError> {
    const MAGIC_AT: u64 = 0x1_0040;
    let file = File::open(image).context("open", image)?;
    let mut magic = [0u8; 8];
    if file.read_exact_at(&mut magic, MAGIC_AT).is_err() || &magic != b"_BHRfS_M" {
        return Err(PoolError::NotBtrfsImage {
            path: image.to_path_buf(),
        });
    }
    Ok(())
}

/// The device behind the mount on `root`, `None` when that is no btrfs.
fn mounted_device(root: &Path) -> Result<Option<PathBuf>, PoolError> {
    if !is_on_btrfs(root)? {
        return Ok(None);
    }
    let file = File::open(root).context("open", root)?;
    let device = sys::only_device(file.as_fd()).context("find the device of", root)?;
    Ok(Some(device))
}

/// Extends the filesystem over a file that has become larger, now or in a run that was interrupted.
fn grow_to_image(image: &Path, root: &Path, filesystem_bytes: u64) -> Result<(), PoolError> {
    let length = fs::metadata(image).context("stat", image)?.len();
    if length < filesystem_bytes + SIZE_GRAIN {
        return Ok(());
    }
    if let Some(device) = LoopDevice::find(image)? {
        device.take_new_size()?;
    }
    let file = File::open(root).context("open", root)?;
    sys::resize_to_device(file.as_fd()).context("grow the filesystem on", root)
}
