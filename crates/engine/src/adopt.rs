//! Taking over what runs and clearing away what was half made, when an engine opens.

use std::sync::Arc;

use cove_isolation::{Adopted, IsolationError, Machine};
use cove_model::{EventKind, SandboxId, SnapshotId, State};
use cove_pool::{Kind, VolumeId};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};

use crate::aside::{NOT_TAKEN_OVER, SetAside};
use crate::ending::end;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::files::Damaged;
use crate::monitor;
use crate::offload;
use crate::pause::put_back;
use crate::record::{Durability, Record};
use crate::sandbox::{Sandbox, volume_of};
use crate::snapshots::staging;

/// Sandboxes taken over at the same time.
const ADOPTED_AT_ONCE: usize = 16;

impl Engine {
    pub(crate) async fn adopt_all(&self) -> Result<(), EngineError> {
        let inner = &self.inner;
        let found = offload::blocking(|| inner.records.load());
        let found = found.map_err(|source| EngineError::Io {
            action: "read records in",
            path: inner.config.data_dir.join("records"),
            source,
        })?;
        for damaged in found.damaged {
            inner.set_damaged_aside(&damaged);
        }
        let records: Vec<_> = found.intact.into_iter().map(|(_, record)| record).collect();
        self.adopt_gateway(&records).await;
        let turns = Arc::new(Semaphore::new(ADOPTED_AT_ONCE));
        let mut adopting = JoinSet::new();
        for record in records {
            // After a power loss the record before the last one is the right one. Within one boot it only
            // tells that this sandbox exists, and not that it was half made.
            let older = found
                .older
                .get(record.id.as_str())
                .filter(|_| record.host_boot == inner.host_boot);
            let half_made = record.state == State::Creating
                && record.started_at.is_none()
                && record.host_boot == inner.host_boot
                && older.is_none();
            // A disk that was to be a snapshot's and is not there was never acknowledged either.
            let lost = record.grown_from_snapshot
                && record.state == State::Creating
                && older.is_none()
                && matches!(inner.pool.exists(&volume_of(&record.id)), Ok(false));
            if half_made || lost || record.state == State::Deleting {
                // Its volume and cgroup have no owner now, and the sweep takes them.
                let _ = inner.records.remove(&record.id);
                continue;
            }
            let kept = record.clone();
            let damage = older.map(|reason| {
                format!("{NOT_TAKEN_OVER}: its record is damaged ({reason}); an older one is used")
            });
            let turn = Arc::clone(&turns).acquire_owned().await;
            let engine = self.clone();
            adopting.spawn(async move {
                let _turn = turn.expect("it is never closed");
                if let Err(error) = engine.adopt(record, damage).await {
                    let reason = crate::error::chain(&error);
                    let id = kept.id.clone();
                    engine.inner.aside.put(id, SetAside::refused(kept, reason));
                }
            });
        }
        while let Some(adopted) = adopting.join_next().await {
            adopted.map_err(|error| EngineError::Io {
                action: "take over what runs of",
                path: inner.config.data_dir.clone(),
                source: error.into(),
            })?;
        }
        Ok(())
    }

    /// `refused` tells why its processes are not looked for where its record does not name them.
    pub(crate) async fn adopt(
        &self,
        mut record: Record,
        mut refused: Option<String>,
    ) -> Result<(), EngineError> {
        let inner = &self.inner;
        let found = match &record.machine {
            Some(machine) => inner.tiers.adopt(machine).await.unwrap_or_else(|error| {
                // One that cannot be taken over is ended by the sweep; the others must not suffer for it.
                let reason = crate::error::chain(&error);
                tracing::error!(sandbox = %record.id, error = reason, "cannot take over a sandbox; ending it");
                refused = Some(format!("{NOT_TAKEN_OVER}: {reason}"));
                Adopted::Gone(None)
            }),
            None => Adopted::Gone(None),
        };
        let same_boot = record.host_boot == inner.host_boot;
        let before = record.state;
        record.host_boot.clone_from(&inner.host_boot);
        let found = match found {
            // Its processes make way for the snapshot's once everything is adopted.
            Adopted::Running(machine) if record.state == State::Restoring => {
                let usage = machine.usage().await.ok();
                end(machine.as_ref()).await;
                Adopted::Gone(usage)
            }
            found => found,
        };
        let machine = match found {
            Adopted::Running(machine) => {
                let machine = Arc::<dyn Machine>::from(machine);
                inner.catch_up_network(&mut record, &machine).await;
                Some(machine)
            }
            Adopted::Gone(usage) => {
                record.machine = None;
                record.grown_mb = None;
                if let Some(usage) = usage {
                    monitor::add_past(&mut record, &usage);
                }
                None
            }
        };
        let settled = offload::blocking(|| inner.settle_volume(&mut record, machine.is_some()));
        if let Err(error) = settled {
            if let Some(machine) = &machine {
                end(machine.as_ref()).await;
            }
            return Err(error);
        }
        if machine.is_none()
            && record.state.may_have_processes()
            && record.state != State::Restoring
        {
            record.state = match refused {
                Some(_) => State::Failed,
                None => State::Stopped,
            };
            let reason = refused.unwrap_or_else(|| match same_boot {
                true => "PID 1 ended while the engine was down".into(),
                false => "the host restarted".into(),
            });
            record.reason = Some(reason);
        }
        if let Some(machine) = &machine {
            settle_machine(&mut record, machine.as_ref()).await;
        }
        let disk = record.disk_bytes();
        let run = machine.as_ref().map(|_| {
            let memory = record.grown_mb.unwrap_or(record.limits.memory_mb);
            inner.commitments.adopt_run(&record.limits, memory)
        });
        let sandbox = Arc::new(Sandbox::new(
            record,
            Arc::clone(&inner.events),
            inner.records.clone(),
        ));
        let _ = sandbox.update(Durability::Written, |_| {});
        *sandbox.disk_promise.lock() = Some(inner.commitments.adopt_disk(disk));
        *sandbox.run_promise.lock() = run;
        inner.insert(&sandbox);
        if sandbox.state() != before {
            // Nobody was there to tell it when it came about.
            sandbox.emit(EventKind::State {
                state: sandbox.state(),
                reason: sandbox.record().reason,
            });
        }
        inner.reapply(&sandbox, machine.as_deref()).await;
        if let Some(machine) = machine {
            sandbox.emit(EventKind::Adopted);
            if matches!(sandbox.state(), State::Stopping | State::Paused) {
                // The stop was accepted and nobody waits for its grace time any more, or its memory
                // is safely on disk.
                let _ = machine.kill().await;
            }
            // Not for what ends now. Without it the sandbox goes on, and cannot ask who it is.
            if matches!(sandbox.state(), State::Running | State::Frozen) {
                match inner.open_door(&sandbox, machine.as_ref()).await {
                    Ok(door) => sandbox.set_door(door),
                    Err(error) => tracing::warn!(
                        sandbox = %sandbox.id, error = crate::error::chain(&error),
                        "cannot reopen the metadata endpoint; retrying later"
                    ),
                }
            }
            inner.watch(&sandbox, machine);
        }
        Ok(())
    }

    /// Removes every leftover of this engine that no sandbox owns. Only safe before serving.
    pub(crate) async fn sweep(&self) -> Result<(), EngineError> {
        let mut leftovers = 0;
        for tier in self.inner.tiers.all() {
            leftovers += tier.sweep().await?;
        }
        leftovers += self.settle_network().await?;
        self.inner.open_networks().await;
        let inner = Arc::clone(&self.inner);
        let volumes = spawn_blocking(move || {
            let known = inner.sandboxes.read();
            inner.pool.sweep_all_but(&|id: &VolumeId| match id.kind() {
                Kind::Sandbox => id.name().parse().is_ok_and(|id: SandboxId| {
                    known.contains_key(&id) || inner.aside.get(&id).is_some()
                }),
                Kind::Snapshot => id
                    .name()
                    .parse()
                    .is_ok_and(|id: SnapshotId| inner.snapshots.keeps_volume(&id)),
                // Images have records of their own and are swept by them.
                Kind::Image => true,
                // What an organisation keeps is never deleted for want of a record.
                Kind::Volume => true,
                // What an interrupted resume put aside may be the only copy of somebody's memory.
                Kind::Staging => id
                    .name()
                    .strip_prefix("resume-")
                    .and_then(|id| id.parse().ok())
                    .is_some_and(|id: SandboxId| inner.aside.get(&id).is_some()),
            })
        })
        .await;
        if let Err(error) = self.inner.images.store.sweep().await {
            // A pool that went read-only, or a full disk: what is left is swept by a later start.
            tracing::warn!(error = crate::error::chain(&error), "cannot sweep images");
        }
        self.inner.sweep_snapshots().await;
        self.sweep_network().await;
        tracing::info!(leftovers, ?volumes, "sweep finished");
        Ok(())
    }
}

impl Inner {
    /// Keeps a sandbox whose record cannot be used out of everything. An empty record without a disk was
    /// never acknowledged: the power failed in the middle of a create.
    fn set_damaged_aside(&self, damaged: &Damaged) {
        let Ok(id) = damaged.name.parse::<SandboxId>() else {
            tracing::error!(
                name = damaged.name,
                reason = damaged.reason,
                "ignoring a file that is not the record of a sandbox"
            );
            return;
        };
        let has_disk = [volume_of(&id), staging("resume", id.as_str())]
            .iter()
            .any(|volume| !matches!(self.pool.exists(volume), Ok(false)));
        if damaged.content.is_empty() && !has_disk {
            let _ = self.records.remove(&id);
            return;
        }
        self.aside.put(id, SetAside::damaged(damaged));
    }

    /// Makes a record and its volume agree again about where memory is, whatever a crash cut short.
    ///
    /// While a sandbox is paused its memory lies in its volume. A resume puts a copy of the volume aside
    /// before it touches anything, and deletes it once the record says that the sandbox runs.
    fn settle_volume(&self, record: &mut Record, runs: bool) -> Result<(), EngineError> {
        let volume = volume_of(&record.id);
        let disk = self.pool.disk(&volume);
        match record.state {
            State::Resuming | State::Paused => {
                let aside = staging("resume", record.id.as_str());
                if self.pool.exists(&aside)? {
                    // What ran on the volume was never acknowledged.
                    if self.pool.exists(&volume)? {
                        record.inherited_bytes = self.handed_down(&volume, record)?;
                        self.hand_account_down(&volume, record)?;
                        let kept = self.records.write(record, Durability::Written);
                        kept.map_err(|source| EngineError::Io {
                            action: "write the record of",
                            path: self.pool.path(&volume),
                            source,
                        })?;
                    }
                    put_back(&self.pool, &volume, &aside)?;
                }
                if disk.has_memory() && record.memory.is_some() {
                    record.state = State::Paused;
                } else {
                    // The end of a resume reached the disk and the record did not: what ran went
                    // with the host.
                    record.state = State::Stopped;
                    record.reason = Some("the host restarted".into());
                }
            }
            State::Pausing if !runs => {
                record.state = State::Stopped;
                record.reason = Some("it ended while its memory was being captured".into());
            }
            _ => {}
        }
        if record.state != State::Paused {
            record.memory = None;
            // Without a machine the next boot clears it.
            if runs {
                disk.clear_memory()?;
            }
        }
        Ok(())
    }
}

/// Lets a machine go on that an interrupted capture or snapshot had stopped, and stops one again
/// that was frozen on request.
async fn settle_machine(record: &mut Record, machine: &dyn Machine) {
    if record.state == State::Pausing {
        record.state = State::Running;
        record.reason = None;
    }
    let settled = match record.state {
        State::Frozen => machine.freeze().await,
        // Its memory is on disk; running on would change the disk that belongs to it.
        State::Paused => Ok(()),
        _ => machine.thaw().await,
    };
    match settled {
        Ok(()) | Err(IsolationError::Unsupported(_)) => {}
        Err(error) => {
            tracing::error!(sandbox = %record.id, %error, "cannot thaw a sandbox or freeze it again");
        }
    }
}
