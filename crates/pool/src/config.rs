//! What a caller chooses before a pool exists, and the names of the files a data directory holds.

use std::fmt;
use std::path::{Path, PathBuf};

/// The smallest loop file that leaves btrfs room for its own block groups and a few volumes.
pub(crate) const MIN_LOOP_BYTES: u64 = 256 << 20;

/// How the names of unfinished loop files begin.
pub(crate) const IMAGE_IN_PROGRESS: &str = "pool.img.new-";

/// How to open a pool. [`PoolConfig::new`] fills in the defaults.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// The data directory. Made with mode 0700 when it does not exist.
    pub dir: PathBuf,
    pub backend: BackendChoice,
    /// Apparent size of the sparse loop file; `None` takes the size of the host filesystem when the
    /// file is first made and leaves an existing file as it is. A larger value grows an existing
    /// file, a smaller one is refused.
    pub loop_size_bytes: Option<u64>,
    /// Host disk space that creates and snapshots must leave free; `None` derives it from the size
    /// of the host filesystem, see [`Space`](crate::Space).
    pub reserve_bytes: Option<u64>,
}

impl PoolConfig {
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        PoolConfig {
            dir: dir.into(),
            backend: BackendChoice::Auto,
            loop_size_bytes: None,
            reserve_bytes: None,
        }
    }
}

/// Which backend the caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendChoice {
    /// What the data directory was made with; for a new one btrfs where it works, else directories.
    #[default]
    Auto,
    Btrfs,
    Directory,
}

/// Which backend a pool runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Subvolumes of a btrfs made in `pool.img` and mounted through a loop device.
    BtrfsLoop,
    /// Subvolumes of the btrfs the data directory (or a device mounted on `pool/`) already is. Opening
    /// it switches simple quotas on for that filesystem where no quotas are on. Mount options are the
    /// host's; the folder's mode alone keeps others from the guests' set-id files.
    BtrfsHost,
    /// Plain directories: snapshots are copies, disk limits do not exist.
    Directory,
}

impl Backend {
    pub fn is_btrfs(self) -> bool {
        matches!(self, Backend::BtrfsLoop | Backend::BtrfsHost)
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Backend::BtrfsLoop => "btrfs-loop",
            Backend::BtrfsHost => "btrfs-host",
            Backend::Directory => "directory",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Backend> {
        [Backend::BtrfsLoop, Backend::BtrfsHost, Backend::Directory]
            .into_iter()
            .find(|b| b.word() == word)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The files of one data directory.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub dir: PathBuf,
}

impl Layout {
    pub fn new(dir: &Path) -> Self {
        Layout {
            dir: dir.to_path_buf(),
        }
    }

    pub fn lock(&self) -> PathBuf {
        self.dir.join("pool.lock")
    }

    pub fn marker(&self) -> PathBuf {
        self.dir.join("pool.backend")
    }

    pub fn image(&self) -> PathBuf {
        self.dir.join("pool.img")
    }

    /// Where this process makes the loop file; only a finished one gets the name `pool.img`. The name
    /// is the process's own, so that a mkfs that outlived a killed server cannot write into ours.
    pub fn image_in_progress(&self) -> PathBuf {
        let name = format!("{IMAGE_IN_PROGRESS}{}", std::process::id());
        self.dir.join(name)
    }

    pub fn root(&self) -> PathBuf {
        self.dir.join("pool")
    }
}
