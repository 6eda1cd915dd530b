//! What sandboxes without a network refused, from their guests into their egress logs.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use cove_model::{HostId, OrgId, SandboxId};
use cove_protocol::client::GuestError;
use cove_protocol::message;
use cove_runner_api::{Refusals, RefusedName};

use crate::Control;

/// How long the guest may take to report.
const PATIENCE: Duration = Duration::from_secs(5);

impl Control {
    /// Asks the guest, without waking it, and has its report logged. What fails is lost: a sandbox that ends, or a
    /// guest of an earlier build, has nothing to say.
    #[boxed]
    pub(crate) async fn log_refusals(&self, org: &OrgId, host: &HostId, id: &SandboxId) {
        let guest = self.guest_through(org, host, id, false).within(PATIENCE);
        let refusals = match guest.take_refusals().await {
            Ok(refusals) => bounded(refusals),
            Err(error) => return unheard(id, &error),
        };
        if refusals.is_empty() {
            return;
        }
        let logged = match self.runner(host).await {
            Ok(runner) => runner.log_refusals(id, refusals).await,
            Err(error) => return tracing::debug!(sandbox = %id, %error, "refusals were not logged"),
        };
        if let Err(error) = logged {
            tracing::debug!(sandbox = %id, %error, "refusals were not logged");
        }
    }
}

fn unheard(id: &SandboxId, error: &GuestError) {
    tracing::debug!(sandbox = %id, %error, "the guest did not report what it refused");
}

/// In the host's form. The client has cut names to what may be shown; one that is empty is nobody's.
fn bounded(said: message::Refusals) -> Refusals {
    let names = said.names.into_iter().filter(|it| !it.name.is_empty());
    Refusals {
        names: names
            .map(|it| RefusedName {
                name: it.name,
                queries: it.queries,
            })
            .collect(),
        more: said.more,
        addresses: said.addresses,
    }
}
