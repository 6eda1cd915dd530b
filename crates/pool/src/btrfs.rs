//! Volumes as btrfs subvolumes. Every operation is one or two ioctls; no process is started.

mod quota;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::attach;
use crate::error::{Context, PoolError};
use crate::pool::{PARTIAL, VOLUME_MODE, Volumes};
use crate::sys::{self, SubvolInfo};
use crate::tree;
use crate::volume::{Access, Account, Kind, Usage, VolumeId, VolumeInfo};

use quota::Quota;

/// The root directory of every subvolume has this inode number.
const SUBVOLUME_INODE: u64 = 256;

/// Subvolumes inside one volume that a delete takes along; more are refused.
const MAX_NESTED_SUBVOLUMES: usize = 10_000;

pub(crate) struct Btrfs {
    root: PathBuf,
    quota: Quota,
}

impl Btrfs {
    /// Takes over a mounted btrfs whose folders exist.
    pub fn open(root: &Path) -> Result<Btrfs, PoolError> {
        let fs_id = attach::fs_id(root)?;
        let btrfs = Btrfs {
            root: root.to_path_buf(),
            quota: Quota::open(root, fs_id)?,
        };
        btrfs.finish_interrupted_renames()?;
        Ok(btrfs)
    }

    fn path(&self, id: &VolumeId) -> PathBuf {
        id.path_in(&self.root)
    }

    fn open_folder(&self, id: &VolumeId) -> Result<File, PoolError> {
        let folder = id.folder_in(&self.root);
        File::open(&folder).context("open", folder)
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

    fn subvol(&self, id: &VolumeId) -> Result<(File, SubvolInfo), PoolError> {
        let file = self.open_volume(id)?;
        let info =
            sys::subvol_info(file.as_fd()).context("read the subvolume at", self.path(id))?;
        Ok((file, info))
    }

    /// A read-only subvolume cannot change folders: the kernel wants to write its `..`. It is made
    /// writable for the moment of the move, with a note in `partial/` first so that an interrupted
    /// move ends frozen after all.
    fn rename_frozen(
        &self,
        from: &VolumeId,
        to: &VolumeId,
        volume: &File,
    ) -> Result<(), PoolError> {
        let note = self.root.join(PARTIAL).join(format!(
            "freeze-{}-{}",
            from.kind().folder(),
            from.name()
        ));
        fs::write(&note, format!("{from}\n{to}\n")).context("write", &note)?;
        let path = self.path(from);
        sys::subvol_set_read_only(volume.as_fd(), false).context("thaw", &path)?;
        let renamed = rename_exact(&path, &self.path(to));
        sys::subvol_set_read_only(volume.as_fd(), true).context("freeze", &path)?;
        fs::remove_file(&note).context("remove", &note)?;
        map_rename(renamed, from, to, &path)
    }

    fn finish_interrupted_renames(&self) -> Result<(), PoolError> {
        let partial = self.root.join(PARTIAL);
        for entry in fs::read_dir(&partial).context("list", &partial)? {
            let entry = entry.context("list", &partial)?;
            let note = entry.path();
            if !entry.file_type().context("stat", &note)?.is_file() {
                continue;
            }
            let text = fs::read_to_string(&note).context("read", &note)?;
            for id in text.lines().filter_map(parse_id) {
                match self.set_read_only(&id) {
                    Ok(()) | Err(PoolError::NotFound { .. }) => {}
                    Err(e) => return Err(e),
                }
            }
            fs::remove_file(&note).context("remove", &note)?;
        }
        Ok(())
    }

    /// Deletes the subvolumes inside `id`, innermost first.
    fn delete_nested(&self, id: &VolumeId) -> Result<(), PoolError> {
        let path = self.path(id);
        let (volume, info) = self.subvol(id)?;
        // Entries inside a read-only subvolume cannot be removed.
        sys::subvol_set_read_only(volume.as_fd(), false).context("thaw", &path)?;
        let mut found = Vec::new();
        let mut next = vec![info.id];
        while let Some(parent) = next.pop() {
            let children =
                sys::child_subvols(volume.as_fd(), parent).context("list subvolumes of", &path)?;
            found.extend(&children);
            next.extend(children);
            if found.len() > MAX_NESTED_SUBVOLUMES {
                return Err(PoolError::Unsupported {
                    operation: "deleting the volume",
                    reason: format!("it holds more than {MAX_NESTED_SUBVOLUMES} subvolumes"),
                });
            }
        }
        // Parents were always found before their children.
        for child in found.into_iter().rev() {
            match sys::snap_destroy_by_id(volume.as_fd(), child) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(PoolError::io("delete a subvolume of", path, e)),
            }
        }
        Ok(())
    }
}

impl Volumes for Btrfs {
    fn create(&self, id: &VolumeId) -> Result<(), PoolError> {
        let folder = self.open_folder(id)?;
        match sys::subvol_create(folder.as_fd(), id.name()) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(PoolError::Exists { id: id.clone() }),
            Err(e) => return Err(PoolError::io("create", self.path(id), e)),
        }
        // The umask was applied; the guest's root directory is to be the same whatever it is.
        let path = self.path(id);
        let volume = File::open(&path).context("open", &path)?;
        let meta = volume.metadata().context("stat", &path)?;
        if meta.mode() & 0o7777 != VOLUME_MODE {
            let mode = fs::Permissions::from_mode(VOLUME_MODE);
            volume.set_permissions(mode).context("chmod", &path)?;
        }
        Ok(())
    }

    fn snapshot(&self, from: &VolumeId, to: &VolumeId, access: Access) -> Result<(), PoolError> {
        let source = self.open_volume(from)?;
        let folder = self.open_folder(to)?;
        let read_only = access == Access::ReadOnly;
        match sys::snap_create(source.as_fd(), folder.as_fd(), to.name(), read_only) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(PoolError::Exists { id: to.clone() }),
            Err(e) => Err(PoolError::io("snapshot to", self.path(to), e)),
        }
    }

    fn set_read_only(&self, id: &VolumeId) -> Result<(), PoolError> {
        let volume = self.open_volume(id)?;
        sys::subvol_set_read_only(volume.as_fd(), true).context("freeze", self.path(id))
    }

    fn is_read_only(&self, id: &VolumeId) -> Result<bool, PoolError> {
        Ok(self.subvol(id)?.1.read_only)
    }

    fn rename(&self, from: &VolumeId, to: &VolumeId) -> Result<(), PoolError> {
        let path = self.path(from);
        match rename_exact(&path, &self.path(to)) {
            Err(Errno::ROFS) => {
                let (volume, info) = self.subvol(from)?;
                if !info.read_only {
                    return Err(PoolError::io("rename", path, Errno::ROFS));
                }
                self.rename_frozen(from, to, &volume)
            }
            other => map_rename(other, from, to, &path),
        }
    }

    fn delete(&self, id: &VolumeId) -> Result<(), PoolError> {
        let folder = self.open_folder(id)?;
        match sys::snap_destroy(folder.as_fd(), id.name()) {
            Err(Errno::NOTEMPTY) => self.delete_nested(id)?,
            Err(Errno::INVAL | Errno::NOTDIR) => {
                // Not a subvolume: something put here by hand, removed like any tree.
                let name = std::ffi::CString::new(id.name()).expect("names hold no NUL");
                return tree::remove(folder.as_fd(), &name, &|| false)
                    .map(drop)
                    .context("delete", self.path(id));
            }
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(PoolError::io("delete", self.path(id), e)),
        }
        match sys::snap_destroy(folder.as_fd(), id.name()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(PoolError::io("delete", self.path(id), e)),
        }
    }

    fn info(&self, id: &VolumeId) -> Result<VolumeInfo, PoolError> {
        let volume = self.open_volume(id)?;
        let path = self.path(id);
        let meta = volume.metadata().context("stat", &path)?;
        if meta.ino() != SUBVOLUME_INODE {
            return Ok(VolumeInfo {
                id: id.clone(),
                created: meta
                    .created()
                    .or_else(|_| meta.modified())
                    .context("stat", &path)?,
                read_only: false,
                usage: None,
            });
        }
        let info = sys::subvol_info(volume.as_fd()).context("read the subvolume at", &path)?;
        Ok(VolumeInfo {
            id: id.clone(),
            created: info.created,
            read_only: info.read_only,
            usage: self.quota.usage(info.id)?,
        })
    }

    fn account(&self, id: &VolumeId) -> Result<Option<Account>, PoolError> {
        if self.quota.available().is_err() {
            return Ok(None);
        }
        Ok(Some(Account(self.subvol(id)?.1.id)))
    }

    fn owed(&self, account: Account) -> Result<Option<u64>, PoolError> {
        let root = File::open(&self.root).context("open", &self.root)?;
        if sys::subvol_exists(root.as_fd(), account.0).context("search", &self.root)? {
            return Ok(None);
        }
        let usage = self.quota.usage(account.0)?;
        Ok(Some(usage.map_or(0, |usage| usage.referenced_bytes)))
    }

    fn usage(&self, id: &VolumeId) -> Result<Usage, PoolError> {
        let (volume, info) = self.subvol(id)?;
        if let Some(usage) = self.quota.usage(info.id)? {
            return Ok(usage);
        }
        let bytes = tree::measure(volume.into()).context("measure", self.path(id))?;
        Ok(Usage {
            referenced_bytes: bytes,
            exclusive_bytes: bytes,
            limit_bytes: None,
        })
    }

    fn set_limit(&self, id: &VolumeId, limit: Option<u64>) -> Result<(), PoolError> {
        let (volume, info) = self.subvol(id)?;
        self.quota
            .set_limit(&volume, &self.path(id), info.id, limit)
    }

    fn force_limit(&self, id: &VolumeId, limit: u64) -> Result<(), PoolError> {
        let (volume, info) = self.subvol(id)?;
        self.quota
            .force_limit(&volume, &self.path(id), info.id, limit)
    }

    fn waiting(&self) -> Result<Option<u64>, PoolError> {
        self.quota.waiting()
    }

    fn sync(&self, id: &VolumeId) -> Result<(), PoolError> {
        let volume = self.open_volume(id)?;
        sys::sync_and_clean(volume.as_fd()).context("sync", self.path(id))
    }

    fn version(&self, id: &VolumeId) -> Result<u64, PoolError> {
        Ok(self.subvol(id)?.1.generation)
    }

    fn empty_trash(&self) -> Result<usize, PoolError> {
        // Deleted subvolumes are the kernel's to clean; what remains are their spent counters.
        let root = File::open(&self.root).context("open", &self.root)?;
        sys::sync_and_clean(root.as_fd()).context("sync", &self.root)?;
        self.quota.drop_spent_groups(&self.root)
    }

    fn limits(&self) -> Result<(), String> {
        self.quota.available()
    }
}

fn rename_exact(from: &Path, to: &Path) -> Result<(), Errno> {
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
}

fn map_rename(
    renamed: Result<(), Errno>,
    from: &VolumeId,
    to: &VolumeId,
    path: &Path,
) -> Result<(), PoolError> {
    match renamed {
        Ok(()) => Ok(()),
        Err(Errno::NOENT) => Err(PoolError::NotFound { id: from.clone() }),
        Err(Errno::EXIST) => Err(PoolError::Exists { id: to.clone() }),
        Err(e) => Err(PoolError::io("rename", path, e)),
    }
}

/// The opposite of `VolumeId`'s `Display`.
fn parse_id(line: &str) -> Option<VolumeId> {
    let (folder, name) = line.split_once('/')?;
    VolumeId::new(Kind::from_folder(folder)?, name).ok()
}
