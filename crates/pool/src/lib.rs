//! The storage pool: volumes that are created, frozen, copied on write, swapped and deleted.
//!
//! A pool lives in one data directory and holds *volumes*, each a directory tree under
//! `<data-dir>/pool/<kind>/<name>`. On btrfs a volume is a subvolume, so a snapshot is one atomic
//! operation whose cost does not depend on size; where there is no btrfs, volumes are plain
//! directories and a snapshot is a copy. The engine decides what a volume means; this crate only
//! keeps them, measures them and makes sure that a crash leaves none of them half made. A volume that a
//! machine boots from is a [`Disk`].
//!
//! Everything here blocks. Call it from a thread that may wait.
//!
//! ```text
//! <data-dir>/            mode 0700
//!   pool.lock            held by flock while a Pool is open
//!   pool.backend         which backend this directory was made with
//!   pool.img             the sparse file behind the loop device (loop-backed btrfs only)
//!   pool/                the mount point, or the plain directory
//!     images/ sandboxes/ snapshots/ volumes/ staging/
//!     trash/             volumes being deleted (directory backend)
//!     partial/           work in progress; whatever lies here when a pool opens is undone
//! ```

mod attach;
mod btrfs;
mod config;
mod count;
mod directory;
mod disk;
mod error;
mod loopdev;
mod pool;
mod probe;
mod shares;
mod space;
mod sys;
mod tree;
mod volume;

pub use config::{Backend, BackendChoice, PoolConfig};
pub use disk::{Disk, DiskSource};
pub use error::{FullDisk, PoolError};
pub use pool::{Headroom, Pool, SweepReport};
pub use probe::{Finding, Status};
pub use shares::Shares;
pub use space::Space;
pub use volume::{Access, Account, Kind, MAX_NAME_LEN, Usage, VolumeId, VolumeInfo};
