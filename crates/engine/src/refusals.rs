//! What sandboxes without a network report that they refused, on its way into their egress logs.
//!
//! Nothing outside such a sandbox sees what it tries: it has no interface. Its guest counts, control asks the guest and
//! bounds what it says, and the gateway keeps it like its own decisions, within the same shares.

use std::net::Ipv4Addr;
use std::sync::Arc;

use cove_model::{NetworkMode, SandboxId};
use cove_runner_api::{EgressEntry, EgressProtocol, EgressVerdict, Refusals, RunnerError};
use time::OffsetDateTime;
use tokio::task::spawn_blocking;

use crate::engine::Engine;
use crate::error::{chain, internal};

impl Engine {
    pub(crate) async fn log_refusals_of(
        &self,
        id: &SandboxId,
        refusals: Refusals,
    ) -> Result<(), RunnerError> {
        let sandbox = self.inner.find(id)?;
        // So that it neither ends nor gets a network while the gateway learns of it.
        let _operation = sandbox.operation.lock().await;
        let record = sandbox.record();
        let machine = record.machine.as_ref();
        let Some(placed) = machine.and_then(|machine| self.inner.tiers.placed(machine)) else {
            return Ok(());
        };
        if record.spec.network.mode != NetworkMode::None || refusals.is_empty() {
            return Ok(());
        }
        let (Ok(network), Some(keeper)) = (&self.inner.network, self.inner.gatekeeper.get()) else {
            return Ok(());
        };
        let outer = network.addresses().outer(placed.index);
        let inner = Arc::clone(&self.inner);
        let introduced = spawn_blocking(move || match &inner.network {
            Ok(network) => network.introduce_closed(placed.index, &placed.sandbox),
            Err(_) => Ok(()),
        });
        introduced
            .await
            .map_err(internal)?
            .map_err(|error| internal(chain(&error)))?;
        match keeper.running() {
            Some(gateway) => gateway
                .append(entries(outer, refusals))
                .await
                .map_err(|error| internal(chain(&error))),
            None => Ok(()),
        }
    }
}

fn entries(outer: Ipv4Addr, refusals: Refusals) -> Vec<(Ipv4Addr, EgressEntry)> {
    let at = OffsetDateTime::now_utc();
    let entry = |protocol, name, what: &str, count: u64| {
        let entry = EgressEntry {
            sequence: 0,
            at,
            protocol,
            name,
            address: None,
            port: None,
            verdict: EgressVerdict::Denied,
            rule: format!("the network is off; {what}: {count}, reported by the sandbox"),
            sent_bytes: 0,
            received_bytes: 0,
        };
        (outer, entry)
    };
    let mut entries = Vec::new();
    for refused in refusals.names {
        let name = Some(refused.name);
        entries.push(entry(EgressProtocol::Dns, name, "queries", refused.queries));
    }
    if refusals.more > 0 {
        let what = "queries for other names";
        entries.push(entry(EgressProtocol::Dns, None, what, refusals.more));
    }
    if refusals.addresses > 0 {
        let what = "attempts to reach an address";
        entries.push(entry(EgressProtocol::Other, None, what, refusals.addresses));
    }
    entries
}
