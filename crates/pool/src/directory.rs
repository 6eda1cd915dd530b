//! Volumes as plain directories: for hosts without btrfs.
//!
//! A snapshot is a full copy (reflinked where the host filesystem can), made in `partial/` and
//! renamed when it is whole. It is not one moment in time: files changing meanwhile are copied as
//! they are met. Read-only is a mark that this crate honours, not something the kernel enforces
//! against root. Disk limits do not exist here.

mod copy;
mod reaper;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, RenameFlags, XattrFlags, fgetxattr, fsetxattr, renameat_with, syncfs};
use rustix::io::Errno;

use crate::error::{Context, PoolError};
use crate::pool::{PARTIAL, TRASH, VOLUME_MODE, Volumes};
use crate::tree;
use crate::volume::{Access, Usage, VolumeId, VolumeInfo};

use reaper::Reaper;

/// Carries the read-only mark; it moves with the directory. Root's own namespace where possible, so
/// that nothing inside a volume can set it.
const MARKS: [&str; 2] = ["trusted.cove.readonly", "user.cove.readonly"];

/// Leftovers of an earlier run may hold a fresh name in the trash; this many are stepped over.
const MAX_TRASH_NAMES: u32 = 10_000;

pub(crate) struct Directory {
    root: PathBuf,
    unique: AtomicU64,
    reaper: Reaper,
}

impl Directory {
    /// Takes over a directory whose folders exist, and starts clearing what an earlier run left.
    pub fn open(root: &Path) -> Result<Directory, PoolError> {
        let directory = Directory {
            root: root.to_path_buf(),
            unique: AtomicU64::new(0),
            reaper: Reaper::start(root.join(TRASH))?,
        };
        let partial = root.join(PARTIAL);
        for entry in fs::read_dir(&partial).context("list", &partial)? {
            directory.discard(&entry.context("list", &partial)?.path())?;
        }
        directory.reaper.wake();
        Ok(directory)
    }

    fn path(&self, id: &VolumeId) -> PathBuf {
        id.path_in(&self.root)
    }

    fn open_volume(&self, id: &VolumeId) -> Result<File, PoolError> {
        let path = self.path(id);
        match File::open(&path) {
            Ok(file) => Ok(file),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(PoolError::NotFound { id: id.clone() })
            }
            Err(e) => Err(PoolError::io("open", path, e)),
        }
    }

    fn fresh_name(&self) -> String {
        self.unique.fetch_add(1, Ordering::Relaxed).to_string()
    }

    /// Moves `path` into the trash, where the reaper finds it. False when there was nothing.
    fn discard(&self, path: &Path) -> Result<bool, PoolError> {
        for _ in 0..MAX_TRASH_NAMES {
            let target = self.root.join(TRASH).join(self.fresh_name());
            match renameat_with(CWD, path, CWD, &target, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    self.reaper.wake();
                    return Ok(true);
                }
                Err(Errno::EXIST) => continue,
                Err(Errno::NOENT) => return Ok(false),
                Err(e) => return Err(PoolError::io("discard", path, e)),
            }
        }
        Err(PoolError::io("discard", path, Errno::EXIST))
    }

    fn copy(
        &self,
        source: File,
        to: &VolumeId,
        access: Access,
        work: &Path,
    ) -> Result<(), PoolError> {
        let (tree, links) = (work.join("tree"), work.join("links"));
        for dir in [work, &tree, &links] {
            DirBuilder::new()
                .mode(0o700)
                .create(dir)
                .context("make", dir)?;
        }
        let target = File::open(&tree).context("open", &tree)?;
        let stash = File::open(&links).context("open", &links)?;
        let copied = target.try_clone().context("open", &tree)?;
        copy::copy_tree(source.into(), copied.into(), stash.as_fd(), &MARKS)
            .context("copy the volume to", &tree)?;
        let work_dir = File::open(work).context("open", work)?;
        tree::remove(work_dir.as_fd(), c"links", &|| false).context("remove", &links)?;
        if access == Access::ReadOnly {
            mark(&target).context("mark", &tree)?;
        }
        // The final name may only ever show whole files, also after a power cut.
        syncfs(&target).context("sync", &tree)?;
        match renameat_with(CWD, &tree, CWD, self.path(to), RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(PoolError::Exists { id: to.clone() }),
            Err(e) => return Err(PoolError::io("rename to", self.path(to), e)),
        }
        let folder = to.folder_in(&self.root);
        File::open(&folder)
            .and_then(|folder| folder.sync_all())
            .context("sync", folder)
    }
}

impl Volumes for Directory {
    fn create(&self, id: &VolumeId) -> Result<(), PoolError> {
        let path = self.path(id);
        match DirBuilder::new().mode(VOLUME_MODE).create(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                return Err(PoolError::Exists { id: id.clone() });
            }
            Err(e) => return Err(PoolError::io("create", path, e)),
        }
        // The umask was applied.
        fs::set_permissions(&path, fs::Permissions::from_mode(VOLUME_MODE)).context("chmod", path)
    }

    fn snapshot(&self, from: &VolumeId, to: &VolumeId, access: Access) -> Result<(), PoolError> {
        let source = self.open_volume(from)?;
        // Only to fail before the long copy; the rename at its end decides.
        if self.path(to).symlink_metadata().is_ok() {
            return Err(PoolError::Exists { id: to.clone() });
        }
        let work = self.root.join(PARTIAL).join(self.fresh_name());
        let copied = self.copy(source, to, access, &work);
        let discarded = self.discard(&work);
        copied?;
        discarded.map(drop)
    }

    fn set_read_only(&self, id: &VolumeId) -> Result<(), PoolError> {
        mark(&self.open_volume(id)?).context("mark", self.path(id))
    }

    fn is_read_only(&self, id: &VolumeId) -> Result<bool, PoolError> {
        is_marked(&self.open_volume(id)?).context("read the mark of", self.path(id))
    }

    fn rename(&self, from: &VolumeId, to: &VolumeId) -> Result<(), PoolError> {
        match renameat_with(
            CWD,
            self.path(from),
            CWD,
            self.path(to),
            RenameFlags::NOREPLACE,
        ) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(PoolError::NotFound { id: from.clone() }),
            Err(Errno::EXIST) => Err(PoolError::Exists { id: to.clone() }),
            Err(e) => Err(PoolError::io("rename", self.path(from), e)),
        }
    }

    fn delete(&self, id: &VolumeId) -> Result<(), PoolError> {
        self.discard(&self.path(id)).map(drop)
    }

    fn info(&self, id: &VolumeId) -> Result<VolumeInfo, PoolError> {
        let volume = self.open_volume(id)?;
        let path = self.path(id);
        let meta = volume.metadata().context("stat", &path)?;
        Ok(VolumeInfo {
            id: id.clone(),
            created: meta
                .created()
                .or_else(|_| meta.modified())
                .context("stat", &path)?,
            read_only: is_marked(&volume).context("read the mark of", &path)?,
            usage: None,
        })
    }

    fn usage(&self, id: &VolumeId) -> Result<Usage, PoolError> {
        let volume = self.open_volume(id)?;
        let bytes = tree::measure(volume.into()).context("measure", self.path(id))?;
        Ok(Usage {
            referenced_bytes: bytes,
            exclusive_bytes: bytes,
            limit_bytes: None,
        })
    }

    fn set_limit(&self, id: &VolumeId, limit: Option<u64>) -> Result<(), PoolError> {
        self.open_volume(id)?;
        match (limit, self.limits()) {
            (Some(_), Err(reason)) => Err(PoolError::Unsupported {
                operation: "limiting a volume's disk use",
                reason,
            }),
            _ => Ok(()),
        }
    }

    fn force_limit(&self, id: &VolumeId, limit: u64) -> Result<(), PoolError> {
        self.set_limit(id, Some(limit))
    }

    fn waiting(&self) -> Result<Option<u64>, PoolError> {
        Ok(None)
    }

    fn sync(&self, id: &VolumeId) -> Result<(), PoolError> {
        syncfs(self.open_volume(id)?).context("sync", self.path(id))
    }

    fn version(&self, id: &VolumeId) -> Result<u64, PoolError> {
        let volume = self.open_volume(id)?;
        tree::fingerprint(volume.into()).context("look through", self.path(id))
    }

    fn empty_trash(&self) -> Result<usize, PoolError> {
        self.reaper.empty_now()
    }

    fn limits(&self) -> Result<(), String> {
        Err("plain directories cannot be limited, a btrfs pool can".to_owned())
    }
}

fn mark(volume: &File) -> Result<(), Errno> {
    let mut refused = Errno::NOTSUP;
    for name in MARKS {
        match fsetxattr(volume, name, b"1", XattrFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(e) => refused = e,
        }
    }
    Err(refused)
}

fn is_marked(volume: &File) -> Result<bool, Errno> {
    for name in MARKS {
        let mut value = [0u8; 8];
        match fgetxattr(volume, name, &mut value[..]) {
            Ok(_) => return Ok(true),
            Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM | Errno::RANGE) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(false)
}
