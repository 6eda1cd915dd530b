//! Loop devices: finding the one a file is bound to, or binding a new one.
//!
//! Devices are bound with autoclear, so the kernel takes one back with its last user: an unmount
//! detaches it, and so does a crash between binding and mounting.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use crate::error::{Context, PoolError};
use crate::sys::loops;

/// Others on the machine take loop devices too; after losing the race this often, give up.
const MAX_BIND_ATTEMPTS: u32 = 64;
const BIND_PAUSE: Duration = Duration::from_millis(10);

/// A device that is being bound or released cannot be looked at for a moment.
const LOOK_ATTEMPTS: u32 = 100;
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// The sector size of btrfs here, and what direct I/O on the host file wants.
const BLOCK_SIZE: u32 = 4096;

/// A bound loop device, kept bound by the open file until something is mounted from it.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    pub path: PathBuf,
    file: File,
}

impl LoopDevice {
    /// The device `image` is already bound to, after a crash or in another mount namespace. Binding a
    /// second one would give two caches over one file and ruin the filesystem.
    pub fn find(image: &Path) -> Result<Option<LoopDevice>, PoolError> {
        let meta = fs::metadata(image).context("stat", image)?;
        let blocks = match fs::read_dir("/sys/block") {
            Ok(blocks) => blocks,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(PoolError::io("list", "/sys/block", e)),
        };
        for block in blocks.flatten() {
            let path = Path::new("/dev").join(block.file_name());
            for attempt in 1.. {
                let name = match recorded_name(&block.path(), image) {
                    Name::Foreign => break,
                    name => name,
                };
                let source = match open_bound_to(&path, &meta) {
                    Ok(Some(file)) => return Ok(Some(LoopDevice { path, file })),
                    Ok(None) => break,
                    Err(source) => source,
                };
                if attempt < LOOK_ATTEMPTS {
                    thread::sleep(LOOK_PAUSE);
                    continue;
                }
                // Devices of other containers may be out of reach here; one of ours may not.
                if name == Name::Alike && is_out_of_reach(&source) {
                    break;
                }
                return Err(PoolError::io("look at the loop device", path, source));
            }
        }
        Ok(None)
    }

    /// Binds a free device to `image`. Direct I/O is asked for, the kernel leaves it off where the
    /// host filesystem cannot do it: without it every page is cached twice, and writing 1 GiB took
    /// four times as long.
    pub fn bind(image: &Path) -> Result<LoopDevice, PoolError> {
        let unavailable = |source: io::Error| PoolError::NoLoopDevice {
            path: image.to_path_buf(),
            source,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(image)
            .context("open", image)?;
        let control = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/loop-control")
            .map_err(unavailable)?;
        let mut lost = Errno::BUSY.into();
        for _ in 0..MAX_BIND_ATTEMPTS {
            let number = loops::get_free(control.as_fd()).map_err(|e| unavailable(e.into()))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let flags = loops::AUTOCLEAR | loops::DIRECT_IO;
            let bound = open(&path).and_then(|device| {
                loops::configure(device.as_fd(), file.as_fd(), BLOCK_SIZE, flags)?;
                Ok(device)
            });
            match bound {
                Ok(device) => return Ok(LoopDevice { path, file: device }),
                // Taken by another process, or not there yet or any more.
                Err(e) if is_passing(&e) => lost = e,
                Err(e) => return Err(unavailable(e)),
            }
            thread::sleep(BIND_PAUSE);
        }
        Err(unavailable(lost))
    }

    /// Tells the kernel that the file behind the device has grown.
    pub fn take_new_size(&self) -> Result<(), PoolError> {
        loops::set_capacity(self.file.as_fd()).context("grow", &self.path)
    }
}

/// What the kernel recorded as the name of a device's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    /// Exactly the name of the image.
    Ours,
    /// The same base name: it may be the image, seen from another mount namespace.
    Alike,
    /// Another file, or none.
    Foreign,
}

fn recorded_name(block: &Path, image: &Path) -> Name {
    // A device that is not bound has no such file.
    let backing = fs::read_to_string(block.join("loop/backing_file")).unwrap_or_default();
    name_of(backing.trim_end_matches('\n'), image)
}

fn name_of(backing: &str, image: &Path) -> Name {
    let base = image.file_name().and_then(|name| name.to_str());
    if Path::new(backing) == image {
        Name::Ours
    } else if backing.contains(base.unwrap_or_default()) {
        Name::Alike
    } else {
        Name::Foreign
    }
}

/// The device when it is bound to the file of `meta`.
fn open_bound_to(path: &Path, meta: &fs::Metadata) -> io::Result<Option<File>> {
    let file = open(path)?;
    let status = loops::status(file.as_fd())?;
    let same = status.device == meta.dev() && status.inode == meta.ino();
    Ok(same.then_some(file))
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn is_passing(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::BUSY | Errno::NXIO | Errno::NOENT))
}

fn is_out_of_reach(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    let missing = matches!(errno, Some(Errno::NOENT | Errno::NXIO | Errno::NODEV));
    missing || matches!(errno, Some(Errno::PERM | Errno::ACCESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_name_decides_which_devices_are_looked_at() {
        let image = Path::new("/data/pool.img");
        assert_eq!(name_of("/data/pool.img", image), Name::Ours);
        assert_eq!(name_of("/other/pool.img", image), Name::Alike);
        assert_eq!(name_of("/data/pool.img (deleted)", image), Name::Alike);
        for foreign in ["", "/data/other.img"] {
            assert_eq!(name_of(foreign, image), Name::Foreign, "{foreign}");
        }
    }
}
