//! Taking snapshots of sandboxes in any settled state.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cove_isolation::{Afterwards, Captured, IsolationError, Machine};
use cove_model::{EventKind, Resources, SnapshotId, State};
use cove_pool::{Access, Account, PoolError};
use cove_runner_api::{RunnerError, SnapshotRequest, SnapshotView};
use time::OffsetDateTime;
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner};
use crate::error::{from_isolation, from_pool, from_write, internal};
use crate::pause::CAPTURE_SLACK_BYTES;
use crate::record::{Durability, MemoryRecord, Record, Snapshotted};
use crate::sandbox::Sandbox;
use crate::volumes::Draft;

use super::{Claim, Sizes, Snapshot, SnapshotRecord, staging, volume_of};

/// What to take, and what becomes of the sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Taking {
    pub memory: bool,
    pub unless_unchanged: bool,
    /// Leave what ran stopped, for a caller that is about to end it.
    pub hold: bool,
}

/// What was copied, before it has a record.
struct Taken {
    memory: Option<MemoryRecord>,
    /// Whom the kernel charges for what was written for it alone.
    account: Option<Account>,
    stopped: Duration,
    /// The sandbox's volume right after the copy.
    version: u64,
    weight_bytes: u64,
}

impl Engine {
    pub(crate) async fn take_snapshot(
        &self,
        request: SnapshotRequest,
    ) -> Result<SnapshotView, RunnerError> {
        let claim = self.inner.snapshots.claim(&request.id)?;
        let sandbox = self.inner.find(&request.sandbox)?;
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            let taking = Taking {
                memory: request.memory,
                unless_unchanged: request.unless_unchanged,
                hold: false,
            };
            let snapshot = engine.inner.take(&sandbox, &claim, taking).await?;
            engine.inner.view_of(snapshot).await
        });
        task.await.map_err(internal)?
    }
}

impl Inner {
    pub(crate) async fn view_of(
        self: &Arc<Self>,
        snapshot: Arc<Snapshot>,
    ) -> Result<SnapshotView, RunnerError> {
        let inner = Arc::clone(self);
        // The figures of a new one are known already; this finds none that takes long.
        spawn_blocking(move || inner.snapshot_view(&snapshot, Some(Instant::now())))
            .await
            .map_err(internal)
    }

    /// Takes a snapshot of a sandbox whose operation lock the caller holds. On disk, record
    /// included, when this returns.
    pub(crate) async fn take(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        claim: &Claim,
        taking: Taking,
    ) -> Result<Arc<Snapshot>, RunnerError> {
        let id = claim.id.clone();
        let record = sandbox.record();
        let refused = |request: &str| RunnerError::Conflict {
            request: request.into(),
            state: record.state,
        };
        let machine = match record.state {
            State::Running | State::Frozen => {
                Some(sandbox.machine().ok_or_else(|| refused("snapshot"))?)
            }
            State::Paused => None,
            State::Stopped | State::Failed if taking.memory => {
                return Err(refused("take a snapshot with memory of"));
            }
            State::Stopped | State::Failed => None,
            _ => return Err(refused("snapshot")),
        };
        let taken = match machine {
            Some(machine) if taking.memory => self.take_full(&id, &record, machine, taking).await?,
            machine => self.take_disk(&id, &record, machine, taking).await?,
        };
        let snapshot = self.acknowledge(&id, &record, &taken).await?;
        sandbox.update(Durability::Written, |record| {
            record.parent = Some(id.clone());
            record.snapshotted = Some(Snapshotted {
                snapshot: id.clone(),
                version: taken.version,
            });
        })?;
        sandbox.emit(EventKind::Snapshotted {
            snapshot: id,
            memory: taken.memory.is_some(),
        });
        Ok(snapshot)
    }

    /// Whether the disk is what it was at the last snapshot, and that one is still there.
    fn is_unchanged(&self, record: &Record, version: u64) -> bool {
        record
            .snapshotted
            .as_ref()
            .is_some_and(|last| last.version == version && self.snapshots.contains(&last.snapshot))
    }

    /// A copy of the disk, of memory too when it lies there already.
    async fn take_disk(
        self: &Arc<Self>,
        id: &SnapshotId,
        record: &Record,
        machine: Option<Arc<dyn Machine>>,
        taking: Taking,
    ) -> Result<Taken, RunnerError> {
        let (volume, target) = (crate::sandbox::volume_of(&record.id), volume_of(id));
        let (inner, source, of) = (Arc::clone(self), volume.clone(), record.clone());
        spawn_blocking(move || {
            // What is dirty goes to disk before anything is stopped, so that the stop is short.
            inner.pool.sync(&source).map_err(from_pool)?;
            if taking.unless_unchanged {
                let version = inner.pool.version(&source).map_err(from_pool)?;
                tracing::debug!(sandbox = %of.id, version, last = ?of.snapshotted, "compared with the last snapshot");
                if inner.is_unchanged(&of, version) {
                    return Err(RunnerError::Unchanged);
                }
            }
            Ok(())
        })
        .await
        .map_err(internal)??;
        let begun = Instant::now();
        let stopped = match machine.filter(|_| record.state == State::Running) {
            Some(machine) => stop(machine).await?,
            None => None,
        };
        let (inner, of) = (Arc::clone(self), record.clone());
        let copied = spawn_blocking(move || {
            inner.pool.snapshot(&volume, &target, Access::ReadOnly)?;
            // Read while nothing runs: what is written from now on must count as a change.
            let version = inner.pool.version(&volume)?;
            Ok((version, inner.handed_down(&volume, &of)?))
        });
        let copied = copied.await.map_err(internal);
        let copied = copied.and_then(|copied| copied.map_err(from_pool));
        if let Some(machine) = &stopped
            && !(taking.hold && copied.is_ok())
            && let Err(error) = machine.thaw().await
        {
            tracing::error!(sandbox = %record.id, %error, "cannot thaw a sandbox after its snapshot");
        }
        let stopped = stopped.map_or(Duration::ZERO, |_| begun.elapsed());
        let (version, weight_bytes) = copied?;
        let memory = record.memory.clone();
        Ok(Taken {
            account: None,
            memory: memory.filter(|_| record.state == State::Paused),
            stopped,
            version,
            weight_bytes,
        })
    }

    /// Memory and disk of the same instant. Memory is written to a volume of its own first, because
    /// the copy of the disk does not exist before everything stands still.
    async fn take_full(
        self: &Arc<Self>,
        id: &SnapshotId,
        record: &Record,
        machine: Arc<dyn Machine>,
        taking: Taking,
    ) -> Result<Taken, RunnerError> {
        self.check_memory(record)?;
        let volume = crate::sandbox::volume_of(&record.id);
        let memory = Draft::new(&self.pool, staging("memory", id.as_str()));
        let draft = Draft::new(&self.pool, staging("draft", id.as_str()));
        let disk = self.pool.disk(memory.id());
        let dir = disk.memory();
        let used = machine.usage().await.map_err(from_isolation)?.memory_bytes;
        let (need, most) = (
            used.saturating_add(CAPTURE_SLACK_BYTES),
            capture_max(&record.limits),
        );
        let limited = self.disk_limits;
        let (pool, memory_id, source) = (self.pool.clone(), memory.id().clone(), volume.clone());
        let made = disk.clone();
        let account = blocking(move || {
            pool.check_room(need)?;
            pool.create(&memory_id)?;
            if limited {
                // No capture touches the reserve, whatever the guest does until it stands still.
                let room = u64::try_from(pool.headroom()?.beyond_reserve).unwrap_or(0);
                pool.set_limit(&memory_id, Some(room.min(most).max(need)))?;
            }
            made.make_memory()?;
            pool.sync(&source)?;
            pool.account(&memory_id)
        })
        .await?;
        let (inner, source, target) = (Arc::clone(self), volume, draft.id().clone());
        let (of, seen) = (record.clone(), Arc::new(OnceLock::new()));
        let at_copy = Arc::clone(&seen);
        let at_rest = Box::new(move || {
            inner
                .pool
                .snapshot(&source, &target, Access::Writable)
                .and_then(|()| inner.pool.version(&source))
                .and_then(|version| Ok((version, inner.handed_down(&source, &of)?)))
                .map(|found| {
                    let _ = at_copy.set(found);
                })
                .map_err(io::Error::other)
        });
        let afterwards = if taking.hold {
            Afterwards::Hold
        } else {
            Afterwards::Continue
        };
        let frozen = record.state == State::Frozen;
        if frozen {
            // The guest has a part in its capture; a moment later it stands still again.
            machine.thaw().await.map_err(from_isolation)?;
        }
        let captured = machine.capture(&dir, at_rest, afterwards).await;
        if frozen && (captured.is_err() || !taking.hold) {
            machine.freeze().await.map_err(from_isolation)?;
        }
        let captured: Captured = captured.map_err(from_isolation)?;
        let (pool, target) = (self.pool.clone(), volume_of(id));
        blocking(move || {
            disk.move_memory(&pool.disk(draft.id()))?;
            pool.rename(draft.id(), &target)?;
            let published = Draft::new(&pool, target.clone());
            pool.set_read_only(&target)?;
            pool.sync(&target)?;
            published.keep();
            draft.keep();
            drop(memory);
            Ok(())
        })
        .await?;
        let (version, weight_bytes) = seen.get().copied().unwrap_or_default();
        Ok(Taken {
            account,
            memory: Some(MemoryRecord {
                bytes: captured.memory_bytes,
                needs: captured.needs,
                grown_mb: record.grown_mb,
            }),
            stopped: Duration::from_micros(captured.stopped_us),
            version,
            weight_bytes,
        })
    }

    /// Writes the record; from then on the snapshot exists.
    async fn acknowledge(
        self: &Arc<Self>,
        id: &SnapshotId,
        record: &Record,
        taken: &Taken,
    ) -> Result<Arc<Snapshot>, RunnerError> {
        let mut new = SnapshotRecord {
            id: id.clone(),
            sandbox: record.id.clone(),
            parent: record.parent.clone(),
            image: record.image.clone(),
            spec: record.spec.clone(),
            created_at: OffsetDateTime::now_utc(),
            memory: taken.memory.clone(),
            stopped_us: u64::try_from(taken.stopped.as_micros()).unwrap_or(u64::MAX),
            weight_bytes: taken.weight_bytes,
            accounts: record.accounts.clone(),
            template_of: None,
        };
        new.accounts.extend(taken.account.map(|account| account.0));
        let (inner, volume) = (Arc::clone(self), crate::sandbox::volume_of(&record.id));
        let memory_bytes = taken.memory.as_ref().map_or(0, |memory| memory.bytes);
        spawn_blocking(move || {
            for of in [&volume, &volume_of(&new.id)] {
                let account = inner.pool.account(of).map_err(from_pool)?;
                new.accounts.extend(account.map(|account| account.0));
            }
            inner.forget_settled(&mut new.accounts);
            let snapshot = inner.publish_snapshot(new)?;
            // Until somebody looks closely: all of its disk is the sandbox's too.
            if let Ok(usage) = inner.pool.usage(&volume) {
                let shared_bytes = usage.referenced_bytes.saturating_sub(memory_bytes);
                *snapshot.sizes.lock() = Some(Sizes {
                    exclusive_bytes: memory_bytes,
                    shared_bytes,
                    at: Instant::now(),
                });
            }
            Ok(snapshot)
        })
        .await
        .map_err(internal)?
    }

    /// Makes a snapshot known whose volume is whole; deletes the volume when that fails. Blocking.
    pub(crate) fn publish_snapshot(
        &self,
        record: SnapshotRecord,
    ) -> Result<Arc<Snapshot>, RunnerError> {
        let volume = Draft::new(&self.pool, volume_of(&record.id));
        let snapshot = self
            .snapshots
            .add(record)
            .map_err(|error| from_write("the snapshot's record", &error))?;
        volume.keep();
        Ok(snapshot)
    }
}

/// The most that memory can take on disk: deleted files that processes hold open are part of it.
fn capture_max(limits: &Resources) -> u64 {
    let mb = limits.memory_ceiling_mb().saturating_add(limits.disk_mb);
    (mb << 20).saturating_add(CAPTURE_SLACK_BYTES)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PoolError> + Send + 'static,
) -> Result<T, RunnerError> {
    spawn_blocking(work)
        .await
        .map_err(internal)?
        .map_err(from_pool)
}

/// Stops a machine for a copy of its disk, and returns it if it stands still now. Not where the tier cannot
/// stop machines: the copy is of one instant anyway, only what programs had not yet handed to the kernel may
/// differ between them.
async fn stop(machine: Arc<dyn Machine>) -> Result<Option<Arc<dyn Machine>>, RunnerError> {
    match machine.freeze().await {
        Ok(()) => Ok(Some(machine)),
        Err(IsolationError::Unsupported(_)) => Ok(None),
        Err(IsolationError::Failed { source, .. })
            if source.kind() == io::ErrorKind::Unsupported =>
        {
            Ok(None)
        }
        Err(error) => {
            // A freeze that took too long may have stopped some.
            let _ = machine.thaw().await;
            Err(from_isolation(error))
        }
    }
}
