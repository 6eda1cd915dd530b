//! Stopping and deleting.

use std::sync::Arc;
use std::time::Duration;

use cove_isolation::Machine;
use cove_model::lifecycle::Step;
use cove_model::{SandboxId, State};
use cove_protocol::brief;
use cove_runner_api::{RunnerError, SandboxView};
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner, reach};
use crate::error::{from_isolation, from_pool, internal};
use crate::record::Durability;
use crate::sandbox::{KILL_PATIENCE, Sandbox, volume_of};

/// What a guest may take beyond the grace time to end its processes and flush its files.
const STOP_MARGIN: Duration = Duration::from_secs(10);

impl Engine {
    pub(crate) async fn stop_sandbox(
        &self,
        id: &SandboxId,
        grace_ms: u64,
    ) -> Result<SandboxView, RunnerError> {
        let sandbox = self.inner.find(id)?;
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            sandbox.check(Step::Stop)?;
            if sandbox.state() == State::Paused {
                return engine.inner.stop_paused(&sandbox).await;
            }
            if sandbox.state() == State::Frozen
                && let Some(machine) = sandbox.machine()
            {
                // Its processes get their chance to end, which takes running.
                machine.thaw().await.map_err(from_isolation)?;
            }
            sandbox.advance(
                Step::Stop,
                Some("stopped on request".into()),
                Durability::Written,
                |_| {},
            )?;
            let mut state = sandbox.watch_state();
            if let Some(machine) = sandbox.machine() {
                let grace = Duration::from_millis(grace_ms.min(cove_limits::STOP_GRACE_MAX_MS));
                if let Err(error) =
                    tokio::time::timeout(grace + STOP_MARGIN, shut_down(&sandbox, grace)).await
                {
                    tracing::debug!(sandbox = %sandbox.id, %error, "the guest did not end in time");
                }
                // Whatever the guest said, PID 1 goes now.
                machine.kill().await.map_err(from_isolation)?;
            }
            wait_until(&mut state, |state| state == State::Stopped).await?;
            Ok(sandbox.view())
        });
        task.await.map_err(internal)?
    }

    pub(crate) async fn delete_sandbox(&self, id: &SandboxId) -> Result<(), RunnerError> {
        if self.inner.aside.get(id).is_some() && self.delete_set_aside(id).await? {
            return Ok(());
        }
        let Ok(sandbox) = self.inner.find(id) else {
            return Ok(());
        };
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            if sandbox.state() == State::Gone {
                return Ok(());
            }
            let begin = || sandbox.advance(Step::Delete, None, Durability::Written, |_| {});
            let begun = match begin() {
                // A full disk must not keep anybody from making room on it.
                Err(RunnerError::NoCapacity { .. }) if engine.inner.free_for_deletion() => begin(),
                begun => begun,
            };
            begun?;
            if let Some(machine) = sandbox.machine() {
                machine.discard();
            }
            sandbox.end_machine().await?;
            engine.inner.remove_traces(&sandbox).await?;
            sandbox.advance(Step::Deleted, None, Durability::Written, |_| {})?;
            let image = sandbox.record().image;
            engine.inner.drop_unnamed_image(&image).await;
            Ok(())
        });
        task.await.map_err(internal)?
    }
}

impl Inner {
    /// Tells whether there is room now to write down that something is deleted.
    fn free_for_deletion(&self) -> bool {
        crate::reserve::give_up_for_deletion(&self.config.data_dir)
    }

    pub(crate) async fn remove_traces(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
    ) -> Result<(), RunnerError> {
        let (inner, id) = (Arc::clone(self), sandbox.id.clone());
        spawn_blocking(move || {
            inner.pool.delete(&volume_of(&id)).map_err(from_pool)?;
            inner
                .records
                .remove(&id)
                .map_err(|error| internal(format!("remove the sandbox's record: {error}")))
        })
        .await
        .map_err(internal)??;
        self.sandboxes.write().remove(&sandbox.id);
        self.forget_secrets(&sandbox.record()).await;
        if let Some(keeper) = self.gatekeeper.get() {
            keeper.owners().forget(&sandbox.id);
        }
        if let Some(gateway) = self.gatekeeper.get().and_then(|keeper| keeper.running())
            && let Err(error) = gateway.forget(&sandbox.id).await
        {
            tracing::warn!(sandbox = %sandbox.id, error = crate::error::chain(&error), "cannot end the egress log of a sandbox; it stays until it is full");
        }
        sandbox.run_promise.lock().take();
        sandbox.disk_promise.lock().take();
        Ok(())
    }
}

async fn shut_down(sandbox: &Arc<Sandbox>, grace: Duration) {
    if let Err(error) = brief::shutdown(reach(sandbox), grace).await {
        tracing::debug!(sandbox = %sandbox.id, %error, "the guest did not shut down by itself");
    }
}

/// Ends a machine that nobody will own.
pub(crate) async fn end(machine: &dyn Machine) {
    let ended = async {
        machine.kill().await?;
        machine.exited().await;
        machine.dispose().await
    };
    match tokio::time::timeout(KILL_PATIENCE, ended).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "cannot remove a machine; the next sweep retries"),
        Err(_) => tracing::warn!("a machine did not end after SIGKILL"),
    }
}

async fn wait_until(
    state: &mut tokio::sync::watch::Receiver<State>,
    wanted: impl Fn(State) -> bool,
) -> Result<(), RunnerError> {
    match tokio::time::timeout(KILL_PATIENCE, state.wait_for(|state| wanted(*state))).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(internal(
            "the sandbox's processes did not end after SIGKILL",
        )),
    }
}
