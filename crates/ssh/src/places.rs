//! Who came too often: wrong logins by address, clients by sandbox and organisation.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cove_model::{OrgId, SandboxId};

use crate::{CLIENTS_MAX, ORG_CHANNELS_MAX, ORG_CLIENTS_MAX};

/// Wrong logins from one address in one period; after that it is not listened to until the period ends.
pub const FAILURES_MAX: u32 = 30;
pub const FAILURES_PERIOD: Duration = Duration::from_secs(60);
/// Addresses remembered; those of strangers, so their number must be bounded.
const ADDRESSES_MAX: usize = 10_000;

#[derive(Default)]
pub struct Failures(Mutex<HashMap<IpAddr, (u32, Instant)>>);

/// One customer of a provider holds a whole network of IPv6 addresses.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => {
            let [a, b, c, d, ..] = six.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        four => four,
    }
}

impl Failures {
    fn table(&self) -> MutexGuard<'_, HashMap<IpAddr, (u32, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_barred(&self, address: IpAddr) -> bool {
        self.is_barred_at(address, Instant::now())
    }

    pub fn count(&self, address: IpAddr) {
        self.count_at(address, Instant::now());
    }

    fn is_barred_at(&self, address: IpAddr, now: Instant) -> bool {
        let table = self.table();
        let found = table.get(&source(address));
        found.is_some_and(|(count, since)| {
            *count >= FAILURES_MAX && now.saturating_duration_since(*since) < FAILURES_PERIOD
        })
    }

    fn count_at(&self, address: IpAddr, now: Instant) {
        let mut table = self.table();
        let over = |since: Instant| now.saturating_duration_since(since) >= FAILURES_PERIOD;
        if table.len() >= ADDRESSES_MAX {
            table.retain(|_, (_, since)| !over(*since));
        }
        // More strangers than can be told apart: begin anew rather than grow.
        if table.len() >= ADDRESSES_MAX {
            table.clear();
        }
        let entry = table.entry(source(address)).or_insert((0, now));
        if over(entry.1) {
            *entry = (0, now);
        }
        entry.0 += 1;
    }
}

/// Whose clients or channels are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Group {
    /// Connections of one sandbox.
    Sandbox(SandboxId),
    /// Connections of one organisation.
    Organisation(OrgId),
    /// Commands and forwarded connections of one organisation.
    Channels(OrgId),
}

impl Group {
    const fn max(&self) -> usize {
        match self {
            Self::Sandbox(_) => CLIENTS_MAX,
            Self::Organisation(_) => ORG_CLIENTS_MAX,
            Self::Channels(_) => ORG_CHANNELS_MAX,
        }
    }
}

/// How many each group has now.
#[derive(Default)]
pub struct Places(Mutex<HashMap<Group, usize>>);

/// One place, given back when dropped.
pub struct Place {
    of: Arc<Places>,
    group: Group,
}

impl Places {
    fn table(&self) -> MutexGuard<'_, HashMap<Group, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn take(self: &Arc<Self>, group: Group) -> Option<Place> {
        let mut table = self.table();
        let taken = table.get(&group).copied().unwrap_or_default();
        if taken >= group.max() {
            return None;
        }
        table.insert(group.clone(), taken + 1);
        Some(Place {
            of: Arc::clone(self),
            group,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.of.table();
        if let Some(taken) = table.get_mut(&self.group) {
            *taken -= 1;
            if *taken == 0 {
                table.remove(&self.group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_guesses_is_barred_for_a_while_and_others_are_not() {
        let failures = Failures::default();
        let now = Instant::now();
        let one: IpAddr = "2001:db8::1".parse().expect("an address");
        let beside: IpAddr = "2001:db8::2".parse().expect("an address");
        let other: IpAddr = "192.0.2.1".parse().expect("an address");
        for _ in 0..FAILURES_MAX {
            assert!(!failures.is_barred_at(one, now));
            failures.count_at(one, now);
        }
        assert!(failures.is_barred_at(one, now) && failures.is_barred_at(beside, now));
        assert!(!failures.is_barred_at(other, now));
        let later = now + FAILURES_PERIOD;
        assert!(!failures.is_barred_at(one, later));
        failures.count_at(one, later);
        assert!(!failures.is_barred_at(one, later));
    }

    #[test]
    fn strangers_cannot_make_the_book_grow_without_end() {
        let failures = Failures::default();
        for number in 0..ADDRESSES_MAX as u32 + 10 {
            failures.count(IpAddr::from(number.to_be_bytes()));
        }
        assert!(failures.table().len() <= ADDRESSES_MAX);
    }

    #[test]
    fn everybody_has_so_many_places_and_gets_them_back() {
        let places = Arc::new(Places::default());
        let (one, other) = (OrgId::random(), OrgId::random());
        for (group, beside) in [
            (
                Group::Sandbox(SandboxId::random()),
                Group::Sandbox(SandboxId::random()),
            ),
            (
                Group::Organisation(one.clone()),
                Group::Organisation(other.clone()),
            ),
            (Group::Channels(one.clone()), Group::Channels(other)),
        ] {
            let taken: Vec<_> = (0..group.max())
                .map(|_| places.take(group.clone()))
                .collect();
            assert!(taken.iter().all(Option::is_some));
            assert!(places.take(group.clone()).is_none(), "{group:?}");
            assert!(places.take(beside).is_some(), "{group:?}");
            drop(taken);
            assert!(places.take(group).is_some());
        }
        assert!(places.table().is_empty());
    }
}
