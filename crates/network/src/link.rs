//! Interfaces, addresses, routes and rate limits over rtnetlink.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::address::{Addresses, INNER_PREFIX, INSIDE, MAC, PREFIX, interface, mask};
use crate::netlink::{
    APPEND, Attributes, Batch, CREATE, DUMP, EXCLUSIVE, NetlinkError, Socket, attribute,
    attributes, read_u32,
};

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const NEW_QDISC: u16 = 36;
const DELETE_QDISC: u16 = 37;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET_CONF: u16 = 1;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// The state of a neighbour that never changes.
const PERMANENT: u16 = 0x80;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

const AF_INET: u8 = 2;
const UP: u32 = 0x1;
const NO_ARP: u32 = 0x80;
const TABLE_LOCAL: u8 = 255;
const TABLE_MAIN: u8 = 254;
const PROTOCOL_STATIC: u8 = 4;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const SCOPE_HOST: u8 = 254;
const ROUTE_UNICAST: u8 = 1;
const ROUTE_LOCAL: u8 = 2;
const LOOPBACK_INDEX: u32 = 1;

/// Settings of an interface (`net.ipv4.conf.*`) by their number.
const CONF_FORWARDING: u16 = 1;
const CONF_ACCEPT_REDIRECTS: u16 = 4;
const CONF_SEND_REDIRECTS: u16 = 6;
const CONF_RP_FILTER: u16 = 8;
const CONF_ACCEPT_SOURCE_ROUTE: u16 = 9;

/// Bytes that went over an interface, as its sandbox sees them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub sent: u64,
    pub received: u64,
}

fn link_header(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

/// Makes the pair: one end here, the other inside, both down. Fails with EEXIST when the name is taken.
pub fn make_pair(
    host: &mut Socket,
    index: u32,
    inside: BorrowedFd<'_>,
) -> Result<(), NetlinkError> {
    let mut pair = Attributes::default();
    let one_queue = |link: &mut Attributes| {
        link.put(IFLA_ADDRESS, &MAC);
        link.put_u32(IFLA_NUM_TX_QUEUES, 1);
        link.put_u32(IFLA_NUM_RX_QUEUES, 1);
    };
    pair.put_str(IFLA_IFNAME, &interface(index));
    one_queue(&mut pair);
    pair.nest(IFLA_LINKINFO, |info| {
        info.put_str(IFLA_INFO_KIND, "veth");
        info.nest(IFLA_INFO_DATA, |data| {
            data.nest(VETH_INFO_PEER, |peer| {
                peer.raw(&link_header(0, NO_ARP, NO_ARP));
                peer.put_str(IFLA_IFNAME, INSIDE);
                one_queue(peer);
                peer.put_u32(IFLA_NET_NS_FD, inside.as_raw_fd() as u32);
            });
        });
    });
    let mut batch = Batch::default();
    let header = link_header(0, NO_ARP, NO_ARP);
    batch.message(
        "make the interface",
        NEW_LINK,
        CREATE | EXCLUSIVE,
        &header,
        &pair,
    );
    host.transact(batch)
}

/// Settings, route and the switch of the host's end.
pub fn bring_up(host: &mut Socket, index: u32, outer: Ipv4Addr) -> Result<(), NetlinkError> {
    let name = interface(index);
    let link = find(host, &name)?.ok_or_else(|| gone("bring up the interface"))?;
    // Off before the interface is up: no address, no routes, no multicast groups, no packets.
    match fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1") {
        Ok(()) => {}
        // A kernel without IPv6 has nothing to switch off.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => {
            return Err(NetlinkError {
                step: "switch IPv6 off on the interface",
                source,
            });
        }
    }
    let mut batch = Batch::default();
    let mut settings = Attributes::default();
    settings.nest(IFLA_AF_SPEC, |families| {
        families.nest(u16::from(AF_INET), |inet| {
            inet.nest(IFLA_INET_CONF, |conf| {
                // A packet whose source is not routed back here goes no further. Should the rules ever be
                // gone, sources are not rewritten any more, and this is what drops everything.
                conf.put_u32(CONF_RP_FILTER, 1);
                conf.put_u32(CONF_FORWARDING, 1);
                conf.put_u32(CONF_ACCEPT_REDIRECTS, 0);
                conf.put_u32(CONF_SEND_REDIRECTS, 0);
                conf.put_u32(CONF_ACCEPT_SOURCE_ROUTE, 0);
            });
        });
    });
    let header = link_header(link, UP | NO_ARP, UP | NO_ARP);
    batch.message("bring up the interface", NEW_LINK, 0, &header, &settings);
    let mut route = Attributes::default();
    route.put(RTA_DST, &outer.octets());
    route.put_u32(RTA_OIF, link);
    let header = route_header(32, TABLE_MAIN, SCOPE_LINK, ROUTE_UNICAST);
    batch.message(
        "route the sandbox's address",
        NEW_ROUTE,
        CREATE | EXCLUSIVE,
        &header,
        &route,
    );
    host.transact(batch)
}

/// The inside end's address and route. `inside` is a socket of the sandbox's namespace.
pub fn configure_inside(inside: &mut Socket, plan: &Addresses) -> Result<(), NetlinkError> {
    let link = find(inside, INSIDE)?.ok_or_else(|| gone("configure the inside"))?;
    let mut batch = Batch::default();
    let header = link_header(link, UP, UP);
    batch.message(
        "bring up the inside",
        NEW_LINK,
        0,
        &header,
        &Attributes::default(),
    );
    let mut address = Attributes::default();
    address.put(IFA_LOCAL, &plan.inner().octets());
    address.put(IFA_ADDRESS, &plan.inner().octets());
    let mut header = [AF_INET, INNER_PREFIX, 0, SCOPE_UNIVERSE, 0, 0, 0, 0];
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    batch.message(
        "set the inner address",
        NEW_ADDRESS,
        CREATE | EXCLUSIVE,
        &header,
        &address,
    );
    let mut route = Attributes::default();
    route.put(RTA_GATEWAY, &plan.gateway().octets());
    route.put_u32(RTA_OIF, link);
    let header = route_header(0, TABLE_MAIN, SCOPE_UNIVERSE, ROUTE_UNICAST);
    batch.message(
        "set the inner route",
        NEW_ROUTE,
        CREATE | EXCLUSIVE,
        &header,
        &route,
    );
    inside.transact(batch)
}

/// Tells the inside the gateway's hardware address for good: who takes the addresses over asks for it by ARP, which
/// neither end answers.
pub fn know_gateway(inside: &mut Socket, plan: &Addresses) -> Result<(), NetlinkError> {
    let link = find(inside, INSIDE)?.ok_or_else(|| gone("announce the gateway's address"))?;
    let mut neighbour = Attributes::default();
    neighbour.put(NDA_DST, &plan.gateway().octets());
    neighbour.put(NDA_LLADDR, &MAC);
    let mut header = [0; 12];
    header[0] = AF_INET;
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[8..10].copy_from_slice(&PERMANENT.to_ne_bytes());
    let mut batch = Batch::default();
    batch.message(
        "announce the gateway's address",
        NEW_NEIGHBOUR,
        CREATE,
        &header,
        &neighbour,
    );
    inside.transact(batch)
}

fn route_header(bits: u8, table: u8, scope: u8, kind: u8) -> [u8; 12] {
    [
        AF_INET,
        bits,
        0,
        0,
        table,
        PROTOCOL_STATIC,
        scope,
        kind,
        0,
        0,
        0,
        0,
    ]
}

/// Makes the gateway's address one of the host's own, or takes that back. `metric` tells engines of
/// one host apart, which all use the same address.
pub fn local_address(
    host: &mut Socket,
    address: Ipv4Addr,
    metric: u32,
    present: bool,
) -> Result<(), NetlinkError> {
    let mut route = Attributes::default();
    route.put(RTA_DST, &address.octets());
    route.put_u32(RTA_OIF, LOOPBACK_INDEX);
    route.put_u32(RTA_PRIORITY, metric);
    let header = route_header(32, TABLE_LOCAL, SCOPE_HOST, ROUTE_LOCAL);
    let mut batch = Batch::default();
    let (kind, flags) = if present {
        (NEW_ROUTE, CREATE | APPEND)
    } else {
        (DELETE_ROUTE, 0)
    };
    batch.message("set the gateway's address", kind, flags, &header, &route);
    match host.transact(batch) {
        Err(error)
            if matches!(
                error.errno(),
                Some(rustix::io::Errno::EXIST | rustix::io::Errno::SRCH)
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// The host's own addresses that [`local_address`] made, each with its metric.
pub fn local_addresses(host: &mut Socket) -> Result<Vec<(Ipv4Addr, u32)>, NetlinkError> {
    let mut batch = Batch::default();
    let header = route_header(0, TABLE_LOCAL, 0, 0);
    let all = Attributes::default();
    batch.message("list the host's addresses", GET_ROUTE, DUMP, &header, &all);
    let wanted = route_header(32, TABLE_LOCAL, SCOPE_HOST, ROUTE_LOCAL);
    let mut found = Vec::new();
    host.ask("list the host's addresses", batch, |_, body| {
        let (Some(header), Some(rest)) = (body.get(..8), body.get(12..)) else {
            return;
        };
        let address = attribute(rest, RTA_DST).and_then(|value| <[u8; 4]>::try_from(value).ok());
        let metric = attribute(rest, RTA_PRIORITY).and_then(read_u32);
        if let (true, Some(address), Some(metric)) = (header == &wanted[..8], address, metric) {
            found.push((Ipv4Addr::from(address), metric));
        }
    })?;
    Ok(found)
}

/// The index of an interface, if there is one of that name.
pub fn find(socket: &Socket, name: &str) -> Result<Option<u32>, NetlinkError> {
    match rustix::net::netdevice::name_to_index(socket.fd(), name) {
        Ok(index) => Ok(Some(index)),
        Err(rustix::io::Errno::NODEV) => Ok(None),
        Err(errno) => Err(NetlinkError {
            step: "look for an interface",
            source: errno.into(),
        }),
    }
}

/// What went over a sandbox's interface; `None` when it is gone.
pub fn counters(host: &mut Socket, index: u32) -> Result<Option<Counters>, NetlinkError> {
    let mut wanted = Attributes::default();
    wanted.put_str(IFLA_IFNAME, &interface(index));
    let mut batch = Batch::default();
    batch.message(
        "look for an interface",
        GET_LINK,
        0,
        &link_header(0, 0, 0),
        &wanted,
    );
    batch.acknowledge();
    let mut found = None;
    let asked = host.ask("look for an interface", batch, |kind, body| {
        if kind == NEW_LINK {
            found = Some(body.get(16..).map(read_counters).unwrap_or_default());
        }
    });
    match asked {
        Err(error) if error.errno() == Some(rustix::io::Errno::NODEV) => Ok(None),
        Err(error) => Err(error),
        Ok(()) => Ok(found),
    }
}

fn read_counters(body: &[u8]) -> Counters {
    let word = |stats: &[u8], at: usize| {
        stats
            .get(at * 8..at * 8 + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u64::from_ne_bytes)
    };
    // What the host's end receives is what the sandbox sent.
    attribute(body, IFLA_STATS64).map_or(Counters::default(), |stats| Counters {
        sent: word(stats, 2),
        received: word(stats, 3),
    })
}

/// Every interface whose name begins like a sandbox's.
pub fn list(host: &mut Socket) -> Result<Vec<String>, NetlinkError> {
    let mut batch = Batch::default();
    batch.message(
        "list interfaces",
        GET_LINK,
        DUMP,
        &link_header(0, 0, 0),
        &Attributes::default(),
    );
    let mut names = Vec::new();
    host.ask("list interfaces", batch, |_, body| {
        let name = body
            .get(16..)
            .and_then(|rest| attribute(rest, IFLA_IFNAME))
            .map(|bytes| {
                String::from_utf8_lossy(bytes)
                    .trim_end_matches('\0')
                    .to_owned()
            });
        if let Some(name) = name.filter(|name| name.starts_with(PREFIX)) {
            names.push(name);
        }
    })?;
    Ok(names)
}

/// Deletes an interface; done already when there is none. Takes tens of milliseconds.
pub fn delete(host: &mut Socket, name: &str) -> Result<(), NetlinkError> {
    let mut wanted = Attributes::default();
    wanted.put_str(IFLA_IFNAME, name);
    let mut batch = Batch::default();
    batch.message(
        "delete an interface",
        DELETE_LINK,
        0,
        &link_header(0, 0, 0),
        &wanted,
    );
    match host.transact(batch) {
        Err(error) if error.errno() == Some(rustix::io::Errno::NODEV) => Ok(()),
        other => other,
    }
}

/// A route of somebody else's that our addresses would take packets from.
pub fn conflict(host: &mut Socket, plan: &Addresses) -> Result<Option<String>, NetlinkError> {
    let mut batch = Batch::default();
    let header = route_header(0, 0, 0, 0);
    batch.message(
        "list routes",
        GET_ROUTE,
        DUMP,
        &header,
        &Attributes::default(),
    );
    let mut routes = Vec::new();
    host.ask("list routes", batch, |_, body| {
        let (Some(&family), Some(&bits), Some(&table)) = (body.first(), body.get(1), body.get(4))
        else {
            return;
        };
        let (mut network, mut link) = (Ipv4Addr::UNSPECIFIED, 0);
        for (kind, value) in body.get(12..).map(attributes).into_iter().flatten() {
            match kind {
                RTA_DST => {
                    network = <[u8; 4]>::try_from(value).map_or(network, Ipv4Addr::from);
                }
                RTA_OIF => link = read_u32(value).unwrap_or(0),
                _ => {}
            }
        }
        // A default route is nobody's own network.
        if family == AF_INET && table == TABLE_MAIN && bits > 0 && plan.overlaps(network, bits) {
            routes.push((network, bits, link));
        }
    })?;
    for (network, bits, link) in routes {
        // One that went away since, as those of other engines' sandboxes do all the time, is in nobody's way.
        let Some(name) = name_of(link) else { continue };
        if !name.starts_with(PREFIX) {
            let network = Ipv4Addr::from(u32::from(network) & mask(bits));
            return Ok(Some(format!("{network}/{bits} on {name}")));
        }
    }
    Ok(None)
}

pub fn name_of(link: u32) -> Option<String> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )
    .ok()?;
    rustix::net::netdevice::index_to_name(&socket, link).ok()
}

fn gone(step: &'static str) -> NetlinkError {
    NetlinkError {
        step,
        source: io::Error::new(io::ErrorKind::NotFound, "the interface is gone"),
    }
}

const ROOT: u32 = 0xffff_ffff;
const HANDLE: u32 = 0x0001_0000;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
const LINK_LAYER_ETHERNET: u8 = 1;
/// What may go at full speed after a pause: a few milliseconds' worth, and never less than the largest
/// packet a kernel hands down in one piece.
const BURST_MIN_BYTES: u64 = 128 * 1024;
const BURST_PER_SECOND: u64 = 250;
/// What may wait: this part of a second's worth.
const QUEUE_PER_SECOND: u64 = 20;

/// Limits what leaves through an interface, or lifts the limit.
pub fn limit_rate(
    socket: &mut Socket,
    name: &str,
    bytes_per_second: Option<u64>,
) -> Result<(), NetlinkError> {
    let link = find(socket, name)?.ok_or_else(|| gone("limit the rate"))?;
    let mut header = [0; 20];
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[8..12].copy_from_slice(&HANDLE.to_ne_bytes());
    header[12..16].copy_from_slice(&ROOT.to_ne_bytes());
    let mut batch = Batch::default();
    let Some(rate) = bytes_per_second else {
        header[8..12].fill(0);
        batch.message(
            "lift the rate limit",
            DELETE_QDISC,
            0,
            &header,
            &Attributes::default(),
        );
        return match socket.transact(batch) {
            // There was none.
            Err(error)
                if matches!(
                    error.errno(),
                    Some(rustix::io::Errno::NOENT | rustix::io::Errno::INVAL)
                ) =>
            {
                Ok(())
            }
            other => other,
        };
    };
    let burst = (rate / BURST_PER_SECOND).clamp(BURST_MIN_BYTES, u64::from(u32::MAX / 2)) as u32;
    let queue =
        (rate / QUEUE_PER_SECOND).clamp(2 * BURST_MIN_BYTES, u64::from(u32::MAX / 2)) as u32;
    // Twice a rate of twelve bytes (ours and the peak's, which is off), the queue, and two sizes that the
    // burst in bytes stands for.
    let mut parameters = [0; 36];
    parameters[1] = LINK_LAYER_ETHERNET;
    let plain = u32::try_from(rate).unwrap_or(u32::MAX);
    parameters[8..12].copy_from_slice(&plain.to_ne_bytes());
    parameters[24..28].copy_from_slice(&queue.to_ne_bytes());
    let mut qdisc = Attributes::default();
    qdisc.put_str(TCA_KIND, "tbf");
    qdisc.nest(TCA_OPTIONS, |options| {
        options.put(TBF_PARAMETERS, &parameters);
        if rate > u64::from(u32::MAX) {
            options.put(TBF_RATE64, &rate.to_ne_bytes());
        }
        options.put_u32(TBF_BURST, burst);
    });
    const REPLACE: u16 = 0x100;
    batch.message(
        "limit the rate",
        NEW_QDISC,
        CREATE | REPLACE,
        &header,
        &qdisc,
    );
    socket.transact(batch)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    use super::*;

    /// A namespace that is gone with the test.
    struct Namespace(String);

    impl Namespace {
        fn make() -> Self {
            let name = format!("cove-link-{}", std::process::id());
            let made = Command::new("ip").args(["netns", "add", &name]).status();
            assert!(made.unwrap().success());
            Self(name)
        }
    }

    impl Drop for Namespace {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
        }
    }

    #[test]
    fn interfaces_of_other_engines_that_come_and_go_are_no_conflict() {
        const ROUNDS: usize = 300;
        let namespace = Namespace::make();
        let mut churn = Command::new("ip")
            .args(["-n", &namespace.0, "-batch", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let route = "link add cv7 type veth peer name other\nlink set cv7 up\n\
            route add 198.18.0.64/30 dev cv7\nlink del cv7\n";
        let mut commands = churn.stdin.take().unwrap();
        let feeding =
            std::thread::spawn(move || commands.write_all(route.repeat(ROUNDS).as_bytes()));
        let entry = std::fs::File::open(format!("/run/netns/{}", namespace.0)).unwrap();
        let plan = Addresses::default();
        crate::inside::run(entry.as_fd(), || {
            let mut host = Socket::route()?;
            while churn.try_wait()?.is_none() {
                let found = conflict(&mut host, &plan).map_err(io::Error::other)?;
                assert_eq!(found, None);
            }
            Ok(())
        })
        .unwrap();
        feeding.join().unwrap().unwrap();
        assert!(churn.wait().unwrap().success());
    }
}
