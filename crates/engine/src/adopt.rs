//! Taking over what runs and clearing away what was half made, when an engine opens.

use std::sync::{Arc, PoisonError};

use cove_isolation::{Adopted, Isolation, Machine};
use cove_model::{EventKind, SandboxId, State};
use cove_pool::{Kind, VolumeId};
use tokio::task::spawn_blocking;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::monitor;
use crate::record::{Durability, Record};
use crate::sandbox::Sandbox;

impl Engine {
    pub(crate) async fn adopt_all(&self) -> Result<(), EngineError> {
        let inner = &self.inner;
        let records = inner.records.load().map_err(|source| EngineError::Io {
            action: "read records in",
            path: inner.config.data_dir.join("records"),
            source,
        })?;
        for record in records {
            let half_made = record.state == State::Creating
                && record.started_at.is_none()
                && record.host_boot == inner.host_boot;
            if half_made || record.state == State::Deleting {
                // Its volume and cgroup have no owner now, and the sweep takes them.
                let _ = inner.records.remove(&record.id);
                continue;
            }
            self.adopt(record).await?;
        }
        Ok(())
    }

    pub(crate) async fn adopt(&self, mut record: Record) -> Result<(), EngineError> {
        let inner = &self.inner;
        let found = match &record.machine {
            Some(machine) => inner.container.adopt(machine).await?,
            None => Adopted::Gone(None),
        };
        let same_boot = record.host_boot == inner.host_boot;
        record.host_boot.clone_from(&inner.host_boot);
        let machine = match found {
            Adopted::Running(machine) => Some(Arc::<dyn Machine>::from(machine)),
            Adopted::Gone(usage) => {
                record.machine = None;
                record.grown_mb = None;
                if let Some(usage) = usage {
                    monitor::add_past(&mut record, &usage);
                }
                if record.state.may_have_processes() {
                    record.state = State::Stopped;
                    let reason = if same_boot {
                        "PID 1 ended while the engine was down"
                    } else {
                        "the host restarted"
                    };
                    record.reason = Some(reason.into());
                }
                None
            }
        };
        let disk = record.limits.disk_mb << 20;
        let run = machine.as_ref().map(|_| {
            let memory = record.grown_mb.unwrap_or(record.limits.memory_mb);
            inner.books.adopt_run(&record.limits, memory)
        });
        let sandbox = Arc::new(Sandbox::new(
            record,
            Arc::clone(&inner.events),
            inner.records.clone(),
        ));
        let _ = sandbox.update(Durability::Written, |_| {});
        *sandbox
            .disk_promise
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(inner.books.adopt_disk(disk));
        *sandbox
            .run_promise
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = run;
        inner.insert(&sandbox);
        inner.reapply(&sandbox, machine.as_deref());
        if let Some(machine) = machine {
            sandbox.emit(EventKind::Adopted);
            if sandbox.state() == State::Stopping {
                // The stop was accepted; nobody waits for its grace time any more.
                let _ = machine.kill();
            }
            inner.watch(&sandbox, machine);
        }
        Ok(())
    }

    /// Removes every leftover of this engine that no sandbox owns. Only safe before serving.
    pub(crate) async fn sweep(&self) -> Result<(), EngineError> {
        let groups = self.inner.container.sweep().await?;
        let inner = Arc::clone(&self.inner);
        let volumes = spawn_blocking(move || {
            let known = inner
                .sandboxes
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            inner.pool.sweep(&|id: &VolumeId| match id.kind() {
                Kind::Sandbox => id
                    .name()
                    .parse()
                    .is_ok_and(|id: SandboxId| known.contains_key(&id)),
                // Images have records of their own and are swept by them.
                Kind::Image | Kind::Snapshot => true,
                Kind::Staging => false,
            })
        })
        .await;
        self.inner.images.store.sweep().await?;
        tracing::info!(groups, ?volumes, "swept");
        Ok(())
    }
}
