//! How many connections from inside sandboxes are served at once and how often, shared between organisations.
//!
//! Nobody waits for a place here: a connection without one stays with the host, in its own sandbox's queue.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use cove_model::{OrgId, RateLimit, SandboxId, Steady, TokenBucket};
use parking_lot::Mutex;

use crate::shares::{Portion, Shares, Sharing};

/// Visits served at once: of everybody with what each organisation is promised, and of one sandbox.
pub const PLACES: Sharing = Sharing::new(256, 4);
const VISITS_EACH: usize = 4;
/// Visits of one sandbox and of one organisation, whatever they ask: signing a token takes about a
/// millisecond of CPU.
const SANDBOX_RATE: RateLimit = RateLimit {
    per_second: 100.0,
    burst: 200.0,
};
const ORG_RATE: RateLimit = RateLimit {
    per_second: 300.0,
    burst: 600.0,
};
/// What one sandbox changes: each is written to the database and to the audit trail.
const CHANGE_RATE: RateLimit = RateLimit {
    per_second: 1.0,
    burst: 5.0,
};
/// Sandboxes and organisations whose rates and owners are remembered.
const REMEMBERED_MAX: usize = 10_000;

struct Rates<K> {
    limit: RateLimit,
    buckets: Mutex<HashMap<K, TokenBucket<Steady>>>,
}

impl<K: Eq + Hash + Clone> Rates<K> {
    fn new(limit: RateLimit) -> Self {
        Self {
            limit,
            buckets: Mutex::default(),
        }
    }

    fn take(&self, key: &K, now: Steady) -> bool {
        let mut buckets = self.buckets.lock();
        if buckets.len() >= REMEMBERED_MAX {
            buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        let bucket = buckets.entry(key.clone());
        let bucket = bucket.or_insert_with(|| TokenBucket::full(self.limit, now));
        bucket.take(1, now).is_ok()
    }
}

/// Who visits now, and how often each came lately.
pub(crate) struct Visits {
    present: Mutex<HashMap<SandboxId, usize>>,
    places: Arc<Shares<OrgId>>,
    sandboxes: Rates<SandboxId>,
    organisations: Rates<OrgId>,
    changes: Rates<SandboxId>,
    /// A sandbox never changes hands.
    owners: Mutex<HashMap<SandboxId, OrgId>>,
}

impl Default for Visits {
    fn default() -> Self {
        Self {
            present: Mutex::default(),
            places: Shares::new(PLACES),
            sandboxes: Rates::new(SANDBOX_RATE),
            organisations: Rates::new(ORG_RATE),
            changes: Rates::new(CHANGE_RATE),
            owners: Mutex::default(),
        }
    }
}

impl Visits {
    pub(super) fn owner(&self, id: &SandboxId) -> Option<OrgId> {
        self.owners.lock().get(id).cloned()
    }

    pub(super) fn remember_owner(&self, id: &SandboxId, org: &OrgId) {
        let mut owners = self.owners.lock();
        if owners.len() >= REMEMBERED_MAX {
            owners.clear();
        }
        owners.insert(id.clone(), org.clone());
    }

    /// A visit, counted from here on; `None` while the sandbox or its organisation has or does too much.
    pub(super) fn begin(
        self: &Arc<Self>,
        id: &SandboxId,
        org: &OrgId,
        now: Steady,
    ) -> Option<Visit> {
        let mut present = self.present.lock();
        let count = present.get(id).copied().unwrap_or_default();
        if count >= VISITS_EACH {
            return None;
        }
        let place = self.places.take(org.clone(), 1)?;
        if !self.sandboxes.take(id, now) || !self.organisations.take(org, now) {
            return None;
        }
        present.insert(id.clone(), count + 1);
        Some(Visit {
            visits: Arc::clone(self),
            id: id.clone(),
            _place: place,
        })
    }

    /// Whether a sandbox may change something about itself now.
    pub(super) fn may_change(&self, id: &SandboxId, now: Steady) -> bool {
        self.changes.take(id, now)
    }
}

/// One visit under way.
pub(super) struct Visit {
    visits: Arc<Visits>,
    id: SandboxId,
    _place: Portion<OrgId>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut present = self.visits.present.lock();
        if let Some(count) = present.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                present.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandboxes(count: usize) -> Vec<SandboxId> {
        (0..count).map(|_| SandboxId::random()).collect()
    }

    fn at(seconds: i64) -> Steady {
        Steady::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn an_organisation_that_holds_its_places_leaves_others_theirs() {
        let visits = Arc::new(Visits::default());
        let (greedy, other) = (OrgId::random(), OrgId::random());
        let held: Vec<Visit> = sandboxes(200)
            .iter()
            .flat_map(|id| (0..8).filter_map(|_| visits.begin(id, &greedy, at(0))))
            .collect();
        assert_eq!(held.len(), PLACES.most());
        let id = SandboxId::random();
        let served: Vec<_> = (0..8)
            .filter_map(|_| visits.begin(&id, &other, at(0)))
            .collect();
        assert_eq!(served.len(), VISITS_EACH);
        drop((held, served));
        assert_eq!(visits.places.held(), 0);
        assert!(visits.present.lock().is_empty());
    }

    #[test]
    fn visits_count_when_they_begin_whatever_becomes_of_them() {
        let visits = Arc::new(Visits::default());
        let org = OrgId::random();
        let id = SandboxId::random();
        let begun = |id: &SandboxId, org: &OrgId, now| {
            let one = |_: &usize| visits.begin(id, org, now).is_some();
            (0..1000).filter(one).count()
        };
        assert_eq!(begun(&id, &org, at(0)), 200);
        assert_eq!(begun(&id, &org, at(1)), 100);
        // Many sandboxes of one organisation are bound together.
        let others: usize = sandboxes(20).iter().map(|id| begun(id, &org, at(1))).sum();
        assert_eq!(others, 600 - 100);
        assert_eq!(begun(&SandboxId::random(), &OrgId::random(), at(1)), 200);
    }

    #[test]
    fn changes_are_a_few_and_then_one_a_second() {
        let visits = Visits::default();
        let id = SandboxId::random();
        let made = |now| (0..100).filter(|_| visits.may_change(&id, now)).count();
        assert_eq!(made(at(0)), 5);
        assert_eq!(made(at(2)), 2);
    }
}
