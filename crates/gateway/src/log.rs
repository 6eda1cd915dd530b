//! What was decided for one sandbox, newest kept, in bounded memory.
//!
//! Allowed and denied entries are kept in rings of their own, so that a flood of one kind does not
//! push out the other. Sequence numbers start from the clock, so that they go on growing when the
//! process is replaced. What is recorded goes to the journal as well, for the next process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use cove_model::egress::{EgressBatch, EgressEntry, EgressProtocol, EgressQuery, EgressVerdict};
use time::OffsetDateTime;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::journal::{Kept, Scribe};
use crate::limits::Bucket;

/// Memory of one ring; an entry takes its texts and [`ENTRY_BYTES`].
pub const RING_BYTES_MAX: usize = 64 * 1024;
pub const ENTRY_BYTES: usize = size_of::<EgressEntry>();
/// Entries one answer has at most.
pub const BATCH_MAX: usize = 1000;
/// How long a question may wait for the first entry.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// Texts that come from guests are cut to this.
pub const TEXT_BYTES_MAX: usize = 300;

/// An entry without its number.
#[derive(Debug, Clone)]
pub struct Draft {
    pub protocol: EgressProtocol,
    pub name: Option<String>,
    pub address: Option<std::net::Ipv4Addr>,
    pub port: Option<u16>,
    pub verdict: EgressVerdict,
    pub rule: String,
}

#[derive(Debug)]
pub struct Log {
    rings: Mutex<Rings>,
    added: Notify,
    scribe: Option<Scribe>,
}

#[derive(Debug)]
struct Rings {
    allowed: Ring,
    denied: Ring,
    next: u64,
    /// The number below which entries may be missing.
    complete_from: u64,
}

#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<EgressEntry>,
    bytes: usize,
}

impl Ring {
    /// The number of the newest entry that was dropped for this one.
    fn push(&mut self, entry: EgressEntry) -> Option<u64> {
        self.bytes += cost(&entry);
        self.entries.push_back(entry);
        let mut dropped = None;
        while self.bytes > RING_BYTES_MAX {
            let Some(old) = self.entries.pop_front() else {
                break;
            };
            self.bytes -= cost(&old);
            dropped = Some(old.sequence);
        }
        dropped
    }

    fn take(&mut self, sequence: u64) -> Option<EgressEntry> {
        let at = self
            .entries
            .binary_search_by_key(&sequence, |entry| entry.sequence)
            .ok()?;
        let entry = self.entries.remove(at)?;
        self.bytes -= cost(&entry);
        Some(entry)
    }

    fn after(&self, sequence: u64) -> impl Iterator<Item = &EgressEntry> {
        let from = self
            .entries
            .partition_point(|entry| entry.sequence <= sequence);
        self.entries.range(from..)
    }
}

fn cost(entry: &EgressEntry) -> usize {
    ENTRY_BYTES + entry.name.as_ref().map_or(0, String::len) + entry.rule.len()
}

/// Where the numbers of a new log begin.
fn first_number() -> u64 {
    let micros = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1000;
    u64::try_from(micros).unwrap_or(1)
}

impl Log {
    #[cfg(test)]
    fn starting_at(first: u64) -> Self {
        Self::with(first, first, None)
    }

    fn with(next: u64, complete_from: u64, scribe: Option<Scribe>) -> Self {
        Self {
            rings: Mutex::new(Rings {
                allowed: Ring::default(),
                denied: Ring::default(),
                next,
                complete_from,
            }),
            added: Notify::new(),
            scribe,
        }
    }

    /// Goes on from what was kept, which may be nothing.
    pub fn restored(kept: &Kept, scribe: Option<Scribe>) -> Self {
        let first = first_number();
        let Some(last) = kept.entries.last() else {
            return Self::with(first, first, scribe);
        };
        // A clock that went back must not give a number twice.
        let next = first.max(last.sequence.saturating_add(1));
        let log = Self::with(next, kept.complete_from, scribe);
        let mut rings = log.rings();
        for entry in &kept.entries {
            rings.keep(entry.clone());
        }
        drop(rings);
        log
    }

    /// What its organisation may write of it into the journal, with all its others.
    pub fn belongs_to(&self, lines: Arc<Mutex<Bucket>>) {
        if let Some(scribe) = &self.scribe {
            scribe.belongs_to(lines);
        }
    }

    pub fn kept(&self, sandbox: cove_model::SandboxId) -> Kept {
        let rings = self.rings();
        let both = rings.allowed.entries.iter().chain(&rings.denied.entries);
        let mut entries: Vec<EgressEntry> = both.cloned().collect();
        entries.sort_unstable_by_key(|entry| entry.sequence);
        Kept {
            sandbox,
            entries,
            complete_from: rings.complete_from,
        }
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock()
    }

    pub fn record(&self, draft: Draft) -> u64 {
        self.append(EgressEntry {
            sequence: 0,
            at: OffsetDateTime::now_utc(),
            protocol: draft.protocol,
            name: draft.name,
            address: draft.address.map(Into::into),
            port: draft.port,
            verdict: draft.verdict,
            rule: draft.rule,
            sent_bytes: 0,
            received_bytes: 0,
        })
    }

    /// Gives the entry its number here, whatever it had.
    pub fn append(&self, mut entry: EgressEntry) -> u64 {
        cut(&mut entry.rule);
        if let Some(name) = &mut entry.name {
            cut(name);
        }
        let sequence = self.rings().push(entry, None, self.scribe.as_ref());
        self.added.notify_waiters();
        sequence
    }

    /// A connection is over. Its entry comes again with what it carried, under a new number, so that
    /// a follower hears of it; its old place is empty.
    /// `fault`: what the entry says in place of its rule.
    pub fn finish(&self, sequence: u64, sent_bytes: u64, received_bytes: u64, fault: Option<&str>) {
        let mut rings = self.rings();
        let Some(mut entry) = rings.allowed.take(sequence) else {
            return;
        };
        entry.sent_bytes = sent_bytes;
        entry.received_bytes = received_bytes;
        if let Some(fault) = fault {
            entry.rule = fault.to_owned();
        }
        rings.push(entry, Some(sequence), self.scribe.as_ref());
        drop(rings);
        self.added.notify_waiters();
    }

    pub async fn read(&self, query: &EgressQuery) -> EgressBatch {
        let deadline = Instant::now() + Duration::from_millis(query.wait_ms).min(WAIT_MAX);
        loop {
            let added = self.added.notified();
            tokio::pin!(added);
            added.as_mut().enable();
            let batch = self.look(query);
            if !batch.entries.is_empty() || batch.lost {
                return batch;
            }
            if tokio::time::timeout_at(deadline, added).await.is_err() {
                return self.look(query);
            }
        }
    }

    fn look(&self, query: &EgressQuery) -> EgressBatch {
        let rings = self.rings();
        let limit = usize::try_from(query.limit).unwrap_or(BATCH_MAX);
        let limit = limit.clamp(1, BATCH_MAX);
        let wanted = |verdict| query.verdict.is_none_or(|only| only == verdict);
        let mut entries: Vec<EgressEntry> = Vec::new();
        if wanted(EgressVerdict::Allowed) {
            entries.extend(rings.allowed.after(query.after).take(limit).cloned());
        }
        if wanted(EgressVerdict::Denied) {
            entries.extend(rings.denied.after(query.after).take(limit).cloned());
        }
        entries.sort_unstable_by_key(|entry| entry.sequence);
        entries.truncate(limit);
        let next = entries
            .last()
            .map_or_else(|| query.after.max(rings.next - 1), |entry| entry.sequence);
        EgressBatch {
            next,
            lost: query.after != 0 && query.after + 1 < rings.complete_from,
            entries,
        }
    }
}

impl Rings {
    fn push(
        &mut self,
        mut entry: EgressEntry,
        replaces: Option<u64>,
        scribe: Option<&Scribe>,
    ) -> u64 {
        let sequence = self.next;
        self.next += 1;
        entry.sequence = sequence;
        // Under the lock, so that lines are in the order of their numbers.
        if let Some(scribe) = scribe {
            scribe.note(&entry, replaces);
        }
        self.keep(entry);
        sequence
    }

    /// An entry that has its number already, and the highest.
    fn keep(&mut self, entry: EgressEntry) {
        let ring = match entry.verdict {
            EgressVerdict::Allowed => &mut self.allowed,
            EgressVerdict::Denied => &mut self.denied,
        };
        if let Some(dropped) = ring.push(entry) {
            self.complete_from = self.complete_from.max(dropped + 1);
        }
    }
}

fn cut(text: &mut String) {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX)
            .rev()
            .find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use cove_model::SandboxId;

    use super::*;

    fn draft(name: &str, verdict: EgressVerdict) -> Draft {
        Draft {
            protocol: EgressProtocol::Dns,
            name: Some(name.to_owned()),
            address: None,
            port: None,
            verdict,
            rule: "test".to_owned(),
        }
    }

    fn query(after: u64, limit: u32) -> EgressQuery {
        EgressQuery {
            sandbox: SandboxId::random(),
            after,
            limit,
            wait_ms: 0,
            verdict: None,
        }
    }

    #[tokio::test]
    async fn entries_come_in_order_and_once() {
        let log = Log::starting_at(100);
        log.record(draft("a", EgressVerdict::Allowed));
        log.record(draft("b", EgressVerdict::Denied));
        log.record(draft("c", EgressVerdict::Allowed));
        let first = log.read(&query(0, 2)).await;
        let names = |batch: &EgressBatch| -> Vec<_> {
            batch
                .entries
                .iter()
                .filter_map(|e| e.name.clone())
                .collect()
        };
        assert_eq!(names(&first), ["a", "b"]);
        let second = log.read(&query(first.next, 2)).await;
        assert_eq!(names(&second), ["c"]);
        assert!(!second.lost);
        let none = log.read(&query(second.next, 2)).await;
        assert_eq!((none.entries.len(), none.next), (0, second.next));
    }

    #[tokio::test]
    async fn a_flood_of_denials_keeps_what_was_allowed_and_says_that_some_are_lost() {
        let log = Log::starting_at(100);
        let kept = log.record(draft("kept", EgressVerdict::Allowed));
        for _ in 0..10_000 {
            log.record(draft(&"x".repeat(200), EgressVerdict::Denied));
        }
        let batch = log.read(&query(kept, 10)).await;
        assert!(batch.lost);
        let all = log.read(&query(0, 10)).await;
        assert_eq!(all.entries[0].name.as_deref(), Some("kept"));
        let rings = log.rings();
        assert!(rings.allowed.bytes + rings.denied.bytes <= 2 * RING_BYTES_MAX);
    }

    #[tokio::test]
    async fn a_finished_connection_comes_again_with_its_bytes() {
        let log = Log::starting_at(100);
        let sequence = log.record(draft("a", EgressVerdict::Allowed));
        let seen = log.read(&query(0, 10)).await;
        log.finish(sequence, 7, 9, None);
        let again = log.read(&query(seen.next, 10)).await;
        assert_eq!(again.entries.len(), 1);
        assert_eq!(
            (again.entries[0].sent_bytes, again.entries[0].received_bytes),
            (7, 9)
        );
        assert_eq!(log.read(&query(0, 10)).await.entries.len(), 1);
        assert!(!again.lost);
    }

    #[tokio::test]
    async fn a_reader_that_waits_is_woken() {
        let log = std::sync::Arc::new(Log::starting_at(100));
        let reader = {
            let log = log.clone();
            tokio::spawn(async move {
                let mut query = query(0, 10);
                query.wait_ms = 60_000;
                log.read(&query).await
            })
        };
        tokio::task::yield_now().await;
        log.record(draft("a", EgressVerdict::Denied));
        assert_eq!(reader.await.unwrap().entries.len(), 1);
    }
}
