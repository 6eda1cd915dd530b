//! Changing limits while a sandbox lives.

use std::sync::Arc;

use cove_isolation::Machine;
use cove_model::{EventKind, Resources, ResourcesPatch, SandboxId, State};
use cove_pool::PoolError;
use cove_runner_api::{RunnerError, SandboxView};
use tokio::task::spawn_blocking;

use crate::bounds::check_tasks;
use crate::engine::{Engine, Inner};
use crate::error::{from_isolation, from_pool, internal};
use crate::inherited::room;
use crate::record::Durability;
use crate::sandbox::Sandbox;

impl Engine {
    pub(crate) async fn resize_sandbox(
        &self,
        id: &SandboxId,
        patch: ResourcesPatch,
    ) -> Result<SandboxView, RunnerError> {
        let sandbox = self.inner.find(id)?;
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            engine.inner.resize(&sandbox, &patch).await
        });
        task.await.map_err(internal)?
    }
}

impl Inner {
    pub(crate) async fn resize(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        patch: &ResourcesPatch,
    ) -> Result<SandboxView, RunnerError> {
        // Growth waits, and finds the limits as they are then.
        let _limits = sandbox.limits.lock().await;
        let record = sandbox.record();
        let old = record.limits.clone();
        let new = patch.apply(&old).map_err(|error| RunnerError::Invalid {
            message: error.to_string(),
        })?;
        let able = self.tier_of(&record)?.capabilities();
        check_tasks(&able, &new).map_err(from_isolation)?;
        // What is paused goes on as it was captured.
        let goes_on = sandbox.machine().is_some() || record.state == State::Paused;
        let possible = match goes_on {
            true => able.check_change(&old, &new),
            false => able.check(&new),
        };
        possible.map_err(from_isolation)?;
        // What memory has grown to stays, unless the change is about just that.
        let old_memory_mb = record.grown_mb.unwrap_or(old.memory_mb);
        let memory_mb = match patch.memory_mb {
            Some(memory_mb) => memory_mb,
            None => old_memory_mb.clamp(new.memory_mb, new.memory_ceiling_mb()),
        };
        // Disk first: it can be refused, and is put back when a later step is.
        let disk_changed = new.disk_mb != old.disk_mb;
        if disk_changed {
            self.promise_disk(sandbox, new.disk_mb)?;
            if let Err(error) = self.set_disk(sandbox, new.disk_mb).await {
                self.promise_disk(sandbox, old.disk_mb)?;
                return Err(error);
            }
        }
        let running = self
            .resize_running(sandbox, (&new, memory_mb), (&old, old_memory_mb))
            .await;
        if running.is_err() && disk_changed {
            self.set_disk(sandbox, old.disk_mb).await?;
            self.promise_disk(sandbox, old.disk_mb)?;
        }
        running?;
        let machine = sandbox.machine().map(|machine| machine.record());
        sandbox.update(Durability::Flushed, |record| {
            record.limits = new.clone();
            record.grown_mb =
                (machine.is_some() && memory_mb != new.memory_mb).then_some(memory_mb);
            if machine.is_some() {
                record.machine = machine;
            }
        })?;
        sandbox.emit(EventKind::Resized);
        Ok(sandbox.view())
    }

    async fn resize_running(
        &self,
        sandbox: &Sandbox,
        (new, memory_mb): (&Resources, u64),
        (old, old_memory_mb): (&Resources, u64),
    ) -> Result<(), RunnerError> {
        let Some(machine) = sandbox.machine() else {
            return Ok(());
        };
        let promise = |cpu: f64, memory_mb: u64| {
            let mut promise = sandbox.run_promise.lock();
            match promise.as_mut() {
                Some(promise) => promise.change(cpu, memory_mb),
                None => Ok(()),
            }
        };
        promise(new.cpu, memory_mb)?;
        let resized = machine.resize(new, memory_mb).await;
        if resized.is_err() {
            // Going back to what was promised before; a smaller promise cannot be refused.
            let _ = promise(old.cpu, old_memory_mb);
        }
        resized.map_err(from_isolation)
    }

    /// Puts what the record says in force: an engine that died in the middle of a change, or while
    /// disks were held, left something else.
    pub(crate) async fn reapply(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        machine: Option<&dyn Machine>,
    ) {
        if self.disk_limits {
            let (inner, limited) = (Arc::clone(self), Arc::clone(sandbox));
            match spawn_blocking(move || inner.apply_disk_limit(&limited)).await {
                Ok(Ok(()) | Err(PoolError::NotFound { .. })) => {}
                Ok(Err(error)) => {
                    tracing::warn!(sandbox = %sandbox.id, %error, "cannot set its disk limit")
                }
                Err(error) => {
                    tracing::warn!(sandbox = %sandbox.id, %error, "cannot set its disk limit")
                }
            }
        }
        let Some(machine) = machine else { return };
        let record = sandbox.record();
        let memory_mb = record.grown_mb.unwrap_or(record.limits.memory_mb);
        if let Err(error) = machine.reapply(&record.limits, memory_mb).await {
            tracing::warn!(sandbox = %sandbox.id, %error, "cannot set its limits");
        }
    }

    pub(crate) fn promise_disk(&self, sandbox: &Sandbox, disk_mb: u64) -> Result<(), RunnerError> {
        let mut promise = sandbox.disk_promise.lock();
        match promise.as_mut() {
            Some(promise) => promise.change((disk_mb << 20) + sandbox.record().memory_bytes()),
            None => Ok(()),
        }
    }

    pub(crate) async fn set_disk(
        self: &Arc<Self>,
        sandbox: &Sandbox,
        disk_mb: u64,
    ) -> Result<(), RunnerError> {
        if !self.disk_limits {
            return Err(RunnerError::Unsupported {
                message: "the pool of this host cannot limit disks".into(),
            });
        }
        let (inner, volume) = (Arc::clone(self), sandbox.volume());
        let record = sandbox.record();
        let (inherited, memory) = (record.inherited_bytes, record.memory_bytes());
        let bytes = room(disk_mb, inherited) + memory;
        spawn_blocking(move || {
            let used = inner.pool.usage(&volume).map_err(from_pool)?;
            let (limit, used) = (disk_mb << 20, used.referenced_bytes + inherited);
            if limit < used.saturating_sub(memory) {
                return Err(from_pool(PoolError::LimitBelowUse { limit, used }));
            }
            inner
                .pool
                .set_limit(&volume, Some(bytes))
                .map_err(from_pool)
        })
        .await
        .map_err(internal)?
    }
}
