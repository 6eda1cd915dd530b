//! Policies of sandboxes: whether this host can enforce one, and changing it while a sandbox lives.

use std::sync::Arc;

use cove_isolation::finding::{bad, good, warning};
use cove_isolation::{IsolationError, Machine};
use cove_model::{EventKind, NetworkMode, NetworkPolicy, SandboxId};
use cove_network::probe;
use cove_runner_api::{Finding, RunnerError, SandboxView};
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner};
use crate::error::{EngineError, chain, from_isolation, internal};
use crate::record::{Durability, Record};

impl Engine {
    pub(crate) async fn set_sandbox_network(
        &self,
        id: &SandboxId,
        policy: NetworkPolicy,
    ) -> Result<SandboxView, RunnerError> {
        let sandbox = self.inner.find(id)?;
        self.inner.check_network(&policy)?;
        let audience = sandbox.record().audience();
        self.inner.check_presets(&policy, audience).await?;
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            let old = sandbox.record().spec.network;
            // Written down first: what runs under the new policy must be found with it.
            sandbox.update(Durability::Flushed, |record| {
                record.spec.network = policy.clone();
            })?;
            if let Some(machine) = sandbox.machine() {
                if let Err(error) = machine.set_network(&policy).await {
                    // A part of it may be in force.
                    set_or_cut_off(machine.as_ref(), &old).await;
                    sandbox.update(Durability::Flushed, |record| {
                        record.spec.network = old;
                        if record.machine.is_some() {
                            record.machine = Some(machine.record());
                        }
                    })?;
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

impl Engine {
    /// Goes in one step from the rules of an earlier engine to those of what was adopted, and removes what
    /// no machine owns. After the tiers' sweeps, which free the slots of what they end.
    pub(crate) async fn settle_network(&self) -> Result<u64, EngineError> {
        let inner = Arc::clone(&self.inner);
        let settled = spawn_blocking(move || match &inner.network {
            Ok(network) => {
                network.build()?;
                network.sweep(|index| inner.slots.is_free(index))
            }
            Err(_) => Ok(0),
        });
        let settled = match settled.await {
            Ok(settled) => settled.map_err(std::io::Error::from),
            Err(error) => Err(std::io::Error::other(error)),
        };
        settled.map_err(|error| IsolationError::failed("sweep the network")(error).into())
    }

    /// Interfaces, rules and routes of engines whose data is gone: nobody else would ever remove them.
    pub(crate) async fn sweep_network(&self) {
        let slots = Arc::clone(&self.inner.slots);
        let sweep = move || {
            let lives = |instance: &str| slots.is_claimed_by(instance);
            slots.with_abandoned(|gone| cove_network::abandoned::sweep(lives, gone))
        };
        let swept = spawn_blocking(sweep).await;
        match swept.map_err(std::io::Error::other).flatten() {
            Ok(Ok(0)) => {}
            Ok(Ok(swept)) => tracing::info!(
                swept,
                "removed network rules and interfaces of engines that no longer exist"
            ),
            Ok(Err(error)) => {
                let error = chain(&error);
                tracing::warn!(
                    error,
                    "cannot remove network rules and interfaces of engines that no longer exist"
                );
            }
            Err(error) => tracing::warn!(%error, "cannot sweep the network"),
        }
    }
}

impl Inner {
    /// An engine may have died between writing a policy down and putting it in force. Where that fails
    /// now, the machine has no network at all rather than an old one.
    pub(crate) async fn catch_up_network(&self, record: &mut Record, machine: &Arc<dyn Machine>) {
        let machine_record = record.machine.as_ref();
        let placed = machine_record.and_then(|record| self.tiers.placed(record));
        let wanted = record.spec.network.clone();
        // One that may reach nothing may have no interface either, and gets none before the rules
        // are there.
        let settled = |policy: NetworkPolicy| policy == wanted || policy.mode == NetworkMode::None;
        if placed.is_none_or(|placed| settled(placed.policy)) {
            return;
        }
        if set_or_cut_off(machine.as_ref(), &wanted).await {
            record.machine = Some(machine.record());
        }
    }

    /// The same for those that could reach nothing so far.
    pub(crate) async fn open_networks(&self) {
        for sandbox in self.all() {
            let (record, machine) = sandbox.record_and_machine();
            let machine_record = record.machine.as_ref();
            let placed = machine_record.and_then(|record| self.tiers.placed(record));
            let (Some(machine), Some(placed)) = (machine, placed) else {
                continue;
            };
            let wanted = record.spec.network;
            if placed.policy != wanted && set_or_cut_off(machine.as_ref(), &wanted).await {
                let kept = sandbox.update(Durability::Written, |record| {
                    // It may have ended meanwhile.
                    if record.machine.is_some() {
                        record.machine = Some(machine.record());
                    }
                });
                if let Err(error) = kept {
                    tracing::warn!(sandbox = %sandbox.id, %error, "cannot record the network policy in force");
                }
            }
        }
    }

    /// Refuses what cannot be enforced here.
    pub(crate) fn check_network(&self, policy: &NetworkPolicy) -> Result<(), RunnerError> {
        policy.check().map_err(|error| RunnerError::Invalid {
            message: error.to_string(),
        })?;
        self.check_reach(policy)?;
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

/// Puts a policy in force, or cuts the machine off. Whether it has another policy now than it had.
async fn set_or_cut_off(machine: &dyn Machine, policy: &NetworkPolicy) -> bool {
    let mut set = machine.set_network(policy).await;
    if let Err(error) = &set {
        tracing::error!(
            error = chain(error),
            "cannot apply a network policy; cutting the sandbox off"
        );
        set = machine.set_network(&NetworkPolicy::default()).await;
    }
    if let Err(error) = &set {
        let error = chain(error);
        tracing::error!(error, "keeping the previous network policy of a sandbox");
    }
    set.is_ok()
}

/// What of the host helps or hinders its sandboxes' network.
pub(crate) fn findings(inner: &Inner) -> Vec<Finding> {
    let network = match &inner.network {
        Ok(network) => network,
        Err(reason) => {
            return vec![bad(
                "network",
                format!("sandboxes reach nothing: {reason}"),
                "run as root on a kernel with nf_tables, veth and conntrack, with loopback up; if addresses overlap, set network_range".into(),
            )];
        }
    };
    let mut found = vec![good(
        "network",
        format!(
            "interfaces and packet filter work; sandboxes use {}",
            network.addresses()
        ),
    )];
    if let Some(keeper) = inner.gatekeeper.get() {
        found.extend(keeper.preset_findings());
    }
    found.push(if cove_network::forwards() {
        good("forwarding", "net.ipv4.ip_forward is on".into())
    } else {
        warning(
            "forwarding",
            "net.ipv4.ip_forward is off and will be turned on for the first sandbox with mode 'open'"
                .into(),
            "sysctl -w net.ipv4.ip_forward=1, and in /etc/sysctl.d to keep it".into(),
        )
    });
    if probe::loose_source_check() {
        found.push(warning(
            "source check",
            "net.ipv4.conf.all.rp_filter is 2: if the packet filter's table is deleted while no engine runs, nothing else filters sandboxes"
                .into(),
            "sysctl -w net.ipv4.conf.all.rp_filter=1 (or 0: each interface has its own)".into(),
        ));
    }
    found.push(match probe::barriers() {
        Ok(barriers) if barriers.is_empty() => {
            good("firewall", "no other table drops packets by default".into())
        }
        Ok(barriers) => {
            let names: Vec<String> = barriers.iter().map(|barrier| barrier.name.clone()).collect();
            warning(
                "firewall",
                format!("these chains drop packets by default, also those of sandboxes: {}", names.join(", ")),
                "accept interfaces cv* there. For iptables: `-I FORWARD -i cv+ -j ACCEPT`, `-I FORWARD -o cv+ -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT` and `-I INPUT -i cv+ -j ACCEPT`. The table of Cove still decides first and last"
                    .into(),
            )
        }
        Err(error) => warning(
            "firewall",
            format!("other tables cannot be listed: {}", chain(&error)),
            "run as root".into(),
        ),
    });
    found
}
