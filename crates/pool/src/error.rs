//! Everything that can go wrong in a pool, with what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::config::{Backend, BackendChoice};
use crate::volume::VolumeId;

/// Which disk had no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FullDisk {
    /// The filesystem that holds the data directory.
    Host,
    /// The pool's own filesystem.
    Pool,
}

impl fmt::Display for FullDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FullDisk::Host => "host disk",
            FullDisk::Pool => "pool",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error(
        "volume name {name:?} is not 1 to 80 characters of a-z, 0-9, '_', '.', '-' without a leading dot"
    )]
    InvalidName { name: String },
    #[error("no volume {id}")]
    NotFound { id: VolumeId },
    #[error("volume {id} already exists")]
    Exists { id: VolumeId },
    #[error("volume {id} is read-only")]
    ReadOnly { id: VolumeId },
    #[error("{} is open in {}", dir.display(), holder(*pid))]
    Locked { dir: PathBuf, pid: Option<u32> },
    #[error("{} was made with the {existing} backend, {asked:?} was asked for", dir.display())]
    BackendMismatch {
        dir: PathBuf,
        existing: Backend,
        asked: BackendChoice,
    },
    #[error("{} names an unknown backend {word:?}", path.display())]
    UnknownBackend { path: PathBuf, word: String },
    #[error("something other than this pool is mounted on {}", path.display())]
    ForeignMount { path: PathBuf },
    #[error("the filesystem on {} has turned read-only", path.display())]
    WentReadOnly { path: PathBuf },
    #[error("{operation} needs root")]
    NotRoot { operation: &'static str },
    #[error("this kernel has no btrfs")]
    NoBtrfs,
    #[error("mkfs.btrfs was not found")]
    NoMkfs,
    #[error("mkfs.btrfs failed: {output}")]
    Mkfs { output: String },
    #[error("no loop device for {}", path.display())]
    NoLoopDevice { path: PathBuf, source: io::Error },
    #[error("{} is not a btrfs image", path.display())]
    NotBtrfsImage { path: PathBuf },
    #[error("a loop file of {bytes} bytes is refused: {reason}")]
    LoopSize { bytes: u64, reason: &'static str },
    #[error("the {place} is full: {need} bytes needed, {free} free, {reserve} kept in reserve")]
    Full {
        place: FullDisk,
        need: u64,
        free: u64,
        reserve: u64,
    },
    #[error("a limit of {limit} bytes is below the {used} bytes in use")]
    LimitBelowUse { limit: u64, used: u64 },
    #[error("{operation} is not possible: {reason}")]
    Unsupported {
        operation: &'static str,
        reason: String,
    },
    #[error("{} is busy: {reason}", path.display())]
    Busy { path: PathBuf, reason: &'static str },
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl PoolError {
    /// What the operator can do next, where there is something.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            PoolError::Locked { .. } => {
                "stop the other server, or give this one another data directory"
            }
            PoolError::BackendMismatch { .. } => {
                "open it with the backend it was made with, or use another data directory"
            }
            PoolError::ForeignMount { .. } => "unmount it, or use another data directory",
            PoolError::WentReadOnly { .. } => {
                "read the kernel log, free disk space, run `cove doctor --repair-pool`"
            }
            PoolError::NotRoot { .. } => "run as root, or choose the directory backend",
            PoolError::NoBtrfs => "load the btrfs module, or choose the directory backend",
            PoolError::NoMkfs => "install btrfs-progs, or choose the directory backend",
            PoolError::NoLoopDevice { .. } => {
                "load the loop module and check /dev/loop-control, or choose the directory backend"
            }
            PoolError::NotBtrfsImage { .. } => "restore it from a backup, or move it away",
            PoolError::Full { .. } => "delete sandboxes, snapshots or images, or add disk space",
            PoolError::LimitBelowUse { .. } => "choose a larger limit, or delete files first",
            PoolError::Busy { .. } => "stop what still uses it, then try again",
            _ => return None,
        })
    }

    pub(crate) fn io(
        action: &'static str,
        path: impl AsRef<Path>,
        source: impl Into<io::Error>,
    ) -> Self {
        PoolError::Io {
            action,
            path: path.as_ref().to_path_buf(),
            source: source.into(),
        }
    }

    /// The errno of an I/O error, for callers that tell cases apart.
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            PoolError::Io { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }
}

fn holder(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    }
}

/// Puts the action and the path beside a failed system call.
pub(crate) trait Context<T> {
    fn context(self, action: &'static str, path: impl AsRef<Path>) -> Result<T, PoolError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, action: &'static str, path: impl AsRef<Path>) -> Result<T, PoolError> {
        self.map_err(|e| PoolError::io(action, path, e))
    }
}
