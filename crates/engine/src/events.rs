//! What happened, kept in a bounded ring that readers follow by sequence.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cove_model::{Event, EventKind, SandboxId};
use cove_runner::EventBatch;
use time::OffsetDateTime;
use tokio::sync::watch;

/// Events kept for readers that come late.
const RING: usize = 10_000;
/// Events in one answer.
const BATCH: usize = 1_000;

pub struct Events {
    ring: Mutex<VecDeque<Event>>,
    latest: watch::Sender<u64>,
}

impl Events {
    /// Sequences go on above those of any earlier engine over the same data, because they start
    /// from the time of day in microseconds and no engine makes a million events a second.
    pub fn new() -> Self {
        let start = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1000;
        Self {
            ring: Mutex::default(),
            latest: watch::Sender::new(u64::try_from(start).unwrap_or(0)),
        }
    }

    pub fn emit(&self, sandbox: &SandboxId, kind: EventKind) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = *self.latest.borrow() + 1;
        tracing::debug!(%sandbox, ?kind, "event");
        ring.push_back(Event {
            sequence,
            at: OffsetDateTime::now_utc(),
            sandbox: sandbox.clone(),
            kind,
        });
        if ring.len() > RING {
            ring.pop_front();
        }
        self.latest.send_replace(sequence);
    }

    pub async fn after(&self, after: u64, wait: Duration) -> EventBatch {
        let mut latest = self.latest.subscribe();
        // A cursor from before this engine, or none at all, starts with what the ring has.
        let _ = tokio::time::timeout(wait, latest.wait_for(|latest| *latest > after)).await;
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        // Numbers in the ring have no gaps, so nobody has to look at those that were read before.
        let first = ring.front().map_or(1, |event| event.sequence);
        let read =
            usize::try_from(after.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        let unread = ring.range(read.min(ring.len())..);
        let events: Vec<Event> = unread.take(BATCH).cloned().collect();
        // An empty ring of an engine that has just started stands for what its predecessor knew.
        let latest = *self.latest.borrow();
        let oldest = ring.front().map_or(latest + 1, |first| first.sequence);
        let lost = after > 0 && oldest > after + 1;
        let next = events
            .last()
            .map_or(after.max(latest), |last| last.sequence);
        EventBatch { events, next, lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn readers_get_each_event_once_and_learn_of_losses() {
        let events = Events::new();
        let id = SandboxId::random();
        let start = events.after(0, Duration::ZERO).await.next;
        for _ in 0..3 {
            events.emit(&id, EventKind::Adopted);
        }
        let batch = events.after(start, Duration::from_secs(1)).await;
        assert_eq!(batch.events.len(), 3);
        assert!(!batch.lost);
        assert!(
            events
                .after(batch.next, Duration::ZERO)
                .await
                .events
                .is_empty()
        );
        for _ in 0..RING {
            events.emit(&id, EventKind::Adopted);
        }
        assert!(events.after(start, Duration::ZERO).await.lost);
    }
}
