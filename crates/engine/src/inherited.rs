//! What a disk came with counts against its limit.
//!
//! The kernel charges bytes to the volume that wrote them, so a copy of a snapshot begins with nothing on
//! its account however much it shows. Left at that, a chain of forks could hold any multiple of its
//! limit. So each snapshot remembers what its state weighs, each sandbox what it inherited, and the
//! kernel is given the difference:
//!
//! ```text
//! quota of the volume = disk limit − inherited
//! weight of a snapshot = inherited + what the volume was charged
//! ```
//!
//! Weights only grow, because nobody hears of inherited data that is deleted. Before one is the reason for a
//! refusal, and when a sandbox has nearly used up its room, what its disk holds is counted: it has not
//! inherited more than that. Files that are deleted and still open are not seen; they go with their process.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use cove_model::{SandboxId, State};
use cove_pool::{Access, PoolError, VolumeId};
use cove_runner_api::RunnerError;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::engine::Inner;
use crate::error::{from_pool, internal};
use crate::record::Durability;
use crate::sandbox::Sandbox;
use crate::snapshots::{Snapshot, staging};
use crate::volumes::Draft;

/// What a copy may write in any case: directories and journals of a full disk need something to
/// be booted and to be tidied up in.
const FLOOR_BYTES: u64 = 16 << 20;
/// How often sandboxes that inherited something are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A disk is counted when less than this part of its room is left.
const NEAR_DIVISOR: u64 = 8;
/// How long a disk that was counted is left alone.
const COUNT_PAUSE: Duration = Duration::from_secs(15);
/// What counting one disk may take; beyond it what was known stays.
const COUNT_MAX: Duration = Duration::from_secs(10);

/// What a volume may be charged whose sandbox has this limit and came with `inherited` bytes.
pub fn room(disk_mb: u64, inherited: u64) -> u64 {
    match inherited {
        0 => disk_mb << 20,
        _ => (disk_mb << 20).saturating_sub(inherited).max(FLOOR_BYTES),
    }
}

impl Inner {
    /// What a sandbox with this limit inherits from a snapshot; refused when that is more than it may
    /// hold.
    pub(crate) async fn inherit(
        self: &Arc<Self>,
        snapshot: &Arc<Snapshot>,
        disk_mb: u64,
    ) -> Result<u64, RunnerError> {
        let weight = snapshot.weight();
        if !self.disk_limits || weight <= disk_mb << 20 {
            return Ok(weight);
        }
        let (inner, counted) = (Arc::clone(self), Arc::clone(snapshot));
        spawn_blocking(move || inner.weigh(&counted))
            .await
            .map_err(internal)?
            .map_err(from_pool)?;
        let weight = snapshot.weight();
        if weight > (disk_mb << 20) + FLOOR_BYTES {
            let needed = weight.div_ceil(1 << 20);
            return Err(RunnerError::Invalid {
                message: format!(
                    "snapshot {} holds {needed} MB and the disk limit is {disk_mb} MB; allow at least {needed} MB",
                    snapshot.record.id
                ),
            });
        }
        Ok(weight)
    }

    /// Counts what a snapshot holds, once. Blocking.
    fn weigh(&self, snapshot: &Snapshot) -> Result<(), PoolError> {
        if snapshot.counted.get().is_some() {
            return Ok(());
        }
        let volume = snapshot.volume();
        if let Some(bytes) = self.count(&volume)? {
            let _ = snapshot.counted.set(bytes);
        }
        Ok(())
    }

    /// What a volume holds besides memory; nothing when that takes too long.
    fn count(&self, volume: &VolumeId) -> Result<Option<u64>, PoolError> {
        let counted = self.pool.count(volume, Instant::now() + COUNT_MAX)?;
        let memory = self.pool.disk(volume).memory_bytes();
        Ok(counted.map(|bytes| bytes.saturating_sub(memory)))
    }

    /// What a sandbox inherits when a copy of its volume takes the volume's place. Blocking.
    pub(crate) fn handed_down(
        &self,
        volume: &VolumeId,
        record: &crate::record::Record,
    ) -> Result<u64, PoolError> {
        if !self.disk_limits {
            return Ok(0);
        }
        let charged = self.pool.usage(volume)?.referenced_bytes;
        Ok(record.inherited_bytes + charged.saturating_sub(record.memory_bytes()))
    }

    /// Counts a running sandbox's disk, and lets it use what it has deleted of what it inherited.
    fn recount(&self, sandbox: &Sandbox) -> Result<(), PoolError> {
        let Ok(_operation) = sandbox.operation.try_lock() else {
            return Ok(());
        };
        let volume = sandbox.volume();
        // Of a copy that stands still: files of a live one could be moved out of the count's way.
        let copy = Draft::new(&self.pool, staging("count", sandbox.id.as_str()));
        self.pool.delete(copy.id())?;
        self.pool.sync(&volume)?;
        self.pool.snapshot(&volume, copy.id(), Access::ReadOnly)?;
        let Some(holds) = self.count(copy.id())? else {
            return Ok(());
        };
        // What was deleted meanwhile is charged as long as the copy holds it.
        drop(copy);
        self.pool.sync(&volume)?;
        let known = sandbox.record().inherited_bytes;
        // Nobody can tell what of it the sandbox wrote itself: what it is charged may be deleted and still
        // open, and would pay for what it inherited. All of it may be inherited, and no more than that.
        let inherited = holds.min(known);
        if inherited == known {
            return Ok(());
        }
        let written = sandbox.update(Durability::Written, |record| {
            record.inherited_bytes = inherited;
        });
        match written {
            Ok(()) => self.apply_disk_limit(sandbox),
            Err(error) => {
                tracing::warn!(sandbox = %sandbox.id, %error, "cannot record what a sandbox inherits");
                Ok(())
            }
        }
    }

    /// Whether there is little left to write and something inherited to find gone.
    fn is_nearly_full(&self, sandbox: &Sandbox) -> bool {
        let record = sandbox.record();
        let awake = matches!(record.state, State::Running | State::Stopped);
        if record.inherited_bytes == 0 || !awake {
            return false;
        }
        let room = record.quota_bytes();
        self.pool.usage(&sandbox.volume()).is_ok_and(|usage| {
            let left = room.saturating_sub(usage.referenced_bytes);
            left < (room / NEAR_DIVISOR).max(FLOOR_BYTES)
        })
    }
}

/// The running counter.
#[derive(Default)]
pub struct Counter {
    task: Mutex<Option<(CancellationToken, JoinHandle<()>)>>,
}

impl Counter {
    pub fn start(inner: &Arc<Inner>) {
        if !inner.disk_limits {
            return;
        }
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(Arc::downgrade(inner), stop.clone()));
        *inner.counter.task.lock() = Some((stop, task));
    }

    pub async fn stop(&self) {
        let running = self.task.lock().take();
        if let Some((stop, task)) = running {
            stop.cancel();
            let _ = task.await;
        }
    }
}

async fn run(inner: Weak<Inner>, stop: CancellationToken) {
    let mut counted = HashMap::<SandboxId, Instant>::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let Some(inner) = inner.upgrade() else { return };
        let looked = spawn_blocking(move || {
            counted.retain(|_, at| at.elapsed() < COUNT_PAUSE);
            for sandbox in inner.all() {
                if counted.contains_key(&sandbox.id) || !inner.is_nearly_full(&sandbox) {
                    continue;
                }
                match inner.recount(&sandbox) {
                    Ok(()) | Err(PoolError::NotFound { .. }) => {}
                    Err(error) => {
                        tracing::warn!(sandbox = %sandbox.id, %error, "cannot measure a sandbox's disk");
                    }
                }
                counted.insert(sandbox.id.clone(), Instant::now());
            }
            counted
        })
        .await;
        counted = match looked {
            Ok(counted) => counted,
            Err(error) => {
                tracing::error!(%error, "disk usage is no longer measured");
                return;
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_inherited_is_taken_from_the_room_and_something_is_always_left() {
        assert_eq!(room(100, 0), 100 << 20);
        assert_eq!(room(100, 30 << 20), 70 << 20);
        assert_eq!(room(100, 99 << 20), FLOOR_BYTES);
        assert_eq!(room(100, 200 << 20), FLOOR_BYTES);
        assert_eq!(room(1, 0), 1 << 20, "a limit of its own is what it says");
    }
}
