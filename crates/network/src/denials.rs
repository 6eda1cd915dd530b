//! Packets that the rules refused, as the kernel tells of them, for the egress log.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::address::index_of;
use crate::link;
use crate::netlink::{Attributes, Batch, NetlinkError, Socket, attribute};
use crate::ruleset::LOGGED_BYTES;

const SUBSYSTEM: u16 = 4 << 8;
const PACKET: u16 = SUBSYSTEM;
const CONFIGURE: u16 = SUBSYSTEM + 1;
const COMMAND: u16 = 1;
const MODE: u16 = 2;
const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
const PACKET_INTERFACE: u16 = 4;
const PACKET_BYTES: u16 = 9;

/// Groups are a host's own numbers; ours begin here, one for each engine.
const FIRST_GROUP: u16 = 0x4000;
const GROUPS: u16 = 0x4000;
/// How many groups are tried before refusals go untold.
const TRIES: u16 = 64;
/// Refusals of one reading; the rest waits in the kernel or is dropped there.
const BATCH_MAX: usize = 1024;

/// One refused packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denial {
    /// The sandbox's, by the interface the packet came in on.
    pub index: u32,
    pub to: Ipv4Addr,
    pub protocol: u8,
    pub port: Option<u16>,
    /// Its source was not the sandbox's own.
    pub source: Ipv4Addr,
}

/// Listens to what one engine's rules refuse.
#[derive(Debug)]
pub struct Denials {
    socket: Socket,
    group: u16,
}

impl Denials {
    /// Takes a group that nobody listens to; `instance` says where to begin looking.
    pub fn open(instance: &str) -> io::Result<Self> {
        let start = u32::from_str_radix(instance, 16).unwrap_or(0) as u16;
        let mut socket = Socket::netfilter()?;
        for attempt in 0..TRIES {
            let group = FIRST_GROUP + start.wrapping_add(attempt) % GROUPS;
            match bind(&mut socket, group) {
                Ok(()) => return Ok(Self { socket, group }),
                Err(error) if error.errno() == Some(rustix::io::Errno::BUSY) => {}
                Err(error) => return Err(error.source),
            }
        }
        Err(rustix::io::Errno::BUSY.into())
    }

    pub fn group(&self) -> u16 {
        self.group
    }

    /// Waits for refused packets; empty after `patience`.
    pub fn wait(&self, patience: Duration) -> io::Result<Vec<Denial>> {
        let limit = rustix::time::Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: patience.subsec_nanos().into(),
        };
        match poll(
            &mut [PollFd::new(self.socket.fd(), PollFlags::IN)],
            Some(&limit),
        ) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut names = std::collections::HashMap::new();
        let mut denials = Vec::new();
        let read = self.socket.read_available(|kind, _, body| {
            if kind != PACKET || denials.len() >= BATCH_MAX {
                return;
            }
            let Some((link, packet)) = body.get(4..).and_then(parts) else {
                return;
            };
            let index = *names
                .entry(link)
                .or_insert_with(|| link::name_of(link).as_deref().and_then(index_of));
            if let Some(index) = index {
                denials.extend(parse(index, packet));
            }
        });
        match read {
            // More came than the kernel keeps for us: some are untold.
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) =>
            {
                Ok(denials)
            }
            Err(error) => Err(error),
            Ok(()) => Ok(denials),
        }
    }
}

fn bind(socket: &mut Socket, group: u16) -> Result<(), NetlinkError> {
    let [high, low] = group.to_be_bytes();
    let header = [0, 0, high, low];
    let mut batch = Batch::default();
    let mut command = Attributes::default();
    command.put(COMMAND, &[BIND]);
    batch.message("listen to refusals", CONFIGURE, 0, &header, &command);
    socket.transact(batch)?;
    let mut batch = Batch::default();
    let mut mode = Attributes::default();
    let mut copy = LOGGED_BYTES.to_be_bytes().to_vec();
    copy.extend([COPY_PACKET, 0]);
    mode.put(MODE, &copy);
    batch.message("listen to refusals", CONFIGURE, 0, &header, &mode);
    socket.transact(batch)
}

fn parts(body: &[u8]) -> Option<(u32, &[u8])> {
    let link = attribute(body, PACKET_INTERFACE)?;
    let link = u32::from_be_bytes(link.get(0..4)?.try_into().ok()?);
    Some((link, attribute(body, PACKET_BYTES)?))
}

const HEADER_BYTES: usize = 20;

/// Reads fields at fixed places: no length and no offset comes from the packet. So the port of a packet with
/// options in its header is not known.
fn parse(index: u32, packet: &[u8]) -> Option<Denial> {
    const PLAIN: u8 = 4 << 4 | (HEADER_BYTES / 4) as u8;
    let (header, rest) = packet.split_first_chunk::<HEADER_BYTES>()?;
    let [
        first,
        _,
        _,
        _,
        _,
        _,
        f1,
        f0,
        _,
        protocol,
        _,
        _,
        s3,
        s2,
        s1,
        s0,
        t3,
        t2,
        t1,
        t0,
    ] = *header;
    if first >> 4 != 4 {
        return None;
    }
    let is_first = u16::from_be_bytes([f1, f0]) & 0x1fff == 0;
    let has_ports = first == PLAIN && is_first && matches!(protocol, 6 | 17);
    let port = match rest.first_chunk() {
        Some(&[_, _, p1, p0]) if has_ports => Some(u16::from_be_bytes([p1, p0])),
        _ => None,
    };
    Some(Denial {
        index,
        source: Ipv4Addr::new(s3, s2, s1, s0),
        to: Ipv4Addr::new(t3, t2, t1, t0),
        protocol,
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_any_length_are_read_without_harm() {
        let mut packet = vec![
            0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 1, 2, 3, 4,
        ];
        packet.extend([0x12, 0x34, 0x01, 0xbb]);
        let denial = parse(7, &packet).unwrap();
        assert_eq!(denial.port, Some(443));
        assert_eq!(denial.to, Ipv4Addr::new(1, 2, 3, 4));
        for length in 0..packet.len() {
            if let Some(denial) = parse(7, &packet[..length]) {
                assert_eq!(denial.port, None);
            }
        }
        // A later fragment has no port, whatever its bytes say.
        packet[7] = 1;
        assert_eq!(parse(7, &packet).unwrap().port, None);
        packet[0] = 0x65;
        assert_eq!(parse(7, &packet), None);
        // What options say of lengths is not believed.
        (packet[0], packet[7]) = (0x4f, 0);
        assert_eq!(parse(7, &packet).unwrap().port, None);
    }

    #[test]
    fn random_bytes_are_refused_or_read_at_fixed_places() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as u8
        };
        let mut ports = 0;
        for round in 0..200_000_usize {
            let length = round % (LOGGED_BYTES as usize + 8);
            let mut packet: Vec<u8> = (0..length).map(|_| next()).collect();
            if round % 2 == 0 && length >= HEADER_BYTES {
                // One in which ports may be read: everything else stays random.
                packet[0] = 0x45;
                packet[6..8].fill(0);
                packet[9] = 6;
            }
            let Some(denial) = parse(7, &packet) else {
                assert!(packet.len() < HEADER_BYTES || packet[0] >> 4 != 4);
                continue;
            };
            assert_eq!(denial.to.octets(), packet[16..20]);
            assert_eq!(denial.source.octets(), packet[12..16]);
            assert_eq!(denial.protocol, packet[9]);
            if let Some(port) = denial.port {
                assert_eq!(port.to_be_bytes(), packet[22..24]);
                ports += 1;
            }
        }
        assert!(ports > 0);
    }

    #[test]
    fn random_netlink_attributes_are_read_without_harm() {
        let mut random = 1_u64;
        for round in 0..100_000_usize {
            let body: Vec<u8> = (0..round % 64)
                .map(|_| {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (random >> 40) as u8 & 15
                })
                .collect();
            let _ = parts(&body).and_then(|(_, packet)| parse(7, packet));
        }
    }
}
