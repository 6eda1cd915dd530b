//! What the engine does with volumes besides keeping them: drafts that vanish when an operation
//! fails, sandboxes' volumes made ready for a boot, and memory moved into them.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use cove_pool::{Access, Pool, PoolError, VolumeId};

use crate::engine::Inner;
use crate::offload;
use crate::snapshots::memory_dir;

/// A volume that is deleted when this is dropped, unless it is kept.
pub struct Draft {
    pool: Pool,
    id: Option<VolumeId>,
}

impl Draft {
    pub fn new(pool: &Pool, id: VolumeId) -> Self {
        Self {
            pool: pool.clone(),
            id: Some(id),
        }
    }

    pub fn id(&self) -> &VolumeId {
        self.id.as_ref().expect("set until it is kept or dropped")
    }

    pub fn keep(mut self) {
        self.id = None;
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            // What cannot be deleted now is deleted by the next sweep.
            if let Err(error) = offload::blocking(|| self.pool.delete(&id)) {
                tracing::warn!(volume = %id, %error, "a draft stays until the next sweep");
            }
        }
    }
}

/// Where a machine's disk comes from.
#[derive(Debug, Clone)]
pub enum Disk {
    /// Its own volume, made empty when there is none yet.
    Own,
    /// A copy of this volume, which becomes its own.
    CopyOf(VolumeId),
}

impl Inner {
    /// The volume of a sandbox, ready to be booted from. Blocking.
    pub(crate) fn ready_volume(
        &self,
        volume: &VolumeId,
        disk: &Disk,
        quota_bytes: u64,
    ) -> Result<std::path::PathBuf, PoolError> {
        let path = self.pool.path(volume);
        let exists = self.pool.exists(volume)?;
        match disk {
            Disk::CopyOf(source) => {
                self.pool.snapshot(source, volume, Access::Writable)?;
                renew(&path)?;
            }
            Disk::Own if exists => renew(&path)?,
            Disk::Own => self.pool.create(volume)?,
        }
        if self.disk_limits {
            match self.pool.set_limit(volume, Some(quota_bytes)) {
                // What was just cleared is only given back with the next transaction; the limit that
                // allowed for it stays until the next boot.
                Err(PoolError::LimitBelowUse { .. }) if exists => {}
                result => result?,
            }
        }
        Ok(path)
    }
}

/// Clears what a boot must not find: an overlay's work directory, whose index names the volume it
/// was made in and is refused in a copy, and memory that belonged to somebody else's processes.
pub fn renew(volume: &Path) -> Result<(), PoolError> {
    let (work, memory) = (volume.join("work"), memory_dir(volume));
    remove_tree(&memory).map_err(|error| pool_io("clear", &memory, error))?;
    if work.symlink_metadata().is_ok() {
        remove_tree(&work).map_err(|error| pool_io("clear", &work, error))?;
        fs::create_dir(&work).map_err(|error| pool_io("make", &work, error))?;
    }
    Ok(())
}

pub fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

pub fn pool_io(action: &'static str, path: &Path, source: io::Error) -> PoolError {
    PoolError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// A directory that only root may look into: memory holds every secret of a sandbox.
pub fn make_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

/// Makes a volume that only holds memory one that processes can be restored on: nothing in it differs
/// from the image.
pub fn add_empty_changes(volume: &Path) -> io::Result<()> {
    let upper = volume.join("upper");
    fs::create_dir(&upper)?;
    fs::set_permissions(&upper, fs::Permissions::from_mode(0o755))
}

/// Moves a flat directory of memory images. Between subvolumes, where a rename is refused, the files
/// are cloned, so that no byte is written twice.
pub fn move_memory(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {}
        result => return result,
    }
    copy_memory(from, to)?;
    remove_tree(from)
}

/// Copies a flat directory of memory images, sharing their bytes where the filesystem can.
pub fn copy_memory(from: &Path, to: &Path) -> io::Result<()> {
    make_private(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if !entry.file_type()?.is_file() {
            return Err(io::Error::other(format!(
                "{} is no plain file",
                entry.path().display()
            )));
        }
        clone_file(&entry.path(), &target)?;
    }
    Ok(())
}

fn clone_file(from: &Path, to: &Path) -> io::Result<()> {
    let source = fs::File::open(from)?;
    let target = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(to)?;
    target.set_permissions(fs::Permissions::from_mode(0o600))?;
    match rustix::fs::ioctl_ficlone(&target, &source) {
        Ok(()) => Ok(()),
        Err(_) => {
            let (mut source, mut target) = (source, target);
            io::copy(&mut source, &mut target).map(drop)
        }
    }
}
