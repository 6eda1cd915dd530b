//! What happened, kept in a bounded ring that readers follow by sequence.
//!
//! Sequences never go back, whatever happens to the clock: the end of a block of numbers is on disk before
//! the first of them is given out, and the next engine begins above it. What a dead engine's ring held is
//! gone; the next one therefore begins by telling how each sandbox is ([`Events::restate`]), and has a
//! `life` of its own by which readers notice.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;

use cove_model::{Event, EventKind, Restated, SandboxId};
use cove_runner_api::EventBatch;
use cove_runner_api::clock::boot_time;
use time::OffsetDateTime;
use tokio::sync::watch;

/// Events kept for readers that come late.
const RING: usize = 10_000;
/// Events in one answer.
const BATCH: usize = 1_000;
/// Numbers reserved on disk at once.
const BLOCK: u64 = 1_000_000;

pub struct Events {
    ring: Mutex<Ring>,
    latest: watch::Sender<u64>,
    boot: String,
    life: String,
    numbers: PathBuf,
}

struct Ring {
    events: VecDeque<Event>,
    /// The last number that may be given out before more are reserved.
    reserved: u64,
    /// Whether events of this life were dropped.
    dropped: bool,
}

impl Events {
    /// `numbers` is the file that says which sequences were given out.
    pub fn open(numbers: &Path, boot: String) -> io::Result<Self> {
        let known: Option<u64> = match fs::read_to_string(numbers) {
            Ok(text) => text.trim().parse().ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        // Engines without this file began with the time of day. Should that be behind, readers notice by
        // the life, and read everything anew.
        let start = known.unwrap_or_else(|| {
            let now = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1000;
            u64::try_from(now).unwrap_or(0)
        });
        let reserved = start.saturating_add(BLOCK);
        reserve(numbers, reserved)?;
        Ok(Self {
            ring: Mutex::new(Ring {
                events: VecDeque::new(),
                reserved,
                dropped: false,
            }),
            latest: watch::Sender::new(start),
            boot,
            life: format!("{:016x}", rand::random::<u64>()),
            numbers: numbers.to_owned(),
        })
    }

    pub fn emit(&self, sandbox: &SandboxId, kind: EventKind) {
        self.emit_at(sandbox, kind, None);
    }

    /// `at`: now, unless it is known better.
    pub fn emit_at(&self, sandbox: &SandboxId, kind: EventKind, at: Option<OffsetDateTime>) {
        self.push(sandbox, kind, at, None);
    }

    /// Tells once more how a sandbox is.
    pub fn restate(
        &self,
        sandbox: &SandboxId,
        kind: EventKind,
        started_at: Option<OffsetDateTime>,
    ) {
        self.push(sandbox, kind, None, Some(Restated { started_at }));
    }

    fn push(
        &self,
        sandbox: &SandboxId,
        kind: EventKind,
        at: Option<OffsetDateTime>,
        restated: Option<Restated>,
    ) {
        let mut ring = self.ring();
        let sequence = *self.latest.borrow() + 1;
        if sequence >= ring.reserved {
            ring.reserved = sequence.saturating_add(BLOCK);
            if let Err(error) = reserve(&self.numbers, ring.reserved) {
                tracing::error!(%error, path = %self.numbers.display(), "cannot reserve event numbers");
            }
        }
        tracing::debug!(%sandbox, ?kind, "event");
        ring.events.push_back(Event {
            sequence,
            at: at.unwrap_or_else(OffsetDateTime::now_utc),
            boot_time: Some(boot_time(&self.boot)),
            sandbox: sandbox.clone(),
            kind,
            restated,
        });
        if ring.events.len() > RING {
            ring.events.pop_front();
            ring.dropped = true;
        }
        self.latest.send_replace(sequence);
    }

    /// Whether a reader who comes late has missed events of this life.
    pub fn has_dropped(&self) -> bool {
        self.ring().dropped
    }

    pub async fn after(&self, after: u64, wait: Duration) -> EventBatch {
        let mut latest = self.latest.subscribe();
        // A number that was never given out is from another life of the data: everything is new then.
        let unknown = after > *latest.borrow();
        let after = if unknown { 0 } else { after };
        let _ = tokio::time::timeout(wait, latest.wait_for(|latest| *latest > after)).await;
        let ring = self.ring();
        // Numbers in the ring have no gaps, so nobody has to look at those that were read before.
        let first = ring.events.front().map_or(1, |event| event.sequence);
        let read =
            usize::try_from(after.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        let unread = ring.events.range(read.min(ring.events.len())..);
        let events: Vec<Event> = unread.take(BATCH).cloned().collect();
        // An empty ring of an engine that has just started stands for what its predecessor knew.
        let latest = *self.latest.borrow();
        let oldest = ring
            .events
            .front()
            .map_or(latest + 1, |first| first.sequence);
        let lost = unknown || after > 0 && oldest > after + 1;
        let next = events.last().map_or(latest, |last| last.sequence);
        EventBatch {
            events,
            next,
            lost,
            life: self.life.clone(),
        }
    }

    fn ring(&self) -> parking_lot::MutexGuard<'_, Ring> {
        self.ring.lock()
    }
}

/// On disk before any of the numbers is given out.
fn reserve(path: &Path, until: u64) -> io::Result<()> {
    let draft = path.with_extension("new");
    let mut file = fs::File::create(&draft)?;
    file.write_all(until.to_string().as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(dir: &Path) -> Events {
        Events::open(&dir.join("events"), "boot".into()).unwrap()
    }

    #[tokio::test]
    async fn readers_get_each_event_once_and_learn_of_losses() {
        let dir = tempfile::tempdir().unwrap();
        let events = opened(dir.path());
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
        assert!(events.has_dropped());
    }

    #[tokio::test]
    async fn numbers_go_on_over_restarts_whatever_the_clock_says() {
        let dir = tempfile::tempdir().unwrap();
        // Ahead of today's clock, as before a step back.
        let ahead = 9_000_000_000_000_000u64;
        fs::write(dir.path().join("events"), ahead.to_string()).unwrap();
        let id = SandboxId::random();
        let mut last = 0;
        let mut lives = std::collections::HashSet::new();
        for _ in 0..3 {
            let events = opened(dir.path());
            events.emit(&id, EventKind::Adopted);
            let batch = events.after(last, Duration::ZERO).await;
            assert_eq!(batch.events.len(), 1);
            assert_eq!(
                batch.lost,
                last > 0,
                "a new engine does not know everything"
            );
            assert!(batch.next > last && batch.next > ahead);
            assert!(lives.insert(batch.life));
            last = batch.next;
        }
    }

    #[tokio::test]
    async fn a_reader_from_the_future_is_told_everything_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let events = opened(dir.path());
        events.emit(&SandboxId::random(), EventKind::Adopted);
        let waiting = events.after(u64::MAX, Duration::from_secs(600));
        let batch = tokio::time::timeout(Duration::from_secs(30), waiting)
            .await
            .unwrap();
        assert!(batch.lost && batch.events.len() == 1);
        assert_eq!(batch.next, batch.events[0].sequence);
    }
}
