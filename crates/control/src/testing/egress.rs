//! Network decisions of the host in memory.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use cove_model::SandboxId;
use cove_runner_api::{
    EgressBatch, EgressEntry, EgressProtocol, EgressQuery, EgressVerdict, Refusals,
};
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub struct EgressLogs {
    logs: Mutex<HashMap<SandboxId, Vec<EgressEntry>>>,
    added: Notify,
}

impl EgressLogs {
    /// Takes a decision down under the next number.
    pub fn record(&self, sandbox: &SandboxId, mut entry: EgressEntry) {
        let mut logs = self.logs.lock();
        let log = logs.entry(sandbox.clone()).or_default();
        entry.sequence = log.len() as u64 + 1;
        log.push(entry);
        drop(logs);
        self.added.notify_waiters();
    }

    /// Takes down what a sandbox without a network reports.
    pub(super) fn refuse(&self, sandbox: &SandboxId, refusals: &Refusals) {
        for refused in &refusals.names {
            let entry = EgressEntry {
                sequence: 0,
                at: time::OffsetDateTime::now_utc(),
                protocol: EgressProtocol::Dns,
                name: Some(refused.name.clone()),
                address: None,
                port: None,
                verdict: EgressVerdict::Denied,
                rule: format!("queries: {}", refused.queries),
                sent_bytes: 0,
                received_bytes: 0,
            };
            self.record(sandbox, entry);
        }
    }

    pub(super) async fn read(&self, query: EgressQuery) -> EgressBatch {
        let added = self.added.notified();
        tokio::pin!(added);
        added.as_mut().enable();
        let now = self.look(&query);
        if !now.entries.is_empty() || query.wait_ms == 0 {
            return now;
        }
        // Nothing came in time: what there is by then is the answer.
        let _ = tokio::time::timeout(Duration::from_millis(query.wait_ms), added).await;
        self.look(&query)
    }

    fn look(&self, query: &EgressQuery) -> EgressBatch {
        let logs = self.logs.lock();
        let entries: Vec<EgressEntry> = logs
            .get(&query.sandbox)
            .into_iter()
            .flatten()
            .filter(|entry| entry.sequence > query.after)
            .filter(|entry| query.verdict.is_none_or(|only| only == entry.verdict))
            .take(query.limit as usize)
            .cloned()
            .collect();
        EgressBatch {
            next: entries.last().map_or(query.after, |entry| entry.sequence),
            lost: false,
            entries,
        }
    }
}
