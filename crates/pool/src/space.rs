//! How much room there is, and the refusal to start new volumes when there is too little.
//!
//! A sparse loop file promises more than the host disk may hold. When the host runs full under it,
//! btrfs meets write errors and turns read-only for every sandbox at once, so creating volumes stops
//! while there is still a reserve.

use std::path::Path;

use crate::error::{Context, FullDisk, PoolError};

/// Room that must be there beyond the reserve before a volume is created or snapshotted.
pub(crate) const CREATE_FLOOR_BYTES: u64 = 16 << 20;

const MIN_RESERVE_BYTES: u64 = 1 << 30;
const MAX_RESERVE_BYTES: u64 = 16 << 30;
/// 2% of the disk between those two, but on a small disk never more than a tenth of it.
const RESERVE_DIVISOR: u64 = 50;
const RESERVE_CEILING_DIVISOR: u64 = 10;

/// The pool's room in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Size of the pool's filesystem; for a loop file that is its apparent size.
    pub total: u64,
    /// Free on the pool's filesystem.
    pub free: u64,
    /// Free on the filesystem that holds the loop file; the same as `free` without one.
    pub host_free: u64,
    /// Kept free on the host: what was configured, else 2% of the host filesystem, at least 1 GiB,
    /// at most 16 GiB or a tenth of the disk.
    pub reserve: u64,
}

pub(crate) fn default_reserve(host_total: u64) -> u64 {
    (host_total / RESERVE_DIVISOR)
        .clamp(MIN_RESERVE_BYTES, MAX_RESERVE_BYTES)
        .min(host_total / RESERVE_CEILING_DIVISOR)
}

/// Size and free bytes of the filesystem at `path`.
pub(crate) fn filesystem(path: &Path) -> Result<(u64, u64), PoolError> {
    let stat = rustix::fs::statvfs(path).context("statvfs", path)?;
    Ok((
        stat.f_blocks.saturating_mul(stat.f_frsize),
        stat.f_bavail.saturating_mul(stat.f_frsize),
    ))
}

impl Space {
    pub(crate) fn check(&self, need: u64) -> Result<(), PoolError> {
        if self.host_free < need.saturating_add(self.reserve) {
            return Err(PoolError::Full {
                place: FullDisk::Host,
                need,
                free: self.host_free,
                reserve: self.reserve,
            });
        }
        if self.free < need {
            return Err(PoolError::Full {
                place: FullDisk::Pool,
                need,
                free: self.free,
                reserve: 0,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_reserve_is_two_percent_between_its_bounds() {
        for (total, reserve) in [
            (5 * GIB, GIB / 2),
            (20 * GIB, GIB),
            (100 * GIB, 2 * GIB),
            (100_000 * GIB, 16 * GIB),
        ] {
            assert_eq!(default_reserve(total), reserve, "of {total}");
        }
    }

    #[test]
    fn the_reserve_is_kept_on_the_host_but_not_in_the_pool() {
        let space = Space {
            total: 100,
            free: 50,
            host_free: 40,
            reserve: 30,
        };
        assert!(space.check(10).is_ok());
        let host = space.check(11);
        assert!(matches!(
            host,
            Err(PoolError::Full {
                place: FullDisk::Host,
                ..
            })
        ));
        let roomy = Space {
            host_free: 1000,
            ..space
        };
        assert!(roomy.check(50).is_ok());
        let pool = roomy.check(51);
        assert!(matches!(
            pool,
            Err(PoolError::Full {
                place: FullDisk::Pool,
                ..
            })
        ));
        assert!(roomy.check(u64::MAX).is_err());
    }
}
