//! Policies of sandboxes: whether this host can enforce one, and changing it while a sandbox lives.

use std::sync::Arc;

use cove_isolation::Machine;
use cove_isolation_container::ContainerTier;
use cove_model::{EventKind, NetworkMode, NetworkPolicy, SandboxId};
use cove_runner::{RunnerError, SandboxView};
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner};
use crate::error::{chain, from_isolation, internal};
use crate::record::{Durability, Record};

impl Engine {
    pub(crate) async fn set_sandbox_network(
        &self,
        id: &SandboxId,
        policy: NetworkPolicy,
    ) -> Result<SandboxView, RunnerError> {
        let sandbox = self.inner.find(id)?;
        self.inner.check_network(&policy)?;
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            let old = sandbox.record().spec.network;
            // Written down first: what runs under the new policy must be found with it.
            sandbox.update(Durability::Flushed, |record| {
                record.spec.network = policy.clone();
            })?;
            if let Some(machine) = sandbox.machine() {
                let (changed, wanted) = (Arc::clone(&machine), policy.clone());
                let set = spawn_blocking(move || changed.set_network(&wanted))
                    .await
                    .map_err(internal)?;
                if let Err(error) = set {
                    sandbox.update(Durability::Flushed, |record| record.spec.network = old)?;
                    return Err(from_isolation(error));
                }
                sandbox.update(Durability::Written, |record| {
                    record.machine = Some(machine.record());
                })?;
            }
            sandbox.emit(EventKind::NetworkChanged);
            Ok(sandbox.view())
        });
        task.await.map_err(internal)?
    }
}

impl Inner {
    /// An engine may have died between writing a policy down and putting it in force. Where that fails
    /// now, the machine has no network at all rather than an old one.
    pub(crate) async fn catch_up_network(&self, record: &mut Record, machine: &Arc<dyn Machine>) {
        let placed = record.machine.as_ref().and_then(ContainerTier::placed);
        let wanted = record.spec.network.clone();
        if placed.is_none_or(|(_, _, policy)| policy == wanted) {
            return;
        }
        let changed = Arc::clone(machine);
        let set = spawn_blocking(move || {
            changed.set_network(&wanted).or_else(|error| {
                tracing::error!(
                    error = chain(&error),
                    "a policy cannot be put in force; the sandbox is cut off"
                );
                changed.set_network(&NetworkPolicy::default())
            })
        })
        .await;
        match set {
            Ok(Ok(())) => record.machine = Some(machine.record()),
            other => tracing::error!(?other, "a sandbox keeps the network policy it had"),
        }
    }

    /// Refuses what cannot be enforced here.
    pub(crate) fn check_network(&self, policy: &NetworkPolicy) -> Result<(), RunnerError> {
        policy.check().map_err(|error| RunnerError::Invalid {
            message: error.to_string(),
        })?;
        let network = match &self.network {
            Ok(network) => network,
            Err(_) if policy.mode == NetworkMode::None => return Ok(()),
            Err(reason) => {
                let message = format!("sandboxes of this host have no network: {reason}");
                return Err(RunnerError::Unsupported { message });
            }
        };
        if policy.mode == NetworkMode::Allowlist && !network.has_gate() {
            let message = "mode 'allowlist' needs the gateway, and this host runs none".into();
            return Err(RunnerError::Unsupported { message });
        }
        Ok(())
    }
}
