//! What is refused because the sandbox has no network: names, by a resolver on the loopback, and attempts to reach an
//! address, by the kernel's count.
//!
//! While the network is off, the address of the host's resolver, which `/etc/resolv.conf` names, is one of the
//! loopback's own. The spawner and the host see to that, in the namespace; the guest only looks. So nothing inside
//! changes when the policy does: with a network the same queries leave by the interface.
//!
//! Everything in here comes from programs that may be hostile. A flood of queries takes the sandbox's own CPU, fills
//! [`REFUSED_NAMES_MAX`] names and is counted from there on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::rc::Rc;
use std::time::Duration;

use cove_limits::REFUSED_NAMES_MAX;
use cove_protocol::message::{self, RefusedName, ReplyKind};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::task::{spawn_local, yield_now};

use crate::call::{Call, Ended};
use crate::state::State;

mod query;

const PORT: u16 = 53;
/// After a failed read, so that an error that stays does not take the CPU.
const PAUSE: Duration = Duration::from_millis(100);
/// Where the kernel counts packets that had no route, by address family.
const COUNTS: [(&str, &str); 2] = [
    ("/proc/self/net/snmp", "Ip: "),
    ("/proc/self/net/snmp6", "Ip6OutNoRoutes"),
];

pub struct Refusals {
    /// The host's resolver, as the spawner says it.
    resolver: Option<Ipv4Addr>,
    listening: Cell<bool>,
    /// Told when the resolver's address is not ours any more.
    left: Notify,
    names: RefCell<BTreeMap<String, u64>>,
    more: Cell<u64>,
    last: RefCell<String>,
    /// Queries refused so far; grows.
    queries: Cell<u64>,
    refused: Notify,
    /// What the kernel had counted when that was last reported.
    reported: Cell<u64>,
    /// What it had counted when that was last read.
    known: Cell<u64>,
}

/// How much had been refused at some moment.
#[derive(Clone, Copy)]
pub struct Mark {
    queries: u64,
    addresses: u64,
}

impl Refusals {
    pub fn new(resolver: Option<Ipv4Addr>) -> Self {
        Self {
            resolver,
            listening: Cell::new(false),
            left: Notify::new(),
            names: RefCell::default(),
            more: Cell::new(0),
            last: RefCell::default(),
            queries: Cell::new(0),
            refused: Notify::new(),
            reported: Cell::new(0),
            known: Cell::new(0),
        }
    }

    fn note(&self, name: String) {
        self.last.borrow_mut().clone_from(&name);
        let mut names = self.names.borrow_mut();
        let room = names.len() < REFUSED_NAMES_MAX;
        match names.entry(name) {
            Entry::Occupied(mut known) => *known.get_mut() += 1,
            Entry::Vacant(free) if room => {
                free.insert(1);
            }
            Entry::Vacant(_) => self.more.set(self.more.get() + 1),
        }
        self.queries.set(self.queries.get() + 1);
        self.refused.notify_waiters();
    }

    /// Whether names are refused here, and reported.
    pub fn listens(&self) -> bool {
        self.listening.get()
    }

    /// Where a command begins. Costs nothing: the kernel's counts are read after each command.
    pub fn mark(&self) -> Mark {
        Mark {
            queries: self.queries.get(),
            addresses: self.known.get(),
        }
    }

    /// Reads the kernel's counts, so that the next command is not charged for what was tried before it.
    pub fn catch_up(&self) -> u64 {
        let counted = without_route();
        self.known.set(counted);
        counted
    }

    /// A name was refused since then, and which was the last.
    pub fn name_since(&self, mark: Mark) -> Option<message::Refusals> {
        let queries = self.queries.get().saturating_sub(mark.queries);
        let name = self.last.borrow().clone();
        (queries > 0).then(|| message::Refusals {
            names: vec![RefusedName { name, queries }],
            ..message::Refusals::default()
        })
    }

    /// Addresses were tried since then.
    pub fn addresses_since(&self, mark: Mark) -> Option<message::Refusals> {
        let addresses = grown(mark.addresses, self.catch_up());
        (addresses > 0).then(|| message::Refusals {
            addresses,
            ..message::Refusals::default()
        })
    }

    /// Returns when the next name is refused; the caller looks before it waits.
    pub fn refused(&self) -> tokio::sync::futures::Notified<'_> {
        self.refused.notified()
    }

    /// Returns when the socket is closed, which it is soon after the quiet begins.
    pub async fn closed(&self) {
        while self.listening.get() {
            yield_now().await;
        }
    }

    fn take(&self) -> message::Refusals {
        let names = std::mem::take(&mut *self.names.borrow_mut());
        let counted = self.catch_up();
        message::Refusals {
            names: names
                .into_iter()
                .map(|(name, queries)| RefusedName { name, queries })
                .collect(),
            more: self.more.take(),
            addresses: grown(self.reported.replace(counted), counted),
        }
    }
}

/// Counts of a namespace begin at nothing again where a sandbox was restored.
fn grown(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

pub async fn serve(state: &State, call: &mut Call) -> Result<(), Ended> {
    let refusals = state.refusals.take();
    call.reply(ReplyKind::Refusals(refusals)).await?;
    Ok(())
}

/// Listens if the resolver's address is the loopback's now, and ends listening if it is not. Called with every command
/// that starts: a policy that changes later changes where queries go, whether or not anybody listens here.
pub fn look(state: &Rc<State>) {
    let refusals = &state.refusals;
    let Some(resolver) = refusals.resolver else {
        return;
    };
    if refusals.listening.get() {
        // Any port: only the address is asked about.
        if bind(resolver, 0).is_err() {
            refusals.left.notify_waiters();
        }
        return;
    }
    if state.quiet.is_on() {
        return;
    }
    // There is a network, or a program inside serves names itself.
    let Ok(socket) = bind(resolver, PORT) else {
        return;
    };
    refusals.listening.set(true);
    spawn_local(listen(Rc::clone(state), socket));
}

fn bind(address: Ipv4Addr, port: u16) -> std::io::Result<UdpSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    if port != 0 {
        // A name server inside that listens on every address, and allows the same, can start beside this one.
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &SocketAddrV4::new(address, port))?;
    UdpSocket::from_std(std::net::UdpSocket::from(socket))
}

async fn listen(state: Rc<State>, socket: UdpSocket) {
    let refusals = &state.refusals;
    let mut buffer = [0; query::BYTES_MAX];
    loop {
        let received = tokio::select! {
            biased;
            // A socket at an address that a copy may not have cannot be captured.
            () = state.quiet.begun() => break,
            () = refusals.left.notified() => break,
            received = socket.recv_from(&mut buffer) => received,
        };
        match received {
            Ok((length, asker)) => answer(refusals, &socket, &mut buffer, length, asker),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    drop(socket);
    refusals.listening.set(false);
    if state.quiet.is_on() {
        state.quiet.over().await;
        look(&state);
    }
}

fn answer(
    refusals: &Refusals,
    socket: &UdpSocket,
    buffer: &mut [u8],
    length: usize,
    asker: SocketAddr,
) {
    let Some((name, length)) = query::refuse(buffer, length) else {
        return;
    };
    refusals.note(name);
    // An asker that is gone, or takes nothing, asks again if it wants to know.
    let _ = socket.try_send_to(&buffer[..length], asker);
}

/// Packets that the kernel had no route for, in this network namespace.
fn without_route() -> u64 {
    COUNTS
        .iter()
        .map(|(path, line)| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            counted(&text, line)
        })
        .sum()
}

fn counted(text: &str, line: &str) -> u64 {
    let mut lines = text.lines().filter_map(|it| it.strip_prefix(line));
    let (Some(first), second) = (lines.next(), lines.next()) else {
        return 0;
    };
    let number = match second {
        // A line of names and one of numbers.
        Some(numbers) => {
            let mut columns = first.split(' ').zip(numbers.split(' '));
            columns.find(|(name, _)| *name == "OutNoRoutes")
        }
        None => Some(("", first.trim())),
    };
    number.map_or(0, |(_, number)| number.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counts_are_read() {
        let four = "Ip: Forwarding OutNoRoutes ReasmTimeout\nIp: 2 17 0\nIcmp: A\nIcmp: 1\n";
        assert_eq!(counted(four, "Ip: "), 17);
        let six = "Ip6OutDiscards                  \t0\nIp6OutNoRoutes                  \t5\n";
        assert_eq!(counted(six, "Ip6OutNoRoutes"), 5);
        for odd in [
            "",
            "Ip: OutNoRoutes\n",
            "Ip: OutNoRoutes\nIp: x\n",
            "Ip: \nIp: \n",
        ] {
            assert_eq!(counted(odd, "Ip: "), 0, "{odd:?}");
        }
        assert!(grown(5, 7) == 2 && grown(7, 5) == 5);
    }

    #[test]
    fn a_flood_of_names_is_counted_and_not_kept() {
        let refusals = Refusals::new(None);
        let before = Mark {
            queries: 0,
            addresses: 0,
        };
        assert_eq!(refusals.name_since(before), None);
        for number in 0..10_000 {
            refusals.note(format!("n{number}.example"));
        }
        refusals.note("n3.example".into());
        let since = refusals.name_since(before).unwrap();
        assert_eq!(since.names[0].name, "n3.example");
        assert_eq!(since.names[0].queries, 10_001);
        let taken = refusals.take();
        assert_eq!(taken.names.len(), REFUSED_NAMES_MAX);
        assert_eq!(taken.more as usize, 10_000 - REFUSED_NAMES_MAX);
        let third = taken.names.iter().find(|it| it.name == "n3.example");
        assert_eq!(third.unwrap().queries, 2);
        let again = refusals.take();
        assert!(again.names.is_empty() && again.more == 0, "it is forgotten");
    }
}
