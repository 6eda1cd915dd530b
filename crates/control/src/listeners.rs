//! Who waits for events: followers of one organisation, and followers of one sandbox that is at rest.
//!
//! An event wakes those it concerns and nobody else. Followers of an organisation share what they are
//! given: an event is appended to the organisation's [`Feed`] once, and each follower takes it from there.
//! The store is read only by a follower that is behind the feed, by one follower of an organisation at a
//! time, and what it reads is left in the feed for the others. So neither the number of streams nor the
//! number of organisations multiplies what an event costs.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use bytes::Bytes;
use cove_model::{OrgId, SandboxId};
use cove_store::StoredEvent;
use tokio::sync::{OnceCell, watch};

use crate::Sandbox;

/// Events that a feed keeps for its followers.
const RECENT_MAX: usize = 512;

/// An event as all followers of its organisation share it.
#[derive(Debug)]
pub struct SharedEvent {
    event: StoredEvent,
    /// The sandbox as the first follower who asked found it; `None` when it was gone.
    pub(crate) record: OnceCell<Option<Sandbox>>,
    written: OnceLock<Bytes>,
}

impl SharedEvent {
    fn new(event: StoredEvent) -> Arc<Self> {
        Arc::new(Self {
            event,
            record: OnceCell::new(),
            written: OnceLock::new(),
        })
    }

    /// The event in the form of the API's stream, encoded by the first follower for all.
    pub fn written(&self, encode: impl FnOnce(&StoredEvent) -> Bytes) -> Bytes {
        self.written.get_or_init(|| encode(&self.event)).clone()
    }
}

impl std::ops::Deref for SharedEvent {
    type Target = StoredEvent;
    fn deref(&self) -> &StoredEvent {
        &self.event
    }
}

impl PartialEq for SharedEvent {
    fn eq(&self, other: &Self) -> bool {
        self.event == other.event
    }
}

/// The last events of an organisation, without a gap.
#[derive(Default)]
struct Recent {
    /// Every event behind this one, up to the last of `events`, is in `events`. `None`: nothing is known.
    after: Option<u64>,
    events: VecDeque<Arc<SharedEvent>>,
}

impl Recent {
    fn last(&self) -> Option<u64> {
        self.events
            .back()
            .map(|event| event.sequence)
            .or(self.after)
    }

    fn append(&mut self, event: &StoredEvent) {
        match self.last() {
            // Announced behind a later one; whoever lacks it reads it from the store.
            Some(last) if event.sequence <= last => return,
            Some(last) if event.sequence == last + 1 => {}
            _ => {
                self.events.clear();
                self.after = Some(event.sequence.saturating_sub(1));
            }
        }
        self.events.push_back(SharedEvent::new(event.clone()));
        self.trim();
    }

    fn trim(&mut self) {
        while self.events.len() > RECENT_MAX {
            self.after = self.events.pop_front().map(|event| event.sequence);
        }
    }

    /// Everything behind `after`, or `None` when some of that is not here.
    fn since(&self, after: u64) -> Option<impl Iterator<Item = &Arc<SharedEvent>>> {
        let from = self.after?;
        (after >= from).then(|| {
            let first = self.events.partition_point(|event| event.sequence <= after);
            self.events.range(first..)
        })
    }

    /// What was read from the store: every event behind `after` up to `end`. Taken where it closes up with
    /// what is here.
    fn fill(&mut self, after: u64, end: u64, read: &[Arc<SharedEvent>]) {
        match self.after {
            None => {
                self.after = Some(after);
                self.events.extend(read.iter().cloned());
            }
            Some(from) if after < from && from <= end => {
                self.after = Some(after);
                for event in read.iter().rev().filter(|event| event.sequence <= from) {
                    self.events.push_front(Arc::clone(event));
                }
            }
            Some(_) => return,
        }
        self.trim();
    }
}

/// What the followers of one organisation share.
pub(crate) struct Feed {
    recent: Mutex<Recent>,
    /// The last event that was announced.
    latest: watch::Sender<u64>,
    /// Held by the follower that reads from the store.
    pub(crate) reading: tokio::sync::Mutex<()>,
}

impl Feed {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            recent: Mutex::default(),
            latest: watch::Sender::new(0),
            reading: tokio::sync::Mutex::default(),
        })
    }

    /// What is in the store ends here; later events are announced.
    pub(crate) fn begins_at(&self, last: u64) {
        self.recent.lock().after.get_or_insert(last);
        self.latest.send_if_modified(|latest| {
            *latest = last.max(*latest);
            // Nobody is woken: nothing happened.
            false
        });
    }

    /// At most `limit` events behind `after`, of one sandbox or of all, and up to where that goes. `None`:
    /// some are no longer here.
    pub(crate) fn since(
        &self,
        after: u64,
        sandbox: Option<&SandboxId>,
        limit: usize,
    ) -> Option<(Vec<Arc<SharedEvent>>, u64)> {
        let recent = self.recent.lock();
        let (mut found, mut end) = (Vec::new(), after);
        for event in recent.since(after)? {
            if found.len() == limit {
                break;
            }
            end = event.sequence;
            if sandbox.is_none_or(|wanted| *wanted == event.sandbox) {
                found.push(Arc::clone(event));
            }
        }
        Some((found, end))
    }

    /// How far `after` is behind what is here.
    pub(crate) fn distance(&self, after: u64) -> Option<u64> {
        let from = self.recent.lock().after?;
        Some(from.saturating_sub(after))
    }

    pub(crate) fn fill(&self, after: u64, end: u64, read: &[Arc<SharedEvent>]) {
        self.recent.lock().fill(after, end, read);
    }
}

/// Events that were read from the store, to be shared.
pub(crate) fn shared(events: Vec<StoredEvent>) -> Vec<Arc<SharedEvent>> {
    events.into_iter().map(SharedEvent::new).collect()
}

#[derive(Default)]
struct Tables {
    feeds: HashMap<OrgId, Arc<Feed>>,
    sandboxes: HashMap<SandboxId, watch::Sender<()>>,
}

/// Cheap to clone.
#[derive(Default, Clone)]
pub(crate) struct Listeners(Arc<Mutex<Tables>>);

impl Listeners {
    /// Follows an organisation, until the follower is dropped.
    pub(crate) fn follow(&self, org: &OrgId) -> Follower {
        let mut tables = self.0.lock();
        let feed = tables.feeds.entry(org.clone()).or_insert_with(Feed::new);
        Follower {
            listeners: self.clone(),
            org: org.clone(),
            latest: feed.latest.subscribe(),
            feed: Some(Arc::clone(feed)),
        }
    }

    /// Is woken by events of one sandbox, until it is dropped.
    pub(crate) fn watch(&self, sandbox: &SandboxId) -> Watcher {
        let mut tables = self.0.lock();
        let sender = tables.sandboxes.entry(sandbox.clone()).or_default();
        Watcher {
            listeners: self.clone(),
            sandbox: sandbox.clone(),
            told: Some(sender.subscribe()),
        }
    }

    /// These happened. Each organisation and each sandbox is woken once.
    pub(crate) fn announce(&self, events: &[StoredEvent]) {
        let mut tables = self.0.lock();
        let mut latest: HashMap<&OrgId, u64> = HashMap::new();
        for event in events {
            if let Some(feed) = tables.feeds.get(&event.org) {
                feed.recent.lock().append(event);
                let last = latest.entry(&event.org).or_default();
                *last = event.sequence.max(*last);
            }
            if let Some(sender) = tables.sandboxes.get(&event.sandbox) {
                sender.send_replace(());
            }
        }
        for (org, sequence) in latest {
            if let Some(feed) = tables.feeds.get_mut(org) {
                let raised = |last: &mut u64| *last = sequence.max(*last);
                feed.latest.send_modify(raised);
            }
        }
    }

    /// Organisations that are followed, and sandboxes that are waited for.
    pub(crate) fn len(&self) -> usize {
        let tables = self.0.lock();
        tables.feeds.len() + tables.sandboxes.len()
    }
}

/// One who follows an organisation.
pub(crate) struct Follower {
    listeners: Listeners,
    org: OrgId,
    pub(crate) latest: watch::Receiver<u64>,
    /// Taken when it is dropped.
    feed: Option<Arc<Feed>>,
}

impl Follower {
    pub(crate) fn org(&self) -> &OrgId {
        &self.org
    }

    pub(crate) fn feed(&self) -> Arc<Feed> {
        let feed = self.feed.as_ref().expect("taken only when it is dropped");
        Arc::clone(feed)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut tables = self.listeners.0.lock();
        self.feed = None;
        // Copies are made under this lock, or by followers for as long as they live.
        let unused = |feed: &Arc<Feed>| Arc::strong_count(feed) == 1;
        if tables.feeds.get(&self.org).is_some_and(unused) {
            tables.feeds.remove(&self.org);
        }
    }
}

/// One who waits for events of a sandbox.
pub(crate) struct Watcher {
    listeners: Listeners,
    sandbox: SandboxId,
    /// Taken when it is dropped.
    told: Option<watch::Receiver<()>>,
}

impl Watcher {
    /// Returns after the next event that was not waited for yet.
    pub(crate) async fn changed(&mut self) {
        let told = self.told.as_mut().expect("taken only when it is dropped");
        if told.changed().await.is_err() {
            // The table keeps the sender while somebody waits.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut tables = self.listeners.0.lock();
        self.told = None;
        let unused = |sender: &watch::Sender<()>| sender.receiver_count() == 0;
        if tables.sandboxes.get(&self.sandbox).is_some_and(unused) {
            tables.sandboxes.remove(&self.sandbox);
        }
    }
}

#[cfg(test)]
mod tests {
    use cove_model::EventKind;
    use time::OffsetDateTime;

    use super::*;

    fn event(org: &OrgId, sandbox: &SandboxId, sequence: u64) -> StoredEvent {
        StoredEvent {
            sequence,
            org: org.clone(),
            sandbox: sandbox.clone(),
            at: OffsetDateTime::UNIX_EPOCH,
            kind: EventKind::Resized,
        }
    }

    fn numbers(found: Option<(Vec<Arc<SharedEvent>>, u64)>) -> Option<(Vec<u64>, u64)> {
        let (events, end) = found?;
        Some((events.iter().map(|event| event.sequence).collect(), end))
    }

    #[test]
    fn an_event_wakes_those_it_concerns_and_nobody_is_kept_who_left() {
        let listeners = Listeners::default();
        let (one, other) = (OrgId::random(), OrgId::random());
        let (near, far) = (SandboxId::random(), SandboxId::random());
        let (first, second) = (listeners.follow(&one), listeners.follow(&other));
        let (close, away) = (listeners.watch(&near), listeners.watch(&far));
        listeners.announce(&[event(&one, &near, 7), event(&one, &near, 8)]);
        assert!(first.latest.has_changed().expect("it is told"));
        assert_eq!(*first.latest.borrow(), 8);
        assert!(
            !second.latest.has_changed().expect("it is told"),
            "not its event"
        );
        let told = |watcher: &Watcher| {
            let told = watcher.told.as_ref().expect("it lives");
            told.has_changed().expect("it is told")
        };
        assert!(told(&close) && !told(&away));
        let third = listeners.follow(&one);
        assert_eq!(listeners.len(), 4);
        drop((first, second, close, away));
        assert_eq!(listeners.len(), 1, "the third still follows");
        drop(third);
        assert_eq!(listeners.len(), 0);
    }

    #[test]
    fn followers_take_from_the_feed_what_it_has_without_a_gap() {
        let listeners = Listeners::default();
        let (org, one, other) = (OrgId::random(), SandboxId::random(), SandboxId::random());
        let follower = listeners.follow(&org);
        let feed = follower.feed();
        assert_eq!(
            numbers(feed.since(4, None, 9)),
            None,
            "nothing is known yet"
        );
        feed.begins_at(4);
        assert_eq!(numbers(feed.since(4, None, 9)), Some((vec![], 4)));
        assert_eq!(
            numbers(feed.since(3, None, 9)),
            None,
            "that is in the store"
        );
        listeners.announce(&[event(&org, &one, 5), event(&org, &other, 6)]);
        assert_eq!(numbers(feed.since(4, None, 9)), Some((vec![5, 6], 6)));
        assert_eq!(numbers(feed.since(4, None, 1)), Some((vec![5], 5)));
        assert_eq!(numbers(feed.since(4, Some(&one), 9)), Some((vec![5], 6)));
        // 8 is announced before 7: whoever is at 6 must not miss 7.
        listeners.announce(&[event(&org, &one, 8)]);
        listeners.announce(&[event(&org, &one, 7)]);
        assert_eq!(numbers(feed.since(6, None, 9)), None);
        assert_eq!(numbers(feed.since(7, None, 9)), Some((vec![8], 8)));
        // The first who reads it from the store leaves it for the others.
        let read = shared([5, 6, 7].map(|at| event(&org, &one, at)).to_vec());
        feed.fill(4, 7, &read);
        assert_eq!(numbers(feed.since(4, None, 9)), Some((vec![5, 6, 7, 8], 8)));
        // What does not close up is of no use.
        listeners.announce(&[event(&org, &one, 20)]);
        feed.fill(8, 12, &read);
        assert_eq!(numbers(feed.since(8, None, 9)), None);
        feed.fill(8, 19, &[]);
        assert_eq!(
            numbers(feed.since(8, None, 9)),
            Some((vec![20], 20)),
            "numbers that nobody has are no gap"
        );
    }

    #[test]
    fn a_feed_keeps_its_number_of_events() {
        let listeners = Listeners::default();
        let (org, sandbox) = (OrgId::random(), SandboxId::random());
        let feed = listeners.follow(&org);
        let feed = feed.feed();
        let many = RECENT_MAX as u64 + 10;
        let all: Vec<_> = (1..=many).map(|at| event(&org, &sandbox, at)).collect();
        // Nobody follows any more, by the table; the feed itself is still at hand.
        feed.recent.lock().after = Some(0);
        for event in &all {
            feed.recent.lock().append(event);
        }
        assert_eq!(numbers(feed.since(9, None, 9)), None);
        let (found, end) = feed.since(10, None, usize::MAX).expect("it is here");
        assert_eq!((found.len(), end), (RECENT_MAX, many));
    }
}
