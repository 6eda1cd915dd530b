//! Answers of the host's resolvers, kept for as long as they hold, within bounds.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use cove_model::network::Name;

use super::wire::{NO_ERROR, Record};

pub const ENTRIES_MAX: usize = 8192;
/// An answer holds at least this long, so that a connection right after the question needs no other.
pub const TTL_MIN_S: u32 = 5;
pub const TTL_MAX_S: u32 = 3600;
pub const NEGATIVE_TTL_MAX_S: u32 = 60;

/// What the outside knows of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    pub code: u8,
    pub records: Vec<Record>,
    pub until: Instant,
}

impl Known {
    pub fn new(
        code: u8,
        mut records: Vec<Record>,
        negative_ttl: Option<u32>,
        now: Instant,
    ) -> Self {
        for record in &mut records {
            record.ttl = record.ttl.clamp(TTL_MIN_S, TTL_MAX_S);
        }
        let negative = || {
            negative_ttl
                .unwrap_or(TTL_MIN_S)
                .clamp(TTL_MIN_S, NEGATIVE_TTL_MAX_S)
        };
        let shortest = records.iter().map(|record| record.ttl).min();
        let seconds = match (code, shortest) {
            (NO_ERROR, Some(ttl)) => ttl,
            _ => negative(),
        };
        Self {
            code,
            records,
            until: now + Duration::from_secs(seconds.into()),
        }
    }

    /// The records with the time that is left to them.
    pub fn records_now(&self, now: Instant) -> impl Iterator<Item = Record> {
        let left = self.until.saturating_duration_since(now).as_secs();
        let left = u32::try_from(left).unwrap_or(TTL_MAX_S).max(1);
        self.records.iter().map(move |record| Record {
            ttl: record.ttl.min(left),
            ..record.clone()
        })
    }
}

type Key = (Name, u16);

#[derive(Debug, Default)]
pub struct Cache {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    known: HashMap<Key, Arc<Known>>,
    /// In order of arrival; a key that came again is here twice.
    order: VecDeque<(Key, Instant)>,
}

impl Cache {
    pub fn get(&self, name: &Name, kind: u16, now: Instant) -> Option<Arc<Known>> {
        let kept = self.kept.lock();
        let known = kept.known.get(&(name.clone(), kind))?;
        (known.until > now).then(|| known.clone())
    }

    pub fn put(&self, name: Name, kind: u16, known: Arc<Known>) {
        let mut kept = self.kept.lock();
        let key = (name, kind);
        kept.order.push_back((key.clone(), known.until));
        kept.known.insert(key, known);
        while kept.order.len() > ENTRIES_MAX {
            let Some((key, until)) = kept.order.pop_front() else {
                break;
            };
            // A later answer for the same name has a later place in the order.
            if kept.known.get(&key).is_some_and(|it| it.until == until) {
                kept.known.remove(&key);
            }
        }
    }

    pub fn clear(&self) {
        *self.kept.lock() = Kept::default();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::dns::wire::{A, NO_SUCH_NAME};

    #[test]
    fn answers_hold_within_bounds() {
        let now = Instant::now();
        let record = |ttl| vec![Record::address(Ipv4Addr::LOCALHOST, ttl)];
        let held = |known: Known| (known.until - now).as_secs() as u32;
        assert_eq!(held(Known::new(NO_ERROR, record(0), None, now)), TTL_MIN_S);
        assert_eq!(
            held(Known::new(NO_ERROR, record(u32::MAX), None, now)),
            TTL_MAX_S
        );
        assert_eq!(
            held(Known::new(NO_SUCH_NAME, vec![], Some(9999), now)),
            NEGATIVE_TTL_MAX_S
        );
    }

    #[test]
    fn the_cache_is_bounded_and_forgets() {
        let now = Instant::now();
        let cache = Cache::default();
        let known = Arc::new(Known::new(NO_ERROR, vec![], None, now));
        for number in 0..ENTRIES_MAX + 10 {
            let name = Name::from_text(&format!("n{number}.example")).unwrap();
            cache.put(name, A, known.clone());
        }
        let name = |number: usize| Name::from_text(&format!("n{number}.example")).unwrap();
        assert!(cache.get(&name(0), A, now).is_none());
        assert!(cache.get(&name(20), A, now).is_some());
        assert!(cache.get(&name(20), A, known.until).is_none());
    }
}
