//! The disk of one machine: a volume, of which captured memory takes one directory and the tier that runs
//! the machine has the rest.
//!
//! ```text
//! <volume>/
//!   mem/     captured memory: plain files, root's alone
//!   …        the tier's: a tree of changes over an image, or a block image
//! ```
//! Copies, limits, usage and versions are the volume's. They mean the same for a tree and for a block image,
//! and nobody but the tier knows which of them a disk is.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::error::{Context, PoolError};
use crate::pool::Pool;
use crate::volume::{Access, VolumeId};

/// How often and how long apart it is tried to clear memory that somebody still writes.
const CLEAR_ATTEMPTS: u32 = 500;
const CLEAR_PAUSE: Duration = Duration::from_millis(20);

const MEMORY: &str = "mem";
/// Memory holds every secret of a sandbox: only root may look into it.
const MEMORY_MODE: u32 = 0o700;
const MEMORY_FILE_MODE: u32 = 0o600;
const BLOCK: u64 = 512;

/// Where the content of a disk comes from.
#[derive(Debug, Clone)]
pub enum DiskSource {
    /// Its own volume, made empty when there is none yet.
    Own,
    /// A copy of this volume, which becomes its own.
    CopyOf(VolumeId),
}

#[derive(Debug, Clone)]
pub struct Disk {
    dir: PathBuf,
}

impl Pool {
    /// The disk in a volume, whether there is one yet or not.
    pub fn disk(&self, id: &VolumeId) -> Disk {
        Disk::at(self.path(id))
    }

    /// A disk ready to be booted from: made or copied, without memory of anybody's processes, limited.
    pub fn ready_disk(
        &self,
        id: &VolumeId,
        source: &DiskSource,
        limit: Option<u64>,
    ) -> Result<Disk, PoolError> {
        let disk = self.disk(id);
        let exists = self.exists(id)?;
        match source {
            DiskSource::CopyOf(source) => {
                self.snapshot(source, id, Access::Writable)?;
                disk.clear_memory()?;
            }
            DiskSource::Own if exists => disk.clear_memory()?,
            DiskSource::Own => self.create(id)?,
        }
        if let Some(limit) = limit {
            match self.set_limit(id, Some(limit)) {
                // What was just cleared is only given back with the next transaction; the limit that
                // allowed for it stays until the next boot.
                Err(PoolError::LimitBelowUse { .. }) if exists => {}
                result => result?,
            }
        }
        Ok(disk)
    }
}

impl Disk {
    pub fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Where the tier keeps what the machine boots from, under names other than `mem`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where captured memory lies.
    pub fn memory(&self) -> PathBuf {
        self.dir.join(MEMORY)
    }

    pub fn has_memory(&self) -> bool {
        self.memory().symlink_metadata().is_ok()
    }

    /// Whether no tier has put anything on it: then it shows its image as that is.
    pub fn is_blank(&self) -> Result<bool, PoolError> {
        for entry in fs::read_dir(&self.dir).context("list", &self.dir)? {
            if entry.context("list", &self.dir)?.file_name() != MEMORY {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What captured memory takes on disk.
    pub fn memory_bytes(&self) -> u64 {
        let files = fs::read_dir(self.memory()).into_iter().flatten();
        files
            .filter_map(|entry| entry.ok()?.metadata().ok())
            .map(|entry| entry.blocks() * BLOCK)
            .sum()
    }

    /// An empty directory for memory, whatever was there.
    pub fn make_memory(&self) -> Result<(), PoolError> {
        self.clear_memory()?;
        let dir = self.memory();
        make_private(&dir).context("make", &dir)
    }

    /// A capture whose engine was killed goes on for a moment and may still write files there.
    pub fn clear_memory(&self) -> Result<(), PoolError> {
        let dir = self.memory();
        for _ in 0..CLEAR_ATTEMPTS {
            match fs::remove_dir_all(&dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    thread::sleep(CLEAR_PAUSE);
                }
                result => return result.context("clear", &dir),
            }
        }
        fs::remove_dir_all(&dir).context("clear", &dir)
    }

    /// Moves memory to a disk that has none. Between subvolumes, where a rename is refused, the files are
    /// cloned, so that no byte is written twice.
    pub fn move_memory(&self, to: &Disk) -> Result<(), PoolError> {
        let (from, into) = (self.memory(), to.memory());
        match fs::rename(&from, &into) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {}
            result => return result.context("move memory to", &into),
        }
        self.copy_memory(to)?;
        self.clear_memory()
    }

    /// Copies memory to a disk that has none, sharing the bytes where the filesystem can.
    pub fn copy_memory(&self, to: &Disk) -> Result<(), PoolError> {
        let into = to.memory();
        copy_files(&self.memory(), &into).context("copy memory to", &into)
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(MEMORY_MODE).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(MEMORY_MODE))
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    make_private(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            return Err(io::Error::other(format!(
                "{} is not a plain file",
                entry.path().display()
            )));
        }
        clone_file(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn clone_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = fs::File::open(from)?;
    let mut target = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(to)?;
    target.set_permissions(fs::Permissions::from_mode(MEMORY_FILE_MODE))?;
    match rustix::fs::ioctl_ficlone(&target, &source) {
        Ok(()) => Ok(()),
        Err(_) => io::copy(&mut source, &mut target).map(drop),
    }
}
