//! The kernel's table of connections: finding a sandbox's and ending those a policy forbids.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use crate::netlink::{Attributes, Batch, DUMP, NetlinkError, Socket, attribute, read_u32};

const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM + 1;
const DELETE: u16 = SUBSYSTEM + 2;
const FAMILY_IPV4: [u8; 4] = [2, 0, 0, 0];

const TUPLE_ORIGINAL: u16 = 1;
const STATUS: u16 = 3;
const ID: u16 = 12;
const FILTER: u16 = 25;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const IP_SOURCE: u16 = 1;
const IP_DESTINATION: u16 = 2;
const PROTOCOL_NUMBER: u16 = 1;
const PROTOCOL_PORT: u16 = 3;
const FILTER_ORIGINAL: u16 = 1;
const FILTER_BY_SOURCE: u32 = 1;
const STATUS_DNAT: u32 = 1 << 5;

/// A connection a sandbox opened.
#[derive(Debug, Clone)]
pub struct Connection {
    pub to: Ipv4Addr,
    pub protocol: u8,
    pub port: u16,
    /// It goes to our resolver or gateway.
    pub redirected: bool,
    tuple: Vec<u8>,
    id: Option<Vec<u8>>,
}

/// Every connection from an address.
pub fn list(socket: &mut Socket, from: Ipv4Addr) -> Result<Vec<Connection>, NetlinkError> {
    let mut wanted = Attributes::default();
    wanted.nest(TUPLE_ORIGINAL, |tuple| {
        tuple.nest(TUPLE_IP, |ip| ip.put(IP_SOURCE, &from.octets()));
    });
    wanted.nest(FILTER, |filter| {
        filter.put_u32(FILTER_ORIGINAL, FILTER_BY_SOURCE)
    });
    let mut batch = Batch::default();
    batch.message("list connections", GET, DUMP, &FAMILY_IPV4, &wanted);
    let mut found = Vec::new();
    socket.ask("list connections", batch, |_, body| {
        let connection = body.get(4..).and_then(|body| read(body, from));
        found.extend(connection);
    })?;
    Ok(found)
}

/// Every address that `wanted` says yes to and that opened a connection there still is.
pub fn sources(
    socket: &mut Socket,
    wanted: impl Fn(Ipv4Addr) -> bool,
) -> Result<BTreeSet<Ipv4Addr>, NetlinkError> {
    let mut batch = Batch::default();
    let all = Attributes::default();
    batch.message("list connections", GET, DUMP, &FAMILY_IPV4, &all);
    let mut found = BTreeSet::new();
    socket.ask("list connections", batch, |_, body| {
        let source = body
            .get(4..)
            .and_then(|body| attribute(body, TUPLE_ORIGINAL))
            .and_then(|tuple| attribute(tuple, TUPLE_IP))
            .and_then(|ip| <[u8; 4]>::try_from(attribute(ip, IP_SOURCE)?).ok())
            .map(Ipv4Addr::from);
        found.extend(source.filter(|source| wanted(*source)));
    })?;
    Ok(found)
}

fn read(body: &[u8], from: Ipv4Addr) -> Option<Connection> {
    let tuple = attribute(body, TUPLE_ORIGINAL)?;
    let ip = attribute(tuple, TUPLE_IP)?;
    let address = |kind| {
        <[u8; 4]>::try_from(attribute(ip, kind)?)
            .ok()
            .map(Ipv4Addr::from)
    };
    // A kernel that does not know the filter tells everybody's.
    if address(IP_SOURCE)? != from {
        return None;
    }
    let protocol = attribute(tuple, TUPLE_PROTOCOL)?;
    let port = attribute(protocol, PROTOCOL_PORT)
        .and_then(|bytes| <[u8; 2]>::try_from(bytes).ok())
        .map_or(0, u16::from_be_bytes);
    let status = attribute(body, STATUS)
        .and_then(read_u32)
        .map_or(0, u32::from_be);
    Some(Connection {
        to: address(IP_DESTINATION)?,
        protocol: *attribute(protocol, PROTOCOL_NUMBER)?.first()?,
        port,
        redirected: status & STATUS_DNAT != 0,
        tuple: tuple.to_vec(),
        id: attribute(body, ID).map(<[u8]>::to_vec),
    })
}

/// Makes the kernel forget a connection; its packets are unknown from then on.
pub fn delete(socket: &mut Socket, connection: &Connection) -> Result<(), NetlinkError> {
    let mut wanted = Attributes::default();
    wanted.nest(TUPLE_ORIGINAL, |tuple| tuple.raw(&connection.tuple));
    if let Some(id) = &connection.id {
        wanted.put(ID, id);
    }
    let mut batch = Batch::default();
    batch.message("end a connection", DELETE, 0, &FAMILY_IPV4, &wanted);
    match socket.transact(batch) {
        // It ended by itself.
        Err(error) if error.errno() == Some(rustix::io::Errno::NOENT) => Ok(()),
        other => other,
    }
}
