//! Loop devices: finding the one a file is bound to, or binding a new one.
//!
//! Devices are bound with autoclear, so the kernel takes one back with its last user: an unmount
//! detaches it, and so does a crash between binding and mounting.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::error::{Context, PoolError};
use crate::sys::loops;

/// Others on the machine take loop devices too; after losing the race this often, give up.
const MAX_BIND_ATTEMPTS: u32 = 64;

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
            let bound = block.path().join("loop/backing_file");
            let Ok(backing) = fs::read_to_string(&bound) else {
                continue;
            };
            // The recorded name may be from another mount namespace; the base name is enough to
            // leave the devices of others alone, identity is checked below.
            let base = image
                .file_name()
                .and_then(|n| n.to_str())
                .unwrap_or_default();
            if !backing.contains(base) {
                continue;
            }
            let path = Path::new("/dev").join(block.file_name());
            let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else {
                continue;
            };
            match loops::status(file.as_fd()) {
                Ok(status) if status.device == meta.dev() && status.inode == meta.ino() => {
                    return Ok(Some(LoopDevice { path, file }));
                }
                _ => continue,
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
        for _ in 0..MAX_BIND_ATTEMPTS {
            let number = loops::get_free(control.as_fd()).map_err(|e| unavailable(e.into()))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(unavailable)?;
            let flags = loops::AUTOCLEAR | loops::DIRECT_IO;
            match loops::configure(device.as_fd(), file.as_fd(), BLOCK_SIZE, flags) {
                Ok(()) => return Ok(LoopDevice { path, file: device }),
                Err(Errno::BUSY) => continue,
                Err(e) => return Err(unavailable(e.into())),
            }
        }
        Err(unavailable(Errno::BUSY.into()))
    }

    /// Tells the kernel that the file behind the device has grown.
    pub fn take_new_size(&self) -> Result<(), PoolError> {
        loops::set_capacity(self.file.as_fd()).context("grow", &self.path)
    }
}
