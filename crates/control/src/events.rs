//! What happened, kept and sent live.
//!
//! Each host's events are taken over in batches, given a sequence of the control plane's own and kept;
//! how far the host's log was read is written in the same transaction, so each event is kept once.
//! Listeners are woken from here and share what is new; one that was away reads what it missed from the
//! store, as long as that is still kept.

use async_recursion::async_recursion as boxed;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cove_limits::PAGE_MAX;
use cove_model::{Event, EventKind, Restated, SandboxId, State};
use cove_runner_api::EventBatch;
use cove_store::{
    HostAdvance, HostPosition, NewEvent, SandboxRecord, Scope, StoreError, StoredEvent,
};
use futures_util::future::join_all;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{ControlError, ErrorCode};
use crate::guards::Exclusive;
use crate::hosts::Host;
use crate::listeners::{Follower, SharedEvent, shared};
use crate::principal::Principal;
use crate::{Control, Sandbox};

/// Events a listener takes at once.
const READ_AT_ONCE: u32 = 256;
/// The pause between two such takings of one listener: many events in a row wake it once.
const READ_PAUSE: Duration = Duration::from_millis(50);
/// Events of a sandbox that are looked at for what was reported of it.
const TOLD_LOOK: u32 = 64;
/// Sandboxes that ended last and are looked at when events may be lost.
const BURIED_LOOK: u32 = 1000;
/// How long ago such a sandbox may have ended, if nothing at all is known of it. Events of earlier ones may have been
/// swept.
const UNTOLD_MAX: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, PartialEq)]
pub enum EventItem {
    Event(Arc<SharedEvent>),
    /// Events before this sequence are no longer kept; look at the current state again.
    Lost {
        before: u64,
    },
}

/// Events of one organisation, from a point in time on. Ends when the control plane shuts down.
pub struct EventSubscription {
    control: Control,
    follower: Follower,
    sandbox: Option<SandboxId>,
    after: u64,
    ready: VecDeque<EventItem>,
    /// When it was last looked what there is.
    read_at: Option<Instant>,
}

impl EventSubscription {
    /// The next one, waiting for it; `None` at shutdown. Dropping the wait loses nothing.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<EventItem>, ControlError> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            if let Some(at) = self.read_at {
                sleep_until(at + READ_PAUSE).await;
            }
            self.read_at = Some(Instant::now());
            // Marked as seen before looking, so that what comes in between wakes us again.
            self.follower.latest.borrow_and_update();
            let feed = self.follower.feed();
            let sandbox = self.sandbox.as_ref();
            let found = match feed.since(self.after, sandbox, READ_AT_ONCE as usize) {
                Some((found, end)) => {
                    self.after = end;
                    found
                }
                None => self.read_missed().await?,
            };
            if !found.is_empty() {
                self.ready.extend(found.into_iter().map(EventItem::Event));
                continue;
            }
            tokio::select! {
                changed = self.follower.latest.changed() => if changed.is_err() {
                    return Ok(None);
                },
                () = self.control.0.tasks.closing.cancelled() => return Ok(None),
            }
        }
    }

    /// What the organisation's feed does not have, from the store. One listener of an organisation reads at
    /// a time, and leaves what it read to the others.
    async fn read_missed(&mut self) -> Result<Vec<Arc<SharedEvent>>, ControlError> {
        let (feed, org) = (self.follower.feed(), self.follower.org().clone());
        let _turn = feed.reading.lock().await;
        let (after, limit) = (self.after, READ_AT_ONCE as usize);
        if let Some((found, end)) = feed.since(after, self.sandbox.as_ref(), limit) {
            self.after = end;
            return Ok(found);
        }
        // Everything up to here is committed, so that a reading that is not full has seen all of it.
        let announced = *self.follower.latest.borrow();
        let end_of = |read: &[Arc<SharedEvent>]| {
            let last = read.last().map_or(after, |event| event.sequence);
            match read.len() < limit {
                true => last.max(announced),
                false => last,
            }
        };
        let store = self.control.store();
        // Close behind the feed everything is read, for all who are there.
        let is_close = feed
            .distance(after)
            .is_some_and(|distance| distance <= u64::from(READ_AT_ONCE));
        if self.sandbox.is_none() || is_close {
            let read = shared(store.events(&org, None, after, READ_AT_ONCE).await?);
            self.after = end_of(&read);
            feed.fill(after, self.after, &read);
            let mine = |event: &Arc<SharedEvent>| {
                let wanted = self.sandbox.as_ref();
                wanted.is_none_or(|wanted| *wanted == event.sandbox)
            };
            return Ok(read.into_iter().filter(mine).collect());
        }
        let sandbox = self.sandbox.as_ref();
        let read = shared(store.events(&org, sandbox, after, READ_AT_ONCE).await?);
        self.after = end_of(&read);
        Ok(read)
    }
}

/// Why events of a host were not kept.
enum Taken {
    Elsewhere,
    Failed(ControlError),
}

impl<E: Into<ControlError>> From<E> for Taken {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Control {
    /// Needs `read`. `after` is the sequence last seen; absent: from now on.
    #[boxed]
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
        let follower = self.0.listeners.follow(&principal.org);
        let (oldest, last) = self.store().event_bounds(&principal.org).await?;
        follower.feed().begins_at(last);
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
            follower,
            sandbox,
            after,
            ready,
            read_at: None,
        })
    }

    /// Needs `read`. The sandbox of an event, read once for all who follow; `None` when it is gone.
    #[boxed]
    pub async fn sandbox_of(
        &self,
        principal: &Principal,
        event: &SharedEvent,
    ) -> Result<Option<Sandbox>, ControlError> {
        principal.require(Scope::Read)?;
        let id = event.sandbox.as_str();
        if event.org != principal.org {
            return Err(ControlError::not_found("sandbox", id));
        }
        let found = event.record.get_or_try_init(|| async {
            match self.get_sandbox(principal, id).await {
                Ok(sandbox) => Ok(Some(sandbox)),
                Err(error) if error.code == ErrorCode::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        });
        Ok(found.await?.clone())
    }

    /// Needs `read`. Those kept, oldest first, without waiting.
    #[boxed]
    pub async fn list_events(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, ControlError> {
        principal.require(Scope::Read)?;
        let (sandbox, host) = match sandbox {
            Some(which) => {
                let found = self.find(principal, which).await?;
                (Some(found.id), Some(found.host))
            }
            None => (None, None),
        };
        // Whoever has just been answered finds what came of it.
        let (hosts, wait) = (self.hosts(), self.config().events_wait);
        let asked = hosts
            .iter()
            .filter(|one| host.as_ref().is_none_or(|host| *host == one.id));
        let taking = join_all(asked.map(|host| timeout(wait, self.take_events(host))));
        for taken in taking.await {
            match taken {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!(%error, "cannot ask a host for events; listing those known so far");
                }
                Err(_) => tracing::debug!("a host is slow; listing the events known so far"),
            }
        }
        let limit = limit.clamp(1, PAGE_MAX);
        let found = self
            .store()
            .events(&principal.org, sandbox.as_ref(), after, limit)
            .await?;
        Ok(found)
    }

    /// Waits up to `wait_ms` for the host to have something to tell, and takes it over.
    pub(crate) async fn await_events(
        &self,
        host: &Arc<Host>,
        wait_ms: u64,
    ) -> Result<(), ControlError> {
        let after = self.store().host_position(&host.id).await?;
        let after = after.unwrap_or_default().sequence;
        host.runner().await?.events(after, wait_ms).await?;
        self.take_events(host).await
    }

    /// Takes over what the host has to tell by now.
    async fn take_events(&self, host: &Arc<Host>) -> Result<(), ControlError> {
        // Two at once would keep the same events twice.
        let turn = self.0.guards.lock(Exclusive::Events(host.id.clone()));
        let turn = turn.await?;
        let (control, host) = (self.clone(), Arc::clone(host));
        // To its end, whoever still waits: what was kept and not announced would wake nobody.
        let taking = async move {
            let _turn = turn;
            control.take_over(&host).await
        };
        let taken = self.0.tasks.changes.spawn(taking).await;
        taken.map_err(|error| ControlError::internal("the task was interrupted").because(error))?
    }

    async fn take_over(&self, host: &Host) -> Result<(), ControlError> {
        match self.take_over_from_here(host).await {
            // Another control process has read further meanwhile, and announces what it read itself.
            Err(Taken::Elsewhere) => {
                tracing::debug!(host = %host.id, "another process has read the events of the host");
                Ok(())
            }
            Err(Taken::Failed(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    }

    async fn take_over_from_here(&self, host: &Host) -> Result<(), Taken> {
        let from = self.store().host_position(&host.id).await?;
        let mut from = from.unwrap_or_default();
        let HostPosition {
            sequence: after,
            life,
        } = from.clone();
        let mut runner = host.runner().await?;
        let mut batch = runner.events(after, 0).await?;
        let is_other = batch.life != life;
        if is_other {
            runner = host.identified().await?;
        }
        if is_other && !life.is_empty() {
            // Another start of the host's process: everything it tells is new, whatever its numbers.
            batch = runner.events(0, 0).await?;
        }
        // What an earlier process of ours left undone is looked at by the first round of this one.
        let is_first = !host.events_met.load(Ordering::Relaxed);
        if !is_other && !is_first && !batch.lost && batch.next >= after {
            return self.keep_events(host, batch, &mut from, false).await;
        }
        // Until all of this is done, the next round begins with it again.
        host.events_met.store(false, Ordering::Relaxed);
        // Some may be lost: look at everything. Those that are gone by now were reported, if they were,
        // before all that is read from here on.
        host.stale.mark_all();
        let gone = self.store();
        let gone = gone.buried_sandboxes(&host.id, BURIED_LOOK).await?;
        loop {
            let (next, done) = (batch.next, batch.events.is_empty());
            self.keep_events(host, batch, &mut from, is_other).await?;
            if done {
                break;
            }
            batch = runner.events(next, 0).await?;
        }
        self.tell_the_end(&gone).await?;
        host.events_met.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn keep_events(
        &self,
        host: &Host,
        batch: EventBatch,
        from: &mut HostPosition,
        is_new: bool,
    ) -> Result<(), Taken> {
        let mut events = Vec::new();
        let mut owners = HashMap::new();
        for event in batch.events {
            let owner = match owners.get(&event.sandbox) {
                Some(owner) => owner,
                None => {
                    let record = self.store().any_sandbox(&event.sandbox).await?;
                    // What a host says of another host's sandbox is no event of that sandbox.
                    let record = record.filter(|record| record.host == host.id);
                    owners
                        .entry(event.sandbox.clone())
                        .or_insert(record.map(|record| record.org))
                }
            };
            let Some(org) = owner.clone() else { continue };
            match &event.kind {
                EventKind::State { state, .. } => {
                    let at = self.0.clocks.placed(event.boot_time.as_ref());
                    host.stale.told(&event.sandbox, *state, at);
                }
                EventKind::MemoryGrown { .. } | EventKind::Adopted => {
                    host.stale.mark(&event.sandbox);
                }
                EventKind::RolledBack { .. } => host.stale.mark(&event.sandbox),
                EventKind::Oom { .. }
                | EventKind::DiskHeld { .. }
                | EventKind::DiskReleased
                | EventKind::NetworkChanged
                | EventKind::Resized
                | EventKind::Snapshotted { .. }
                | EventKind::CaptureFailed { .. }
                | EventKind::ApprovalRequested { .. }
                | EventKind::ApprovalDecided { .. } => {}
            }
            let at = match &event.restated {
                None => event.at,
                Some(restated) => match self.missed(&event, restated, &events).await? {
                    Some(at) => at,
                    None => continue,
                },
            };
            events.push(NewEvent {
                org,
                sandbox: event.sandbox,
                at,
                kind: event.kind,
            });
        }
        if events.is_empty() && batch.next == from.sequence && !is_new {
            return Ok(());
        }
        let to = HostPosition {
            sequence: batch.next,
            life: batch.life,
        };
        let advance = HostAdvance {
            host: host.id.clone(),
            from: std::mem::replace(from, to.clone()),
            to,
        };
        match self.store().append_events(&events, Some(advance)).await {
            Ok(stored) => self.announce(&stored),
            Err(StoreError::Stale) => return Err(Taken::Elsewhere),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// When a state came about that the host tells once more, if nobody heard of it before.
    async fn missed(
        &self,
        event: &Event,
        restated: &Restated,
        fresh: &[NewEvent],
    ) -> Result<Option<OffsetDateTime>, ControlError> {
        let EventKind::State { state: now, .. } = &event.kind else {
            return Ok(Some(event.at));
        };
        let state_of = |kind: &EventKind| match kind {
            EventKind::State { state, .. } => Some(*state),
            _ => None,
        };
        let kept = self
            .store()
            .latest_events(&event.sandbox, TOLD_LOOK)
            .await?;
        let told: Vec<(State, OffsetDateTime)> = fresh
            .iter()
            .rev()
            .filter(|one| one.sandbox == event.sandbox)
            .filter_map(|one| Some((state_of(&one.kind)?, one.at)))
            .chain(
                kept.iter()
                    .filter_map(|one| Some((state_of(&one.kind)?, one.at))),
            )
            .collect();
        // What begins to run tells so with the moment it began.
        let started = restated
            .started_at
            .map(|at| at.unix_timestamp_nanos() / 1000);
        let start_told = told.iter().any(|(state, at)| {
            *state == State::Running && Some(at.unix_timestamp_nanos() / 1000) == started
        });
        let last = told.first().map(|(state, _)| *state);
        let is_told = last == Some(*now) && (*now != State::Running || start_told);
        Ok(match is_told {
            true => None,
            false if *now == State::Running && !start_told => {
                Some(restated.started_at.unwrap_or(event.at))
            }
            false => Some(event.at),
        })
    }

    /// Tells of the end of those that are gone and whose own event was lost.
    pub(crate) async fn tell_the_end(&self, gone: &[SandboxRecord]) -> Result<(), ControlError> {
        for record in gone {
            let told = self.store().latest_events(&record.id, TOLD_LOOK).await?;
            let last = told.iter().find_map(|event| match &event.kind {
                EventKind::State { state, .. } => Some(*state),
                _ => None,
            });
            let now = self.now();
            let is_recent = record.deleted_at.is_some_and(|at| at > now - UNTOLD_MAX);
            let begun = match record.started_at {
                // It ran and ended between two readings, and what the host had to tell of it was lost.
                Some(started) if told.is_empty() && is_recent => Some((State::Running, started)),
                // One that never ran ends without a word.
                _ if last.is_none_or(|last| last == State::Gone) => continue,
                _ => None,
            };
            let missed = begun.into_iter().chain([(State::Gone, now)]);
            let missed = missed.map(|(state, at)| NewEvent {
                org: record.org.clone(),
                sandbox: record.id.clone(),
                at,
                kind: EventKind::State {
                    state,
                    reason: record.reason.clone().filter(|_| state == State::Gone),
                },
            });
            let missed: Vec<NewEvent> = missed.collect();
            // Together, or not at all: half of it would be taken for the whole the next time.
            let stored = self.store().append_events(&missed, None).await?;
            self.announce(&stored);
        }
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
            Err(error) => tracing::warn!(%error, "cannot record an event"),
        }
    }

    fn announce(&self, stored: &[StoredEvent]) {
        if !stored.is_empty() {
            self.0.listeners.announce(stored);
        }
    }
}
