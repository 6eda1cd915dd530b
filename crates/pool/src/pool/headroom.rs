//! How much the disk below a pool still takes, counting what was written but is not on it yet.
//!
//! Free space lags behind: bytes written into a volume wait in memory, and the disk shows them only
//! when they arrive. The kernel's quota counters know them at once, so whoever watches the room adds
//! them up. Numbers come from the two filesystems, the loop file and those counters.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use super::Pool;
use crate::config::Backend;
use crate::error::{Context, PoolError};
use crate::space;
use crate::volume::VolumeId;

/// With this much room beyond the reserve a rough figure is enough.
const COMFORT_BYTES: i64 = 8 << 30;
/// The part of a pool's own filesystem that is kept free in it, at most the host's reserve.
const POOL_RESERVE_DIVISOR: u64 = 50;

/// What is left once everything written so far is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headroom {
    /// Bytes that can still be taken in before the disk, or the pool on it, is full.
    pub bytes: u64,
    /// The same before the reserve is touched; below zero it has been.
    pub beyond_reserve: i64,
    /// Bytes of the loop file that hold nothing and could be given back to the host.
    pub idle_bytes: u64,
}

/// The figures a headroom is worked out from.
#[derive(Debug, Clone, Copy)]
struct Figures {
    pool_total: u64,
    pool_used: u64,
    pool_free: u64,
    host_free: u64,
    reserve: u64,
    /// Bytes the host has set aside for the loop file; `None` without one.
    backed: Option<u64>,
    /// Written, and not on disk yet.
    waiting: u64,
    /// Of the loop file, what is set aside ahead of use.
    margin: u64,
}

impl Figures {
    fn headroom(&self) -> Headroom {
        let host_demand = match self.backed {
            // What lies in the pool may also be promised space that was never written.
            Some(backed) => (self.pool_used.saturating_add(self.waiting))
                .saturating_sub(backed)
                .max(self.waiting),
            None => self.waiting,
        };
        let on_host = signed(self.host_free) - signed(host_demand);
        let in_pool = signed(self.pool_free) - signed(self.waiting);
        let pool_reserve = match self.backed {
            Some(_) => self.reserve.min(self.pool_total / POOL_RESERVE_DIVISOR),
            None => self.reserve,
        };
        Headroom {
            bytes: u64::try_from(on_host.min(in_pool)).unwrap_or(0),
            beyond_reserve: (on_host - signed(self.reserve)).min(in_pool - signed(pool_reserve)),
            idle_bytes: self
                .backed
                .unwrap_or(0)
                .saturating_sub(self.pool_used)
                .saturating_sub(self.margin),
        }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Pool {
    /// How much room there is, as of now. Cheap while there is plenty.
    pub fn headroom(&self) -> Result<Headroom, PoolError> {
        let root = &self.inner.root;
        let stat = rustix::fs::statvfs(root).context("statvfs", root)?;
        let (pool_total, pool_free) = space::filesystem(root)?;
        let (host_free, backed) = match self.inner.backend {
            Backend::BtrfsLoop => {
                let image = self.inner.layout.image();
                let blocks = fs::metadata(&image).context("stat", &image)?.blocks();
                let free = space::filesystem(&self.inner.layout.dir)?.1;
                (free, Some(blocks.saturating_mul(512)))
            }
            Backend::BtrfsHost | Backend::Directory => (pool_free, None),
        };
        let mut figures = Figures {
            pool_total,
            pool_used: stat
                .f_blocks
                .saturating_sub(stat.f_bfree)
                .saturating_mul(stat.f_frsize),
            pool_free,
            host_free,
            reserve: self.inner.reserve,
            backed,
            waiting: unwritten_on_host(),
            margin: self.inner.margin.load(Ordering::Relaxed),
        };
        let rough = figures.headroom();
        if rough.beyond_reserve > COMFORT_BYTES {
            return Ok(rough);
        }
        if let Some(waiting) = self.inner.volumes.waiting()? {
            figures.waiting = waiting;
        }
        Ok(figures.headroom())
    }

    /// Sets a limit also below present use: nothing is lost, only writing more fails.
    pub fn force_limit(&self, id: &VolumeId, limit: u64) -> Result<(), PoolError> {
        self.inner.volumes.force_limit(id, limit)
    }
}

/// Everything on this host that waits to be written, whoever wrote it: never less than a pool's part.
fn unwritten_on_host() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let rest = line
                .strip_prefix("Dirty:")
                .or_else(|| line.strip_prefix("Writeback:"))?;
            rest.trim()
                .trim_end_matches("kB")
                .trim()
                .parse::<u64>()
                .ok()
        })
        .sum::<u64>()
        << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn figures() -> Figures {
        Figures {
            pool_total: 100 * GIB,
            pool_used: 10 * GIB,
            pool_free: 90 * GIB,
            host_free: 20 * GIB,
            reserve: 2 * GIB,
            backed: Some(10 * GIB),
            waiting: 0,
            margin: 0,
        }
    }

    #[test]
    fn what_waits_to_be_written_counts_as_written() {
        let idle = figures().headroom();
        assert_eq!((idle.bytes, idle.beyond_reserve), (20 * GIB, 18 << 30));
        let busy = Figures {
            waiting: 19 * GIB,
            ..figures()
        }
        .headroom();
        assert_eq!((busy.bytes, busy.beyond_reserve), (GIB, -(1 << 30)));
        let over = Figures {
            waiting: 30 * GIB,
            ..figures()
        }
        .headroom();
        assert_eq!(over.bytes, 0);
    }

    #[test]
    fn space_promised_in_the_pool_but_not_backed_by_the_host_counts_too() {
        let promised = Figures {
            pool_used: 25 * GIB,
            ..figures()
        }
        .headroom();
        assert_eq!(promised.bytes, 5 * GIB);
        // Deleted data that the file still holds does not make new writes free.
        let idle = Figures {
            pool_used: GIB,
            waiting: 5 * GIB,
            ..figures()
        }
        .headroom();
        assert_eq!((idle.bytes, idle.idle_bytes), (15 * GIB, 9 * GIB));
    }

    #[test]
    fn a_pool_smaller_than_the_host_keeps_its_own_small_reserve() {
        let tight = Figures {
            pool_free: 3 * GIB,
            host_free: 500 * GIB,
            reserve: 10 * GIB,
            ..figures()
        };
        assert_eq!(tight.headroom().beyond_reserve, 1 << 30);
        let whole = Figures {
            backed: None,
            host_free: 3 * GIB,
            pool_free: 3 * GIB,
            ..figures()
        };
        assert_eq!(whole.headroom().beyond_reserve, 1 << 30);
    }
}
