//! Interfaces, addresses and routes of namespaces made here, over netlink: a machine to measure on has perhaps no
//! program for that.

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use cove_network::netlink::{Attributes, Batch, CREATE, EXCLUSIVE, Socket};

use super::fabric::Namespace;

const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_GATEWAY: u16 = 5;
const AF_INET: u8 = 2;
const UP: u32 = 1;
const TABLE_MAIN: u8 = 254;
const PROTOCOL_STATIC: u8 = 4;
const ROUTE_UNICAST: u8 = 1;

fn header(index: u32, flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    header
}

/// Sends one message inside a namespace. It may name an interface there.
fn ask(
    inside: &Namespace,
    step: &'static str,
    link: Option<&str>,
    message: impl FnOnce(u32, &mut Batch) + Send,
) -> Result<()> {
    inside.enter(|| {
        let mut socket = Socket::route()?;
        let index = match link {
            Some(name) => rustix::net::netdevice::name_to_index(socket.fd(), name)
                .with_context(|| format!("{step}: find {name}"))?,
            None => 0,
        };
        let mut batch = Batch::default();
        message(index, &mut batch);
        Ok(socket.transact(batch)?)
    })
}

/// A pair of interfaces, one end in each namespace.
pub fn pair(one: (&Namespace, &str), other: (&Namespace, &str)) -> Result<()> {
    let step = "make a pair of interfaces";
    ask(one.0, step, None, |_, batch| {
        let mut pair = Attributes::default();
        pair.put_str(IFLA_IFNAME, one.1);
        pair.nest(IFLA_LINKINFO, |info| {
            info.put_str(IFLA_INFO_KIND, "veth");
            info.nest(IFLA_INFO_DATA, |data| {
                data.nest(VETH_INFO_PEER, |peer| {
                    peer.raw(&header(0, 0));
                    peer.put_str(IFLA_IFNAME, other.1);
                    peer.put_u32(IFLA_NET_NS_FD, other.0.fd().as_raw_fd() as u32);
                });
            });
        });
        batch.message(step, NEW_LINK, CREATE | EXCLUSIVE, &header(0, 0), &pair);
    })
}

pub fn bring_up(inside: &Namespace, link: &str) -> Result<()> {
    let step = "bring an interface up";
    ask(inside, step, Some(link), |index, batch| {
        let none = Attributes::default();
        batch.message(step, NEW_LINK, 0, &header(index, UP), &none);
    })
}

pub fn set_address(inside: &Namespace, link: &str, address: Ipv4Addr, bits: u8) -> Result<()> {
    let step = "set an address";
    ask(inside, step, Some(link), |index, batch| {
        let mut given = Attributes::default();
        given.put(IFA_LOCAL, &address.octets());
        given.put(IFA_ADDRESS, &address.octets());
        let mut header = [AF_INET, bits, 0, 0, 0, 0, 0, 0];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        batch.message(step, NEW_ADDRESS, CREATE | EXCLUSIVE, &header, &given);
    })
}

/// Towards `network`, of so many bits; everything, with none.
pub fn add_route(inside: &Namespace, network: Ipv4Addr, bits: u8, via: Ipv4Addr) -> Result<()> {
    let step = "add a route";
    ask(inside, step, None, |_, batch| {
        let mut route = Attributes::default();
        if bits > 0 {
            route.put(RTA_DST, &network.octets());
        }
        route.put(RTA_GATEWAY, &via.octets());
        let header = [
            AF_INET,
            bits,
            0,
            0,
            TABLE_MAIN,
            PROTOCOL_STATIC,
            0,
            ROUTE_UNICAST,
            0,
            0,
            0,
            0,
        ];
        batch.message(step, NEW_ROUTE, CREATE | EXCLUSIVE, &header, &route);
    })
}
