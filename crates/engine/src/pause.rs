//! Holding sandboxes still: frozen, with their memory where it is, or paused, with it on disk.
//!
//! A pause gives the processes up only once their image is on disk and a trial restore of it went
//! through. A resume puts a copy of the volume aside first, so that the image and the disk that belongs
//! to it stay as they are until the record says that the sandbox runs; a failure, or the next engine
//! after a crash, puts the copy back in its place.

use std::sync::Arc;

use cove_isolation::{Afterwards, Machine, Restore};
use cove_model::lifecycle::Step;
use cove_model::{EventKind, SandboxId, State};
use cove_pool::{Access, DiskSource, Pool, PoolError, VolumeId};
use cove_runner_api::{RunnerError, SandboxView};
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner};
use crate::error::{from_isolation, from_pool, internal};
use crate::inherited::room;
use crate::record::{Durability, MemoryRecord, Record};
use crate::sandbox::Sandbox;
use crate::snapshots::staging;
use crate::volumes::Draft;

/// What captured memory may take on disk beyond the memory in use.
pub const CAPTURE_SLACK_BYTES: u64 = 64 << 20;

impl Engine {
    pub(crate) async fn freeze_sandbox(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let sandbox = self.inner.find(id)?;
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            if sandbox.state() == State::Frozen {
                return Ok(sandbox.view());
            }
            sandbox.check(Step::Freeze)?;
            let machine = running(&sandbox, "freeze")?;
            let frozen = machine.freeze().await;
            let stepped = frozen
                .map_err(from_isolation)
                .and_then(|()| sandbox.advance(Step::Freeze, None, Durability::Written, |_| {}));
            if let Err(error) = stepped {
                // Some may have been stopped before it failed.
                let _ = machine.thaw().await;
                return Err(error);
            }
            Ok(sandbox.view())
        });
        task.await.map_err(internal)?
    }

    pub(crate) async fn pause_sandbox(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let sandbox = self.inner.find(id)?;
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            if sandbox.state() == State::Paused {
                return Ok(sandbox.view());
            }
            engine.inner.pause(&sandbox).await
        });
        task.await.map_err(internal)?
    }

    /// Callers that come meanwhile wait for the same lock and find it done.
    pub(crate) async fn resume_sandbox(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let sandbox = self.inner.find(id)?;
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            match sandbox.state() {
                State::Running => Ok(sandbox.view()),
                State::Frozen => {
                    running(&sandbox, "resume")?
                        .thaw()
                        .await
                        .map_err(from_isolation)?;
                    sandbox.advance(Step::Thaw, None, Durability::Written, |_| {})?;
                    Ok(sandbox.view())
                }
                _ => engine.inner.resume(&sandbox).await,
            }
        });
        task.await.map_err(internal)?
    }
}

impl Inner {
    async fn pause(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<SandboxView, RunnerError> {
        sandbox.check(Step::Pause)?;
        let machine = running(sandbox, "pause")?;
        self.check_memory(&sandbox.record())?;
        sandbox.advance(Step::Pause, None, Durability::Written, |_| {})?;
        let record = sandbox.record();
        let captured = self.capture(&record, machine.as_ref()).await;
        let paused = captured.and_then(|memory| {
            let reason = Some("paused on request".into());
            sandbox.advance(Step::Captured, reason, Durability::Flushed, |record| {
                record.memory = Some(memory);
            })
        });
        if let Err(error) = paused {
            self.stay_awake(sandbox, machine.as_ref(), &error).await;
            return Err(error);
        }
        self.correct_disk(sandbox, sandbox.record().disk_bytes());
        sandbox.end_machine().await?;
        Ok(sandbox.view())
    }

    /// Writes the memory into the sandbox's volume, on disk and proven; the machine stays stopped.
    async fn capture(
        self: &Arc<Self>,
        record: &Record,
        machine: &dyn Machine,
    ) -> Result<MemoryRecord, RunnerError> {
        let volume = crate::sandbox::volume_of(&record.id);
        let disk = self.pool.disk(&volume);
        let dir = disk.memory();
        let used = machine.usage().await.map_err(from_isolation)?.memory_bytes;
        let room = room(record.limits.disk_mb, record.inherited_bytes) + used + CAPTURE_SLACK_BYTES;
        let (inner, limited) = (Arc::clone(self), volume.clone());
        let stale = staging("resume", record.id.as_str());
        spawn_blocking(move || {
            // A copy that an earlier resume could not clear away must not be taken for this one's.
            inner.pool.delete(&stale)?;
            inner.pool.check_room(used)?;
            if inner.disk_limits {
                inner.pool.set_limit(&limited, Some(room))?;
            }
            disk.make_memory()
        })
        .await
        .map_err(internal)?
        .map_err(from_pool)?;
        // The guest has a part in its capture, also when it was frozen before.
        machine.thaw().await.map_err(from_isolation)?;
        // The machine is held until the end, so the disk needs no copy of this very moment.
        let captured = machine
            .capture(&dir, Box::new(|| Ok(())), Afterwards::Hold)
            .await
            .map_err(from_isolation)?;
        let trial = Draft::new(&self.pool, staging("trial", record.id.as_str()));
        let (pool, source, target) = (self.pool.clone(), volume.clone(), trial.id().clone());
        spawn_blocking(move || {
            pool.delete(&target)?;
            // Puts the images on disk on its way.
            pool.snapshot(&source, &target, Access::Writable)?;
            pool.sync(&source)
        })
        .await
        .map_err(internal)?
        .map_err(from_pool)?;
        let (image, _hold) = self.hold_image(record.image.as_str())?;
        let boot = self.plan_boot(
            record,
            &image,
            trial.id().clone(),
            DiskSource::Own,
            record.grown_mb,
        );
        let proven = self
            .tier_of(record)?
            .prove(Restore { boot, memory: dir })
            .await
            .map_err(from_isolation);
        spawn_blocking(move || drop(trial))
            .await
            .map_err(internal)?;
        proven?;
        Ok(MemoryRecord {
            bytes: captured.memory_bytes,
            needs: captured.needs,
            grown_mb: record.grown_mb,
        })
    }

    /// A pause came to nothing: the sandbox goes on as it was.
    async fn stay_awake(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        machine: &dyn Machine,
        why: &RunnerError,
    ) {
        if let Err(error) = machine.thaw().await {
            tracing::error!(sandbox = %sandbox.id, %error, "cannot thaw a sandbox after a failed pause");
        }
        self.drop_memory(sandbox).await;
        sandbox.emit(EventKind::CaptureFailed {
            reason: why.to_string(),
        });
        // Refused when PID 1 ended meanwhile: then it is stopped already.
        let _ = sandbox.advance(Step::CaptureFailed, None, Durability::Written, |_| {});
    }

    /// Clears memory out of a sandbox's volume. What fails is made up for by the next boot.
    async fn drop_memory(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        let (inner, volume) = (Arc::clone(self), sandbox.volume());
        let record = sandbox.record();
        let disk_bytes = record.limits.disk_mb << 20;
        let quota_bytes = room(record.limits.disk_mb, record.inherited_bytes);
        let dropped = spawn_blocking(move || {
            inner.pool.disk(&volume).clear_memory()?;
            // What was cleared is given back with the next transaction.
            inner.pool.sync(&volume)?;
            match inner.disk_limits {
                true => inner.pool.set_limit(&volume, Some(quota_bytes)),
                false => Ok(()),
            }
        })
        .await;
        match dropped {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(sandbox = %sandbox.id, %error, "cannot remove all saved memory");
            }
            Err(error) => {
                tracing::warn!(sandbox = %sandbox.id, %error, "cannot remove saved memory");
            }
        }
        self.correct_disk(sandbox, disk_bytes);
    }

    /// Stopping what is paused gives its memory up and keeps its disk.
    pub(crate) async fn stop_paused(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
    ) -> Result<SandboxView, RunnerError> {
        sandbox.end_machine().await?;
        let reason = || Some("stopped on request".into());
        sandbox.advance(Step::Stop, reason(), Durability::Written, |_| {})?;
        sandbox.advance(Step::Exited, reason(), Durability::Flushed, |record| {
            record.memory = None;
        })?;
        self.drop_memory(sandbox).await;
        Ok(sandbox.view())
    }

    async fn resume(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<SandboxView, RunnerError> {
        sandbox.check(Step::Resume)?;
        // An engine that was killed between the record and the end of the processes left them.
        sandbox.end_machine().await?;
        let record = sandbox.record();
        let memory = record.memory.clone().ok_or_else(|| {
            internal("the record of its memory is lost; stop it to keep the disk")
        })?;
        self.tiers.fits(&memory.needs).map_err(from_isolation)?;
        let (image, _hold) = self.hold_image(record.image.as_str())?;
        let grown_mb = memory
            .grown_mb
            .filter(|grown| *grown > record.limits.memory_mb)
            .map(|grown| grown.min(record.limits.memory_ceiling_mb()));
        let mut wanted = record.limits.clone();
        wanted.memory_mb = grown_mb.unwrap_or(wanted.memory_mb);
        let promise = self.commitments.promise_run(&wanted)?;
        *sandbox.run_promise.lock() = Some(promise);
        sandbox.advance(Step::Resume, None, Durability::Written, |_| {})?;
        match self.revive(sandbox, &record, &image, grown_mb).await {
            Ok(()) => {}
            Err(error) => {
                sandbox.run_promise.lock().take();
                sandbox.advance(
                    Step::BootFailed,
                    Some(format!(
                        "cannot resume it: {error}; `stop` discards its memory and keeps the disk"
                    )),
                    Durability::Written,
                    |_| {},
                )?;
                return Err(error);
            }
        }
        self.correct_disk(sandbox, record.limits.disk_mb << 20);
        Ok(sandbox.view())
    }

    /// Brings the processes back on the sandbox's own volume, or leaves everything as it was.
    async fn revive(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        record: &Record,
        image: &cove_image::Image,
        grown_mb: Option<u64>,
    ) -> Result<(), RunnerError> {
        let tier = self.tier_of(record)?;
        let volume = sandbox.volume();
        let aside = staging("resume", sandbox.id.as_str());
        let (pool, source, copy) = (self.pool.clone(), volume.clone(), aside.clone());
        spawn_blocking(move || {
            put_back(&pool, &source, &copy)?;
            pool.snapshot(&source, &copy, Access::Writable)
        })
        .await
        .map_err(internal)?
        .map_err(from_pool)?;
        // The sandbox's own volume is cleared of the memory, which is read from the copy.
        let boot = self.plan_boot(record, image, volume.clone(), DiskSource::Own, grown_mb);
        let restore = Restore {
            boot,
            memory: self.pool.disk(&aside).memory(),
        };
        let restored = match tier.restore(restore).await {
            // Flushed before the copy goes: a power loss must not bring back what was before.
            Ok(machine) => self
                .booted(sandbox, machine, Durability::Flushed, |record| {
                    record.memory = None;
                    record.grown_mb = grown_mb;
                })
                .await
                .map(drop),
            Err(error) => Err(from_isolation(error)),
        };
        let (inner, failed, record) = (Arc::clone(self), restored.is_err(), record.clone());
        let settled = spawn_blocking(move || {
            if !failed {
                inner.pool.delete(&aside)?;
                return Ok(None);
            }
            let mut record = record;
            record.inherited_bytes = inner.handed_down(&volume, &record)?;
            inner.hand_account_down(&volume, &mut record)?;
            put_back(&inner.pool, &volume, &aside)?;
            Ok::<_, PoolError>(Some((record.inherited_bytes, record.accounts)))
        })
        .await
        .map_err(internal)?;
        match settled {
            Ok(Some((inherited, accounts))) => sandbox.update(Durability::Written, |record| {
                record.inherited_bytes = inherited;
                record.accounts = accounts;
            })?,
            Ok(None) => {}
            Err(error) => {
                tracing::error!(sandbox = %sandbox.id, %error, "cannot remove the copy made for a resume");
            }
        }
        restored
    }
}

/// Puts the copy that a resume set aside in its place again, if there is one. The copy is there exactly
/// as long as it is needed, so that this may end anywhere and be begun anew.
pub(crate) fn put_back(pool: &Pool, volume: &VolumeId, aside: &VolumeId) -> Result<(), PoolError> {
    if pool.exists(aside)? {
        pool.delete(volume)?;
        pool.rename(aside, volume)?;
    }
    Ok(())
}

fn running(sandbox: &Sandbox, request: &str) -> Result<Arc<dyn Machine>, RunnerError> {
    sandbox.machine().ok_or_else(|| RunnerError::Conflict {
        request: request.into(),
        state: sandbox.state(),
    })
}
