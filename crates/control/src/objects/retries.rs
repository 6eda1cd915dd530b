//! When an upload that failed is tried again.

use std::collections::HashMap;
use std::time::Duration;

use cove_model::SnapshotId;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The first wait; it doubles with each failure.
const WAIT_FIRST: Duration = Duration::from_secs(10);
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Snapshots whose failures are remembered; beyond it the one that is due first is tried without its wait.
const REMEMBERED_MAX: usize = 10_000;

#[derive(Debug, Clone, Copy)]
struct Failure {
    wait: Duration,
    due: Instant,
}

#[derive(Default)]
pub(super) struct Retries(Mutex<HashMap<SnapshotId, Failure>>);

impl Retries {
    pub fn failed(&self, id: &SnapshotId) {
        let mut table = self.0.lock();
        let before = table.get(id).map(|failure| failure.wait);
        if before.is_none() && table.len() >= REMEMBERED_MAX {
            let first = table.iter().min_by_key(|(_, failure)| failure.due);
            let first = first.map(|(id, _)| id.clone());
            first.map(|id| table.remove(&id));
        }
        let wait = before.map_or(WAIT_FIRST, |wait| (wait * 2).min(WAIT_MAX));
        let due = Instant::now() + wait;
        table.insert(id.clone(), Failure { wait, due });
    }

    pub fn forget(&self, id: &SnapshotId) {
        self.0.lock().remove(id);
    }

    pub fn is_due(&self, id: &SnapshotId) -> bool {
        let table = self.0.lock();
        table
            .get(id)
            .is_none_or(|failure| failure.due <= Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_double_up_to_their_limit_and_few_are_remembered() {
        let (retries, id) = (Retries::default(), SnapshotId::random());
        assert!(retries.is_due(&id));
        let mut wait = WAIT_FIRST;
        for _ in 0..10 {
            retries.failed(&id);
            tokio::time::advance(wait - Duration::from_secs(1)).await;
            assert!(!retries.is_due(&id));
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(retries.is_due(&id));
            wait = (wait * 2).min(WAIT_MAX);
        }
        retries.forget(&id);
        for _ in 0..REMEMBERED_MAX + 3 {
            retries.failed(&SnapshotId::random());
        }
        assert_eq!(retries.0.lock().len(), REMEMBERED_MAX);
    }
}
