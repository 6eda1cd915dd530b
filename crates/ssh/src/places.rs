//! Who came too often: wrong logins by address, clients by sandbox.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cove_model::SandboxId;

use crate::CLIENTS_MAX;

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

/// Clients by sandbox.
#[derive(Default)]
pub struct Places(Mutex<HashMap<SandboxId, usize>>);

/// One client's place, given back when dropped.
pub struct Place {
    of: Arc<Places>,
    sandbox: SandboxId,
}

impl Places {
    fn table(&self) -> MutexGuard<'_, HashMap<SandboxId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn take(self: &Arc<Self>, sandbox: &SandboxId) -> Option<Place> {
        let mut table = self.table();
        let taken = table.entry(sandbox.clone()).or_insert(0);
        if *taken >= CLIENTS_MAX {
            return None;
        }
        *taken += 1;
        Some(Place {
            of: Arc::clone(self),
            sandbox: sandbox.clone(),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.of.table();
        if let Some(taken) = table.get_mut(&self.sandbox) {
            *taken -= 1;
            if *taken == 0 {
                table.remove(&self.sandbox);
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
    fn a_sandbox_has_so_many_places_and_gets_them_back() {
        let places = Arc::new(Places::default());
        let sandbox = SandboxId::random();
        let taken: Vec<_> = (0..CLIENTS_MAX).map(|_| places.take(&sandbox)).collect();
        assert!(taken.iter().all(Option::is_some));
        assert!(places.take(&sandbox).is_none());
        assert!(places.take(&SandboxId::random()).is_some());
        drop(taken);
        assert!(places.take(&sandbox).is_some());
        assert!(places.table().is_empty());
    }
}
