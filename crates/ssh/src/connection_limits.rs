//! Who came too often: wrong logins by address, clients by sandbox and organisation.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use cove_control::shares::source;
use cove_control::{Portion, Shares, Sharing};
use cove_model::{OrgId, SandboxId};

use crate::{CHANNELS, CLIENTS, SANDBOX_CLIENTS_MAX};

/// Wrong logins from one address in one period; after that it is not listened to until the period ends.
pub const FAILURES_MAX: u32 = 30;
pub const FAILURES_PERIOD: Duration = Duration::from_secs(60);
/// Addresses remembered; those of unknown senders, so their number must be bounded.
const ADDRESSES_MAX: usize = 10_000;

#[derive(Default)]
pub struct Failures(Mutex<HashMap<IpAddr, (u32, Instant)>>);

impl Failures {
    fn table(&self) -> MutexGuard<'_, HashMap<IpAddr, (u32, Instant)>> {
        self.0.lock()
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
        // More addresses than are remembered: begin anew rather than grow.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Group {
    /// Connections of one sandbox.
    Sandbox(SandboxId),
    /// Connections of one organisation.
    Organisation(OrgId),
    /// Commands and forwarded connections of one organisation.
    Channels(OrgId),
}

/// How many each group has now.
pub struct ConnectionLimits {
    sandboxes: Arc<Shares<SandboxId>>,
    clients: Arc<Shares<OrgId>>,
    channels: Arc<Shares<OrgId>>,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            // A sandbox has its number; others' sandboxes have theirs.
            sandboxes: Shares::new(Sharing::new(0, SANDBOX_CLIENTS_MAX)),
            clients: Shares::new(CLIENTS),
            channels: Shares::new(CHANNELS),
        }
    }
}

/// One place, given back when dropped.
#[derive(Default)]
pub struct ConnectionPermit {
    of_sandbox: Option<Portion<SandboxId>>,
    of_org: Option<Portion<OrgId>>,
}

impl ConnectionLimits {
    pub fn take(&self, group: Group) -> Option<ConnectionPermit> {
        let mut place = ConnectionPermit::default();
        match group {
            Group::Sandbox(id) => place.of_sandbox = Some(self.sandboxes.take(id, 1)?),
            Group::Organisation(org) => place.of_org = Some(self.clients.take(org, 1)?),
            Group::Channels(org) => place.of_org = Some(self.channels.take(org, 1)?),
        }
        Some(place)
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
        let places = ConnectionLimits::default();
        let (one, other) = (OrgId::random(), OrgId::random());
        for (group, beside, max) in [
            (
                Group::Sandbox(SandboxId::random()),
                Group::Sandbox(SandboxId::random()),
                SANDBOX_CLIENTS_MAX,
            ),
            (
                Group::Organisation(one.clone()),
                Group::Organisation(other.clone()),
                CLIENTS.most(),
            ),
            (
                Group::Channels(one.clone()),
                Group::Channels(other),
                CHANNELS.most(),
            ),
        ] {
            let taken: Vec<_> = (0..max).map(|_| places.take(group.clone())).collect();
            assert!(taken.iter().all(Option::is_some));
            assert!(places.take(group.clone()).is_none(), "{group:?}");
            assert!(places.take(beside).is_some(), "{group:?}");
            drop(taken);
            assert!(places.take(group).is_some());
        }
        let held = places.sandboxes.held() + places.clients.held() + places.channels.held();
        assert_eq!(held, 0);
    }
}
