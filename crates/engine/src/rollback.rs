//! Putting a sandbox back to a snapshot, in place: same id, same settings, other disk.
//!
//! ```text
//! 1. a copy of the snapshot's volume is made ready        staging/rollback-sbx_…
//!    and, if it is to run, a turn to boot is taken
//! 2. what the sandbox is now is kept as a snapshot        snapshots/snap_… (kept)
//! 3. the record says what is about to happen, flushed     state restoring
//! 4. its processes end, the two volumes are exchanged
//! 5. it is started, and the record says so
//! ```
//! A crash before 3 leaves the sandbox as it was; after it the next engine does 4 and 5 again from
//! the snapshot, whatever was done of them: nothing that ran since was acknowledged.

use std::sync::Arc;

use cove_isolation::BootTurn;
use cove_model::lifecycle::Step;
use cove_model::{EventKind, State};
use cove_pool::DiskSource;
use cove_runner_api::{RollbackRequest, RolledBack, RunnerError, SandboxView};
use tokio::task::spawn_blocking;

use crate::commitments::RunPromise;
use crate::engine::{Engine, Inner};
use crate::error::{from_pool, internal};
use crate::inherited::room;
use crate::origin::Starting;
use crate::record::{Durability, Record, Restoring};
use crate::sandbox::Sandbox;
use crate::secrets::fresh_placeholders;
use crate::snapshots::take::Taking;
use crate::snapshots::{Claim, Snapshot, SnapshotHold, staging};
use crate::volumes::Draft;

impl Engine {
    pub(crate) async fn roll_back(
        &self,
        request: RollbackRequest,
    ) -> Result<RolledBack, RunnerError> {
        let claim = self.inner.snapshots.claim(&request.keep)?;
        let sandbox = self.inner.find(&request.sandbox)?;
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            engine.inner.roll_back(&sandbox, &claim, request).await
        });
        task.await.map_err(internal)?
    }

    /// Finishes the rollbacks that a crash cut short. After the sweep, before serving.
    pub(crate) async fn finish_rollbacks(&self) {
        for sandbox in self.inner.all() {
            if sandbox.state() != State::Restoring {
                continue;
            }
            let _operation = sandbox.operation.lock().await;
            self.inner.finish_rollback(&sandbox).await;
        }
    }
}

impl Inner {
    async fn roll_back(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        claim: &Claim,
        request: RollbackRequest,
    ) -> Result<RolledBack, RunnerError> {
        sandbox.check(Step::Rollback)?;
        let target = self.snapshots.hold(&request.to).await?;
        let record = sandbox.record();
        let tier = &record.spec.isolation;
        if request.memory && self.memory_of(&target.snapshot, tier)?.is_none() {
            let message = format!(
                "snapshot {} has no memory; roll back to its disk instead",
                request.to
            );
            return Err(RunnerError::Invalid { message });
        }
        self.inherit(&target.snapshot, record.limits.disk_mb)
            .await?;
        let ran = matches!(record.state, State::Running | State::Frozen | State::Paused);
        let run = ran || request.memory;
        // Room to run is asked for before anything is touched.
        if run {
            self.ready_promise(sandbox, &record)?;
        }
        let restoring = Restoring {
            to: request.to.clone(),
            kept: request.keep.clone(),
            memory: request.memory,
            run,
        };
        let prepared = async {
            let draft = self.prepare(sandbox, &target.snapshot).await?;
            // While the old machine runs: where no turn can be had it goes on.
            let turn = match run {
                true => self.boot_turn(&record).await?,
                false => None,
            };
            let kept = self.keep(sandbox, claim).await?;
            sandbox.advance(Step::Rollback, None, Durability::Flushed, |record| {
                record.restoring = Some(restoring);
            })?;
            Ok::<_, RunnerError>((draft, turn, kept))
        };
        let (draft, turn, kept) = match prepared.await {
            Ok(prepared) => prepared,
            Err(error) => {
                self.go_on(sandbox, ran && record.state != State::Paused)
                    .await;
                return Err(error);
            }
        };
        let wanted = Become {
            memory: request.memory,
            run,
            // Kept for the undo, which must not wait for another.
            turn: turn.clone(),
        };
        if let Err(error) = self.become_of(sandbox, &target, Some(draft), wanted).await {
            return Err(self.undo(sandbox, &kept, (ran, turn), error).await);
        }
        drop(turn);
        sandbox.emit(EventKind::RolledBack {
            to: request.to,
            kept: request.keep,
        });
        Ok(RolledBack {
            sandbox: sandbox.view(),
            kept: self.view_of(kept).await?,
        })
    }

    /// A copy of a snapshot's volume that only has to be put in place.
    async fn prepare(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        snapshot: &Arc<Snapshot>,
    ) -> Result<Draft, RunnerError> {
        let draft = Draft::new(&self.pool, staging("rollback", sandbox.id.as_str()));
        let (inner, source) = (Arc::clone(self), snapshot.volume());
        let disk_mb = sandbox.record().limits.disk_mb;
        let limit = room(disk_mb, snapshot.weight());
        let limit = self.disk_limits.then_some(limit);
        spawn_blocking(move || {
            inner.pool.delete(draft.id())?;
            let source = DiskSource::CopyOf(source);
            inner.pool.ready_disk(draft.id(), &source, limit)?;
            Ok(draft)
        })
        .await
        .map_err(internal)?
        .map_err(from_pool)
    }

    /// Keeps what a sandbox is now, with its memory where that can be had, and leaves it stopped.
    async fn keep(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        claim: &Claim,
    ) -> Result<Arc<Snapshot>, RunnerError> {
        let mut taking = Taking {
            memory: matches!(sandbox.state(), State::Running | State::Frozen)
                && self.tier_of(&sandbox.record())?.capabilities().memory,
            unless_unchanged: false,
            hold: true,
        };
        if taking.memory {
            match self.take(sandbox, claim, taking).await {
                Err(error @ RunnerError::NoCapacity { .. }) => return Err(error),
                Err(error) => {
                    // The disk can always be kept; that processes could not is no reason to refuse.
                    sandbox.emit(EventKind::CaptureFailed {
                        reason: error.to_string(),
                    });
                    taking.memory = false;
                }
                kept => return kept,
            }
        }
        self.take(sandbox, claim, taking).await
    }

    /// Makes sure that the sandbox holds a promise to run.
    pub(crate) fn ready_promise(
        &self,
        sandbox: &Sandbox,
        record: &Record,
    ) -> Result<(), RunnerError> {
        let mut held = sandbox.run_promise.lock();
        if held.is_none() {
            *held = Some(self.commitments.promise_run(&record.limits)?);
        }
        Ok(())
    }

    /// Nothing came of it: what ran goes on, what did not gives its promise back.
    async fn go_on(&self, sandbox: &Sandbox, ran: bool) {
        match sandbox.machine() {
            Some(machine) if ran => {
                if sandbox.state() != State::Frozen
                    && let Err(error) = machine.thaw().await
                {
                    tracing::debug!(sandbox = %sandbox.id, %error, "cannot thaw a sandbox");
                }
            }
            _ => drop(take_promise(sandbox)),
        }
    }

    /// Ends what runs, puts a snapshot's state in its place and starts that.
    async fn become_of(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        hold: &SnapshotHold,
        draft: Option<Draft>,
        wanted: Become,
    ) -> Result<SandboxView, RunnerError> {
        let target = &hold.snapshot;
        let (image, _image_hold) = self.hold_image(target.record.image.as_str())?;
        let draft = match draft {
            Some(draft) => draft,
            None => self.prepare(sandbox, target).await?,
        };
        // The watcher gives the promise back with the processes; it is for the next ones.
        let promise = take_promise(sandbox);
        sandbox.end_machine().await?;
        *sandbox.run_promise.lock() = promise.filter(|_| wanted.run);
        let (pool, volume) = (self.pool.clone(), sandbox.volume());
        spawn_blocking(move || match pool.exists(&volume)? {
            true => pool.swap(&volume, draft.id()),
            false => pool.rename(draft.id(), &volume),
        })
        .await
        .map_err(internal)?
        .map_err(from_pool)?;
        let inherited_bytes = target.weight();
        sandbox.update(Durability::Written, |record| {
            record.inherited_bytes = inherited_bytes;
            // What the snapshot remembers of them is worthless from here on.
            record.placeholders = fresh_placeholders(&record.spec);
            record.accounts.clone_from(&target.record.accounts);
        })?;
        let arrived = |record: &mut Record| {
            record.image = image.id.clone();
            record.image_env.clone_from(&image.config.env);
            record.image_user.clone_from(&image.config.user);
            record.image_workdir.clone_from(&image.config.workdir);
            record.parent = Some(target.record.id.clone());
            record.grown_from_snapshot = true;
            record.snapshotted = None;
            record.memory = None;
            record.restoring = None;
        };
        self.correct_disk(sandbox, sandbox.record().limits.disk_mb << 20);
        if !wanted.run {
            sandbox.advance(
                Step::Restored,
                Some("rolled back".into()),
                Durability::Flushed,
                arrived,
            )?;
            return Ok(sandbox.view());
        }
        let starting = Starting {
            memory: match wanted.memory {
                true => self.memory_of(target, &sandbox.record().spec.isolation)?,
                false => None,
            },
            turn: wanted.turn,
            ..Starting::own()
        };
        let machine = self.boot(sandbox, &image, starting).await?;
        // What it writes from now on is acknowledged: no power loss may put the snapshot back again.
        self.booted(sandbox, machine, Durability::Flushed, arrived)
            .await
    }

    /// The snapshot could not be started: back to what was kept. Returns what to tell the caller.
    async fn undo(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        kept: &Arc<Snapshot>,
        (ran, turn): (bool, Option<BootTurn>),
        error: RunnerError,
    ) -> RunnerError {
        tracing::warn!(sandbox = %sandbox.id, %error, "a rollback failed; undoing it");
        let undone = async {
            let hold = self.snapshots.hold(&kept.record.id).await?;
            let record = sandbox.record();
            let memory = self.memory_of(kept, &record.spec.isolation);
            let memory = ran && memory.ok().flatten().is_some();
            if ran {
                self.ready_promise(sandbox, &record)?;
            }
            let wanted = Become {
                memory,
                run: ran,
                turn,
            };
            self.become_of(sandbox, &hold, None, wanted).await
        };
        if let Err(second) = undone.await {
            self.give_up(sandbox, &second.to_string());
        }
        error
    }

    async fn finish_rollback(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        let record = sandbox.record();
        let Some(intent) = record.restoring.clone() else {
            self.give_up(sandbox, "the record of its rollback is lost");
            return;
        };
        let finished = async {
            let (hold, memory) = match self.snapshots.hold(&intent.to).await {
                Ok(hold) => (hold, intent.memory),
                Err(_) => (self.snapshots.hold(&intent.kept).await?, false),
            };
            let run = intent.run && self.ready_promise(sandbox, &record).is_ok();
            let wanted = Become {
                memory: memory && run,
                run,
                // Nobody else boots yet.
                turn: None,
            };
            let to = hold.snapshot.record.id.clone();
            self.become_of(sandbox, &hold, None, wanted).await?;
            sandbox.emit(EventKind::RolledBack {
                to,
                kept: intent.kept,
            });
            Ok::<_, RunnerError>(())
        };
        if let Err(error) = finished.await {
            self.give_up(sandbox, &error.to_string());
        }
    }

    fn give_up(&self, sandbox: &Sandbox, reason: &str) {
        drop(take_promise(sandbox));
        let reason = Some(format!("the rollback failed: {reason}"));
        let stepped = sandbox.advance(Step::BootFailed, reason, Durability::Flushed, |record| {
            record.restoring = None;
            record.memory = None;
        });
        if let Err(error) = stepped {
            tracing::error!(sandbox = %sandbox.id, %error, "cannot record a failed rollback");
        }
    }

    /// Books what a sandbox's volume may hold now.
    pub(crate) fn correct_disk(&self, sandbox: &Sandbox, bytes: u64) {
        if let Some(promise) = sandbox.disk_promise.lock().as_mut() {
            promise.correct(bytes);
        }
    }
}

#[derive(Debug)]
struct Become {
    memory: bool,
    run: bool,
    /// To boot it.
    turn: Option<BootTurn>,
}

fn take_promise(sandbox: &Sandbox) -> Option<RunPromise> {
    sandbox.run_promise.lock().take()
}
