//! The interface of a virtual machine: a tap in the sandbox's network namespace, tied to the interface that leads out.
//! Frames go from one to the other before the namespace's own stack sees them, so that the machine stands where a
//! container's programs would: behind the same interface, rules and rate limits.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use crate::address::INSIDE;
use crate::link::find;
use crate::netlink::{Attributes, Batch, CREATE, EXCLUSIVE, NetlinkError, Socket};

const NEW_LINK: u16 = 16;
const NEW_QDISC: u16 = 36;
const NEW_FILTER: u16 = 44;
const UP: u32 = 0x1;
const NO_ARP: u32 = 0x80;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const U32_SELECTOR: u16 = 5;
const U32_ACTION: u16 = 7;
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const MIRRED_PARAMETERS: u16 = 2;
/// The one action of the filter.
const FIRST: u16 = 1;
const INGRESS_HANDLE: u32 = 0xffff_0000;
const INGRESS_PARENT: u32 = 0xffff_fff1;
const EVERY_PROTOCOL: u16 = 0x0003;
const PRIORITY: u32 = 1;
const TERMINAL: u8 = 1;
const STOLEN: i32 = 4;
const REDIRECT_OUT: i32 = 1;

/// What the interface is called in the namespace.
pub const TAP: &str = "tap0";

/// Ties what `open` made, a tap called [`TAP`], in the namespace of the calling thread.
pub fn make(
    inner: &mut Socket,
    open: impl FnOnce() -> io::Result<OwnedFd>,
) -> Result<OwnedFd, NetlinkError> {
    let failed = |step| move |source| NetlinkError { step, source };
    let tap = open().map_err(failed("make the tap"))?;
    let path = format!("/proc/sys/net/ipv6/conf/{TAP}/disable_ipv6");
    match fs::write(path, "1") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("switch IPv6 off on the tap")(error));
        }
        _ => {}
    }
    let gone = || NetlinkError {
        step: "tie the interfaces",
        source: io::Error::from(rustix::io::Errno::NODEV),
    };
    let outside = find(inner, INSIDE)?.ok_or_else(gone)?;
    let machine = find(inner, TAP)?.ok_or_else(gone)?;
    // Before it is up: nothing is ever left to the namespace's own stack.
    tie(inner, outside, machine)?;
    tie(inner, machine, outside)?;
    let mut batch = Batch::default();
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&machine.to_ne_bytes());
    header[8..12].copy_from_slice(&(UP | NO_ARP).to_ne_bytes());
    header[12..16].copy_from_slice(&(UP | NO_ARP).to_ne_bytes());
    batch.message(
        "bring up the tap",
        NEW_LINK,
        0,
        &header,
        &Attributes::default(),
    );
    inner.transact(batch)?;
    Ok(tap)
}

fn header(link: u32, handle: u32, parent: u32, info: u32) -> [u8; 20] {
    let mut header = [0; 20];
    for (at, value) in [(4, link), (8, handle), (12, parent), (16, info)] {
        header[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    header
}

/// Everything that comes in at `from` leaves at `to`.
fn tie(inner: &mut Socket, from: u32, to: u32) -> Result<(), NetlinkError> {
    let mut batch = Batch::default();
    let mut qdisc = Attributes::default();
    qdisc.put_str(TCA_KIND, "ingress");
    batch.message(
        "look at what comes in",
        NEW_QDISC,
        CREATE | EXCLUSIVE,
        &header(from, INGRESS_HANDLE, INGRESS_PARENT, 0),
        &qdisc,
    );
    inner.transact(batch)?;
    // One key that fits everything: no bit of it is looked at.
    let mut selector = [0; 16 + 16];
    selector[0] = TERMINAL;
    selector[2] = 1;
    let mut redirect = [0; 28];
    redirect[8..12].copy_from_slice(&STOLEN.to_ne_bytes());
    redirect[20..24].copy_from_slice(&REDIRECT_OUT.to_ne_bytes());
    redirect[24..28].copy_from_slice(&to.to_ne_bytes());
    let mut filter = Attributes::default();
    filter.put_str(TCA_KIND, "u32");
    filter.nest(TCA_OPTIONS, |options| {
        options.put(U32_SELECTOR, &selector);
        options.nest(U32_ACTION, |actions| {
            actions.nest(FIRST, |action| {
                action.put_str(ACTION_KIND, "mirred");
                action.nest(ACTION_OPTIONS, |of| of.put(MIRRED_PARAMETERS, &redirect));
            });
        });
    });
    let info = PRIORITY << 16 | u32::from(EVERY_PROTOCOL.to_be());
    let mut batch = Batch::default();
    batch.message(
        "redirect what comes in",
        NEW_FILTER,
        CREATE | EXCLUSIVE,
        &header(from, 0, INGRESS_HANDLE, info),
        &filter,
    );
    inner.transact(batch)
}
