//! Places for connections, shared between the addresses they come from.
//!
//! An address has at most half of what others left free. One that has its share gets a further place by
//! giving up a connection on which nobody asks anything; when it has none, the new connection is closed.
//! The last part of the places is only for addresses with few connections, so that a health check is
//! answered whoever else is there.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use cove_control::Sharing;
use cove_control::shares::source;

use crate::pulse::Pulse;

/// Connections that an address may have while there is any place.
pub const FEW: usize = 8;
/// One in so many places is kept for addresses with few connections.
pub const RESERVE: usize = 8;

/// How so many places are shared.
pub const fn sharing(connections_max: usize) -> Sharing {
    Sharing {
        total: connections_max - connections_max / RESERVE,
        promised: FEW,
        hard: connections_max,
    }
}

#[derive(Default)]
struct Table {
    all: usize,
    next: u64,
    by: HashMap<IpAddr, HashMap<u64, Arc<Pulse>>>,
}

pub struct Addresses {
    sharing: Sharing,
    table: Mutex<Table>,
}

impl Addresses {
    pub fn new(connections_max: usize) -> Arc<Self> {
        Arc::new(Self {
            sharing: sharing(connections_max),
            table: Mutex::default(),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// A place for a connection from there, if there is one or one can be made.
    pub fn enter(self: &Arc<Self>, from: IpAddr, pulse: &Arc<Pulse>) -> Option<ConnectionPermit> {
        let from = source(from);
        let mut table = self.table();
        let mine = table.by.get(&from).map_or(0, HashMap::len);
        if mine >= self.sharing.share(table.all - mine) {
            let full = table.all >= self.sharing.hard;
            let whose = match mine < FEW && full {
                // Whoever has most makes room for one who has few.
                true => table
                    .by
                    .iter()
                    .max_by_key(|(_, all)| all.len())?
                    .0
                    .to_owned(),
                false => from,
            };
            table.give_up(whose)?;
        }
        let number = table.next;
        table.next += 1;
        table.all += 1;
        let all = table.by.entry(from).or_default();
        all.insert(number, Arc::clone(pulse));
        Some(ConnectionPermit {
            of: Arc::clone(self),
            from,
            number,
        })
    }
}

impl Table {
    /// Ends the connection on which nobody has asked anything for longest.
    fn give_up(&mut self, from: IpAddr) -> Option<()> {
        let all = self.by.get(&from)?;
        let idle = all
            .iter()
            .filter_map(|(number, pulse)| Some((pulse.idle_for()?, *number)));
        let (_, number) = idle.max()?;
        self.remove(from, number).inspect(|pulse| pulse.cut())?;
        Some(())
    }

    fn remove(&mut self, from: IpAddr, number: u64) -> Option<Arc<Pulse>> {
        let all = self.by.get_mut(&from)?;
        let pulse = all.remove(&number)?;
        if all.is_empty() {
            self.by.remove(&from);
        }
        self.all -= 1;
        Some(pulse)
    }
}

/// One connection's place, until it is dropped.
pub struct ConnectionPermit {
    of: Arc<Addresses>,
    from: IpAddr,
    number: u64,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.of.table().remove(self.from, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    /// A connection with a request under way.
    fn busy(
        addresses: &Arc<Addresses>,
        last: u8,
    ) -> Option<(ConnectionPermit, Arc<crate::pulse::Flight>)> {
        let pulse = Pulse::new();
        let place = addresses.enter(address(last), &pulse)?;
        Some((place, pulse.begin()))
    }

    #[test]
    fn an_address_has_its_share_and_others_have_theirs() {
        let addresses = Addresses::new(80);
        let most = addresses.sharing.most();
        assert_eq!(most, 35, "half of what is not kept for those with few");
        let one: Vec<_> = (0..most)
            .map(|_| busy(&addresses, 1).expect("a place"))
            .collect();
        assert!(busy(&addresses, 1).is_none());
        let other: Vec<_> = std::iter::from_fn(|| busy(&addresses, 2)).collect();
        assert_eq!(other.len(), 17);
        let mut crowd = Vec::new();
        for last in 3..200 {
            crowd.extend(busy(&addresses, last));
        }
        assert_eq!(addresses.table().all, 80, "never more than there are");
        drop((one, other, crowd));
        assert!(addresses.table().by.is_empty() && addresses.table().all == 0);
    }

    #[tokio::test]
    async fn a_connection_nobody_uses_makes_room() {
        let addresses = Addresses::new(80);
        let idle = Pulse::new();
        let _idle = addresses.enter(address(1), &idle).expect("a place");
        let most = addresses.sharing.most();
        let _busy: Vec<_> = (1..most)
            .map(|_| busy(&addresses, 1).expect("a place"))
            .collect();
        let newer = busy(&addresses, 1);
        assert!(newer.is_some());
        idle.ended().await;
        assert!(busy(&addresses, 1).is_none(), "now all are in use");
    }

    #[tokio::test]
    async fn many_addresses_that_only_wait_do_not_keep_one_out_that_asks() {
        let addresses = Addresses::new(16);
        let mut waiting = Vec::new();
        for last in 1..100 {
            let pulse = Pulse::new();
            waiting.extend(addresses.enter(address(last), &pulse));
        }
        assert!(busy(&addresses, 200).is_some());
    }
}
