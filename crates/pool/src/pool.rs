//! The public interface: opening a data directory, and the operations on its volumes.
//!
//! What both backends share lives here: which backend a directory gets, the folders, names, the room
//! check, swapping, listing and sweeping. The rest goes through the private [`Volumes`] trait.

mod choice;
mod headroom;
mod lock;
mod margin;

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use rustix::fs::{CWD, RenameFlags, StatVfsMountFlags, renameat_with};
use rustix::io::Errno;

use crate::attach;
use crate::btrfs::Btrfs;
use crate::config::{Backend, Layout, PoolConfig};
use crate::count;
use crate::directory::Directory;
use crate::error::{Context, FullDisk, PoolError};
use crate::probe::{self, Finding};
use crate::shares::{self, Shares};
use crate::space::{self, CREATE_FLOOR_BYTES, Space};
use crate::tree;
use crate::volume::{Access, Account, Kind, Usage, VolumeId, VolumeInfo};

pub use headroom::Headroom;
use lock::Lock;

pub(crate) const TRASH: &str = "trash";
pub(crate) const PARTIAL: &str = "partial";

/// The root directory of a new volume, whatever the umask.
pub(crate) const VOLUME_MODE: u32 = 0o755;

/// Nobody but root gets into a pool: the set-id files of guests lie in there.
const ROOT_MODE: u32 = 0o700;

/// What a backend does its own way.
pub(crate) trait Volumes: Send + Sync {
    fn create(&self, id: &VolumeId) -> Result<(), PoolError>;
    fn snapshot(&self, from: &VolumeId, to: &VolumeId, access: Access) -> Result<(), PoolError>;
    fn set_read_only(&self, id: &VolumeId) -> Result<(), PoolError>;
    fn is_read_only(&self, id: &VolumeId) -> Result<bool, PoolError>;
    fn rename(&self, from: &VolumeId, to: &VolumeId) -> Result<(), PoolError>;
    fn delete(&self, id: &VolumeId) -> Result<(), PoolError>;
    fn info(&self, id: &VolumeId) -> Result<VolumeInfo, PoolError>;
    fn usage(&self, id: &VolumeId) -> Result<Usage, PoolError>;
    /// `None` where nobody is charged.
    fn account(&self, _id: &VolumeId) -> Result<Option<Account>, PoolError> {
        Ok(None)
    }
    fn owed(&self, _account: Account) -> Result<Option<u64>, PoolError> {
        Ok(None)
    }
    fn set_limit(&self, id: &VolumeId, limit: Option<u64>) -> Result<(), PoolError>;
    /// Like `set_limit`, also below present use.
    fn force_limit(&self, id: &VolumeId, limit: u64) -> Result<(), PoolError>;
    /// Bytes written into volumes that are not on disk yet; `None` where nobody counts them.
    fn waiting(&self) -> Result<Option<u64>, PoolError>;
    fn sync(&self, id: &VolumeId) -> Result<(), PoolError>;
    fn version(&self, id: &VolumeId) -> Result<u64, PoolError>;
    /// Finishes deletions; returns how many leftovers went.
    fn empty_trash(&self) -> Result<usize, PoolError>;
    /// Why disk limits are not possible, if they are not.
    fn limits(&self) -> Result<(), String>;
}

/// An open pool. Clones share it; the data directory stays locked until the last one is dropped.
///
/// Dropping leaves a loop-backed pool mounted, because running sandboxes live on it: the next
/// [`Pool::open`] takes it over. [`Pool::close`] unmounts.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("root", &self.inner.root)
            .field("backend", &self.inner.backend)
            .finish_non_exhaustive()
    }
}

struct Inner {
    layout: Layout,
    root: PathBuf,
    backend: Backend,
    reserve: u64,
    /// Bytes of the loop file that are set aside ahead of use.
    margin: AtomicU64,
    volumes: Box<dyn Volumes>,
    // Last, so that it is released after everything else has stopped.
    _lock: Lock,
}

/// What [`Pool::sweep`] did.
#[derive(Debug, Default)]
pub struct SweepReport {
    /// Volumes that were deleted, staging ones included.
    pub removed: Vec<VolumeId>,
    /// Leftovers of earlier deletions that are gone now.
    pub trash: usize,
    /// Entries that no volume can be named like; they were left alone.
    pub unknown: Vec<PathBuf>,
    /// What could not be removed.
    pub errors: Vec<PoolError>,
}

impl Pool {
    /// Opens the pool of a data directory, making it on first use and taking over the mount and the
    /// loop device that an earlier server left.
    pub fn open(config: PoolConfig) -> Result<Pool, PoolError> {
        DirBuilder::new()
            .recursive(true)
            .mode(ROOT_MODE)
            .create(&config.dir)
            .context("make", &config.dir)?;
        let dir = config.dir.canonicalize().context("resolve", &config.dir)?;
        let layout = Layout::new(&dir);
        let lock = Lock::take(&layout)?;
        let root = layout.root();
        match DirBuilder::new().mode(ROOT_MODE).create(&root) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(PoolError::io("make", root, e));
            }
            _ => {}
        }
        let backend = choice::attach_backend(&layout, &config)?;
        // One that went read-only is opened all the same, so that somebody can hear of it and repair it.
        if !is_read_only(&root)? {
            make_folders(&root)?;
        }
        let volumes: Box<dyn Volumes> = if backend.is_btrfs() {
            Box::new(Btrfs::open(&root)?)
        } else {
            Box::new(Directory::open(&root)?)
        };
        choice::write_marker(&layout, backend)?;
        let host = if backend == Backend::BtrfsLoop {
            &dir
        } else {
            &root
        };
        let reserve = match config.reserve_bytes {
            Some(bytes) => bytes,
            None => space::default_reserve(space::filesystem(host)?.0),
        };
        Ok(Pool {
            inner: Arc::new(Inner {
                layout,
                root,
                backend,
                reserve,
                margin: AtomicU64::new(0),
                volumes,
                _lock: lock,
            }),
        })
    }

    /// What this machine offers a pool in `dir`, for `cove doctor`. Changes nothing.
    pub fn probe(dir: &Path) -> Vec<Finding> {
        probe::probe(dir)
    }

    pub fn backend(&self) -> Backend {
        self.inner.backend
    }

    /// The folder that holds the kinds' folders.
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    pub fn path(&self, id: &VolumeId) -> PathBuf {
        id.path_in(&self.inner.root)
    }

    /// Whether [`set_limit`](Pool::set_limit) can set limits here, or why not.
    pub fn limits(&self) -> Result<(), PoolError> {
        self.inner
            .volumes
            .limits()
            .map_err(|reason| PoolError::Unsupported {
                operation: "limiting a volume's disk use",
                reason,
            })
    }

    /// Makes an empty writable volume, mode 0755, owned by root.
    pub fn create(&self, id: &VolumeId) -> Result<(), PoolError> {
        self.check_room(CREATE_FLOOR_BYTES)?;
        self.explain_full(self.inner.volumes.create(id))
    }

    /// Makes `to` a copy of `from` as it is now. `to` appears whole or not at all. On btrfs it shares
    /// all data and is atomic; in directories it is a copy of files as they are met. On disk when this
    /// returns: the kernel makes a btrfs snapshot by committing a transaction.
    ///
    /// A limit is not inherited; set one on `to`. With simple quotas it covers what `to` writes from
    /// then on, not what it inherited: subtract what [`count`](Pool::count) or the caller knows. Subvolumes inside `from` are not included.
    pub fn snapshot(
        &self,
        from: &VolumeId,
        to: &VolumeId,
        access: Access,
    ) -> Result<(), PoolError> {
        self.check_room(CREATE_FLOOR_BYTES)?;
        self.explain_full(self.inner.volumes.snapshot(from, to, access))
    }

    /// Freezes a volume for good. In directories this is a mark only.
    pub fn set_read_only(&self, id: &VolumeId) -> Result<(), PoolError> {
        self.inner.volumes.set_read_only(id)
    }

    /// Renames a volume, also into another kind; refuses when the new name is taken.
    pub fn rename(&self, from: &VolumeId, to: &VolumeId) -> Result<(), PoolError> {
        self.inner.volumes.rename(from, to)
    }

    /// Exchanges two writable volumes in one step; at no moment is either name missing.
    pub fn swap(&self, a: &VolumeId, b: &VolumeId) -> Result<(), PoolError> {
        for id in [a, b] {
            if self.inner.volumes.is_read_only(id)? {
                return Err(PoolError::ReadOnly { id: id.clone() });
            }
        }
        let (from, to) = (self.path(a), self.path(b));
        renameat_with(CWD, &from, CWD, &to, RenameFlags::EXCHANGE).context("swap", &from)
    }

    /// Deletes a volume, subvolumes inside it included. Returns at once, space comes back in the
    /// background. A volume that does not exist is fine.
    pub fn delete(&self, id: &VolumeId) -> Result<(), PoolError> {
        self.inner.volumes.delete(id)
    }

    pub fn exists(&self, id: &VolumeId) -> Result<bool, PoolError> {
        let path = self.path(id);
        match fs::symlink_metadata(&path) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(PoolError::io("stat", path, e)),
        }
    }

    pub fn info(&self, id: &VolumeId) -> Result<VolumeInfo, PoolError> {
        self.inner.volumes.info(id)
    }

    /// The volumes of one kind, by name. Those that vanish while being listed are left out.
    pub fn list(&self, kind: Kind) -> Result<Vec<VolumeInfo>, PoolError> {
        let mut found = Vec::new();
        for id in self.ids(kind)?.0 {
            match self.inner.volumes.info(&id) {
                Ok(info) => found.push(info),
                Err(PoolError::NotFound { .. }) => {}
                // Deleted between being opened and being read.
                Err(_) if matches!(self.exists(&id), Ok(false)) => {}
                Err(e) => return Err(e),
            }
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// What a volume costs; see [`Usage`] for what that means. Cheap with simple quotas, else a walk.
    pub fn usage(&self, id: &VolumeId) -> Result<Usage, PoolError> {
        self.inner.volumes.usage(id)
    }

    /// Whom what is written into a volume is charged to; `None` without simple quotas.
    pub fn account(&self, id: &VolumeId) -> Result<Option<Account>, PoolError> {
        self.inner.volumes.account(id)
    }

    /// What a volume that is gone wrote and others still hold. `None` while it is there, and while it is
    /// still being cleared away.
    pub fn owed(&self, account: Account) -> Result<Option<u64>, PoolError> {
        self.inner.volumes.owed(account)
    }

    /// Disk bytes a volume shows, inherited ones included, by walking its files.
    pub fn measure(&self, id: &VolumeId) -> Result<u64, PoolError> {
        let path = self.path(id);
        match fs::File::open(&path) {
            Ok(volume) => tree::measure(volume.into()).context("measure", path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(PoolError::NotFound { id: id.clone() })
            }
            Err(e) => Err(PoolError::io("open", path, e)),
        }
    }

    /// At least what a volume holds, with what its directories, names and attributes take, whoever is
    /// charged for it. Nothing when the walk is not done by `deadline`.
    pub fn count(&self, id: &VolumeId, deadline: Instant) -> Result<Option<u64>, PoolError> {
        let path = self.path(id);
        match fs::File::open(&path) {
            Ok(volume) => count::walk(volume.into(), deadline).context("count", path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(PoolError::NotFound { id: id.clone() })
            }
            Err(e) => Err(PoolError::io("open", path, e)),
        }
    }

    /// How much of a volume only it uses, by asking for each of its extents. Stops at `deadline`.
    pub fn shares(&self, id: &VolumeId, deadline: Instant) -> Result<Shares, PoolError> {
        let path = self.path(id);
        match fs::File::open(&path) {
            Ok(volume) => shares::walk(volume.into(), deadline).context("measure", path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(PoolError::NotFound { id: id.clone() })
            }
            Err(e) => Err(PoolError::io("open", path, e)),
        }
    }

    /// A number that is another one once something in the volume was changed and
    /// [synced](Pool::sync). Being snapshotted may change it too. In directories it is a walk.
    pub fn version(&self, id: &VolumeId) -> Result<u64, PoolError> {
        self.inner.volumes.version(id)
    }

    /// Limits what a volume may be charged, or lifts the limit. A writer that reaches it gets
    /// `EDQUOT`; nobody else notices. Refused where it cannot be enforced, and below present use.
    pub fn set_limit(&self, id: &VolumeId, limit: Option<u64>) -> Result<(), PoolError> {
        self.inner.volumes.set_limit(id, limit)
    }

    pub fn space(&self) -> Result<Space, PoolError> {
        let (total, free) = space::filesystem(&self.inner.root)?;
        let host_free = match self.inner.backend {
            Backend::BtrfsLoop => space::filesystem(&self.inner.layout.dir)?.1,
            Backend::BtrfsHost | Backend::Directory => free,
        };
        Ok(Space {
            total,
            free,
            host_free,
            reserve: self.inner.reserve,
        })
    }

    /// Refuses when `need` more bytes would eat into the host's reserve or do not fit the pool.
    pub fn check_room(&self, need: u64) -> Result<(), PoolError> {
        self.check_writable()?;
        self.space()?.check(need)
    }

    /// Refuses when the pool's filesystem turned read-only: the kernel does that when it could not write what
    /// the filesystem cannot do without.
    pub fn check_writable(&self) -> Result<(), PoolError> {
        match is_read_only(&self.inner.root)? {
            true => Err(PoolError::WentReadOnly {
                path: self.inner.root.clone(),
            }),
            false => Ok(()),
        }
    }

    /// Puts a volume's data on disk, together with whatever else is pending on its filesystem. Until
    /// then a power cut may undo the last seconds (btrfs: up to 30), creations included.
    pub fn sync(&self, id: &VolumeId) -> Result<(), PoolError> {
        self.inner.volumes.sync(id)
    }

    /// Deletes every volume that `keep` does not claim, every staging volume and the trash. Meant for
    /// the start of a server, before anything is being filled.
    pub fn sweep(&self, keep: &dyn Fn(&VolumeId) -> bool) -> SweepReport {
        self.sweep_all_but(&|id| id.kind() != Kind::Staging && keep(id))
    }

    /// The same, with `keep` deciding about staging volumes too.
    pub fn sweep_all_but(&self, keep: &dyn Fn(&VolumeId) -> bool) -> SweepReport {
        let mut report = SweepReport::default();
        for kind in Kind::ALL {
            let (ids, unknown) = match self.ids(kind) {
                Ok(found) => found,
                Err(e) => {
                    report.errors.push(e);
                    continue;
                }
            };
            report.unknown.extend(unknown);
            for id in ids {
                if keep(&id) {
                    continue;
                }
                match self.delete(&id) {
                    Ok(()) => report.removed.push(id),
                    Err(e) => report.errors.push(e),
                }
            }
        }
        match self.inner.volumes.empty_trash() {
            Ok(count) => report.trash = count,
            Err(e) => report.errors.push(e),
        }
        report
    }

    /// Unmounts a loop-backed pool and gives its loop device back. Refuses while another clone is
    /// alive or something in the pool is in use; it then stays as it is and can be opened again.
    pub fn close(self) -> Result<(), PoolError> {
        let inner = Arc::try_unwrap(self.inner).map_err(|shared| PoolError::Busy {
            path: shared.root.clone(),
            reason: "another handle on the pool is open",
        })?;
        let Inner {
            layout,
            backend,
            volumes,
            _lock,
            ..
        } = inner;
        drop(volumes);
        match backend {
            Backend::BtrfsLoop => attach::detach_loop(&layout),
            Backend::BtrfsHost | Backend::Directory => Ok(()),
        }
    }

    /// The volumes in a kind's folder, and what else lies there.
    fn ids(&self, kind: Kind) -> Result<(Vec<VolumeId>, Vec<PathBuf>), PoolError> {
        let folder = self.inner.root.join(kind.folder());
        let (mut ids, mut unknown) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&folder).context("list", &folder)? {
            let entry = entry.context("list", &folder)?;
            let name = entry.file_name().into_string().ok();
            match name.and_then(|name| VolumeId::new(kind, name).ok()) {
                Some(id) => ids.push(id),
                None => unknown.push(entry.path()),
            }
        }
        Ok((ids, unknown))
    }

    /// Turns "no space" from the middle of an operation into the error that the room check gives.
    fn explain_full(&self, done: Result<(), PoolError>) -> Result<(), PoolError> {
        match done {
            Err(e) if e.errno() == Some(Errno::NOSPC) => {
                let space = self.space()?;
                Err(PoolError::Full {
                    place: FullDisk::Pool,
                    need: CREATE_FLOOR_BYTES,
                    free: space.free,
                    reserve: space.reserve,
                })
            }
            Err(e) if e.errno() == Some(Errno::ROFS) => self.check_writable().and(Err(e)),
            other => other,
        }
    }
}

pub(crate) fn is_read_only(root: &Path) -> Result<bool, PoolError> {
    let stat = rustix::fs::statvfs(root).context("statvfs", root)?;
    Ok(stat.f_flag.contains(StatVfsMountFlags::RDONLY))
}

fn make_folders(root: &Path) -> Result<(), PoolError> {
    fs::set_permissions(root, fs::Permissions::from_mode(ROOT_MODE)).context("chmod", root)?;
    let kinds = Kind::ALL.map(Kind::folder);
    for folder in kinds.into_iter().chain([TRASH, PARTIAL]) {
        let path = root.join(folder);
        match DirBuilder::new().mode(ROOT_MODE).create(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(PoolError::io("make", path, e));
            }
            _ => {}
        }
    }
    Ok(())
}
