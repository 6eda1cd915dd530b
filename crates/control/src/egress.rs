//! What the network policies of sandboxes decided, read from the host for their owners.

use async_recursion::async_recursion as boxed;
use cove_model::{HostId, NetworkMode, OrgId, SandboxId};
use cove_runner_api::{EgressBatch, EgressEntry, EgressProtocol, EgressQuery, EgressVerdict};
use cove_store::Scope;

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;

/// Entries that one reading of the host brings at most.
const BATCH_MAX: u32 = 1000;

/// How long a follower waits before the guest of a sandbox without a network is asked again.
const CLOSED_WAIT_MS: u64 = 2000;

/// Which decisions to show.
#[derive(Debug, Clone, Default)]
pub struct EgressFilter {
    pub verdict: Option<EgressVerdict>,
    pub protocol: Option<EgressProtocol>,
    /// This name and names below it.
    pub name: Option<String>,
}

impl EgressFilter {
    fn wants(&self, entry: &EgressEntry) -> bool {
        let name = |wanted: &String| {
            let named = entry.name.as_deref().unwrap_or_default();
            let rest = named.strip_suffix(wanted.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        self.protocol.is_none_or(|only| only == entry.protocol)
            && self.name.as_ref().is_none_or(name)
    }
}

/// The log of one sandbox, read forward.
pub struct EgressReader {
    control: Control,
    org: OrgId,
    host: HostId,
    sandbox: SandboxId,
    filter: EgressFilter,
    after: u64,
    /// Its network was off when the reading began: only its guest knows what is refused.
    closed: bool,
}

impl Control {
    /// Reads the log of a sandbox from after `after`, 0 for all that is kept.
    #[boxed]
    pub async fn egress(
        &self,
        principal: &Principal,
        which: &str,
        after: u64,
        mut filter: EgressFilter,
    ) -> Result<EgressReader, ControlError> {
        principal.require(Scope::Read)?;
        let record = self.find(principal, which).await?;
        filter.name = filter
            .name
            .map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        Ok(EgressReader {
            closed: record.spec.network.mode == NetworkMode::None,
            control: self.clone(),
            org: record.org,
            host: record.host,
            sandbox: record.id,
            filter,
            after,
        })
    }
}

impl EgressReader {
    /// Up to `limit` entries. Empty when there are none, or none came within `wait_ms`.
    #[boxed]
    pub async fn next(&mut self, limit: u32, wait_ms: u64) -> Result<EgressBatch, ControlError> {
        let mut lost = false;
        let wait_ms = match self.closed {
            true => wait_ms.min(CLOSED_WAIT_MS),
            false => wait_ms,
        };
        if self.closed {
            let (org, host) = (&self.org, &self.host);
            self.control.log_refusals(org, host, &self.sandbox).await;
        }
        loop {
            let query = EgressQuery {
                sandbox: self.sandbox.clone(),
                after: self.after,
                limit: BATCH_MAX,
                wait_ms,
                verdict: self.filter.verdict,
            };
            let mut batch = self.control.runner(&self.host).await?.egress(query).await?;
            let read = batch.entries.len();
            lost |= batch.lost;
            let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
            batch.entries.retain(|entry| self.filter.wants(entry));
            if batch.entries.len() > wanted {
                batch.entries.truncate(wanted);
                batch.next = batch.entries.last().map_or(self.after, |it| it.sequence);
            }
            self.after = batch.next;
            // What was read and not wanted is no reason to answer with nothing.
            if read == 0 || lost || !batch.entries.is_empty() {
                batch.lost = lost;
                return Ok(batch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> EgressEntry {
        EgressEntry {
            sequence: 1,
            at: time::OffsetDateTime::UNIX_EPOCH,
            protocol: EgressProtocol::Dns,
            name: Some(name.to_owned()),
            address: None,
            port: None,
            verdict: EgressVerdict::Denied,
            rule: String::new(),
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    #[test]
    fn a_name_stands_for_itself_and_what_is_below_it() {
        let filter = EgressFilter {
            name: Some("good.example".into()),
            ..EgressFilter::default()
        };
        assert!(filter.wants(&entry("good.example")));
        assert!(filter.wants(&entry("a.good.example")));
        assert!(!filter.wants(&entry("notgood.example")));
        let filter = EgressFilter {
            protocol: Some(EgressProtocol::Tcp),
            ..EgressFilter::default()
        };
        assert!(!filter.wants(&entry("good.example")));
    }
}
