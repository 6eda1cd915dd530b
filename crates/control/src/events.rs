//! What happened, kept and told live.
//!
//! The host's events are taken over in batches, given a sequence of the control plane's own and kept;
//! how far the host's log was read is written in the same transaction, so each event is kept once.
//! Listeners read from the store and are only woken from here, so one that was away misses nothing
//! that is still kept.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cove_model::{EventKind, OrgId, SandboxId};
use cove_store::{NewEvent, SandboxRecord, Scope, StoredEvent};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;

/// Events a listener takes from the store at once.
const READ_AT_ONCE: u32 = 256;
/// How long a list waits for a host that is slow to say what is new.
const TAKE_WAIT: Duration = Duration::from_secs(1);
/// The most events one list answers.
pub const LIST_MAX: u32 = 1000;

#[derive(Debug, Clone, PartialEq)]
pub enum EventItem {
    Event(StoredEvent),
    /// Events before this sequence are no longer kept; look at the current state again.
    Lost {
        before: u64,
    },
}

/// Events of one organisation, from a point in time on. Ends when the control plane shuts down.
pub struct EventSubscription {
    control: Control,
    org: OrgId,
    sandbox: Option<SandboxId>,
    after: u64,
    ready: VecDeque<EventItem>,
    latest: watch::Receiver<u64>,
}

impl EventSubscription {
    /// The next one, waiting for it; `None` at shutdown. Dropping the wait loses nothing.
    pub async fn next(&mut self) -> Result<Option<EventItem>, ControlError> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            // Marked as seen before reading, so that what comes in between wakes us again.
            self.latest.borrow_and_update();
            let found = self
                .control
                .store()
                .events(&self.org, self.sandbox.as_ref(), self.after, READ_AT_ONCE)
                .await?;
            if let Some(last) = found.last() {
                self.after = last.sequence;
                self.ready.extend(found.into_iter().map(EventItem::Event));
                continue;
            }
            tokio::select! {
                changed = self.latest.changed() => if changed.is_err() {
                    return Ok(None);
                },
                () = self.control.0.closing.cancelled() => return Ok(None),
            }
        }
    }
}

impl Control {
    /// Needs `read`. `after` is the sequence last seen; absent: from now on.
    pub async fn events(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        after: Option<u64>,
    ) -> Result<EventSubscription, ControlError> {
        principal.require(Scope::Read)?;
        let sandbox = match sandbox {
            Some(which) => Some(self.find(principal, which).await?.id),
            None => None,
        };
        let latest = self.0.latest_event.subscribe();
        let (oldest, last) = self.store().event_bounds(&principal.org).await?;
        let mut ready = VecDeque::new();
        // A number from before the events that are kept, or from another life of the database.
        let after = match after {
            None => last,
            Some(after) if after > last => {
                ready.push_back(EventItem::Lost { before: last + 1 });
                last
            }
            Some(after) => {
                let before = oldest.unwrap_or(last + 1);
                if after + 1 < before {
                    ready.push_back(EventItem::Lost { before });
                }
                after
            }
        };
        Ok(EventSubscription {
            control: self.clone(),
            org: principal.org.clone(),
            sandbox,
            after,
            ready,
            latest,
        })
    }

    /// Needs `read`. Those kept, oldest first, without waiting.
    pub async fn list_events(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, ControlError> {
        principal.require(Scope::Read)?;
        let sandbox = match sandbox {
            Some(which) => Some(self.find(principal, which).await?.id),
            None => None,
        };
        // Whoever has just been answered finds what came of it.
        match timeout(TAKE_WAIT, self.take_events()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "events are listed as far as they are known");
            }
            Err(_) => tracing::debug!("the host is slow; events are listed as far as known"),
        }
        let limit = limit.clamp(1, LIST_MAX);
        let found = self
            .store()
            .events(&principal.org, sandbox.as_ref(), after, limit)
            .await?;
        Ok(found)
    }

    /// Waits up to `wait_ms` for the host to have something to tell, and takes it over.
    pub(crate) async fn await_events(&self, wait_ms: u64) -> Result<(), ControlError> {
        let after = self.store().host_position().await?.unwrap_or(0);
        self.runner().events(after, wait_ms).await?;
        self.take_events().await
    }

    /// Takes over what the host has to tell by now.
    async fn take_events(&self) -> Result<(), ControlError> {
        // Two at once would keep the same events twice.
        let turn = Arc::clone(&self.0.taking_events).lock_owned().await;
        let control = self.clone();
        // To its end, whoever still waits: what was kept and not announced would wake nobody.
        let taking = async move {
            let _turn = turn;
            control.take_over().await
        };
        let taken = self.0.changes.spawn(taking).await;
        taken.map_err(|error| ControlError::internal("the work broke off").because(error))?
    }

    async fn take_over(&self) -> Result<(), ControlError> {
        let after = self.store().host_position().await?.unwrap_or(0);
        let batch = self.runner().events(after, 0).await?;
        if batch.lost || batch.next < after {
            // The host forgot some, or began to count anew: look at everything.
            self.0.stale.mark_all();
        }
        let mut events = Vec::new();
        let mut owners = HashMap::new();
        for event in batch.events {
            let owner = match owners.get(&event.sandbox) {
                Some(owner) => owner,
                None => {
                    let record = self.store().any_sandbox(&event.sandbox).await?;
                    owners
                        .entry(event.sandbox.clone())
                        .or_insert(record.map(|record| record.org))
                }
            };
            let Some(org) = owner.clone() else { continue };
            match &event.kind {
                EventKind::State { state, .. } => {
                    self.0.stale.told(&event.sandbox, *state, event.at)
                }
                EventKind::MemoryGrown { .. } | EventKind::Adopted => {
                    self.0.stale.mark(&event.sandbox);
                }
                EventKind::RolledBack { .. } => self.0.stale.mark(&event.sandbox),
                EventKind::Oom { .. }
                | EventKind::DiskHeld { .. }
                | EventKind::DiskReleased
                | EventKind::NetworkChanged
                | EventKind::Resized
                | EventKind::Snapshotted { .. }
                | EventKind::CaptureFailed { .. } => {}
            }
            events.push(NewEvent {
                org,
                sandbox: event.sandbox,
                at: event.at,
                kind: event.kind,
            });
        }
        if events.is_empty() && batch.next == after {
            return Ok(());
        }
        let stored = self
            .store()
            .append_events(&events, Some(batch.next))
            .await?;
        self.announce(&stored);
        Ok(())
    }

    /// An event of the control plane's own making.
    pub(crate) async fn tell(&self, record: &SandboxRecord, kind: EventKind) {
        let event = NewEvent {
            org: record.org.clone(),
            sandbox: record.id.clone(),
            at: self.now(),
            kind,
        };
        match self.store().append_events(&[event], None).await {
            Ok(stored) => self.announce(&stored),
            Err(error) => tracing::warn!(%error, "an event could not be written down"),
        }
    }

    fn announce(&self, stored: &[StoredEvent]) {
        if !stored.is_empty() {
            self.0.latest_event.send_modify(|count| *count += 1);
        }
    }
}
