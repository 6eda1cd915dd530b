//! Packets and frames written by hand, for those who may.

use std::net::{Ipv4Addr, SocketAddrV4};

use rustix::net::{AddressFamily, SendFlags, SocketType};

use crate::world::Namespace;

pub const UDP: u8 = 17;

/// A datagram's header and text behind it, without a checksum, which means none is to be checked.
pub fn datagram(from_port: u16, to_port: u16, text: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + text.len()).expect("short");
    let mut bytes = Vec::new();
    for field in [from_port, to_port, length, 0] {
        bytes.extend(field.to_be_bytes());
    }
    bytes.extend(text);
    bytes
}

pub struct Header {
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
    pub id: u16,
    /// In units of eight bytes, with the bit that more follows.
    pub fragment: u16,
}

pub const MORE: u16 = 0x2000;

/// A whole packet; the kernel fills in length and checksum.
pub fn packet(header: &Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 0];
    bytes.extend(header.id.to_be_bytes());
    bytes.extend(header.fragment.to_be_bytes());
    bytes.extend([64, UDP, 0, 0]);
    bytes.extend(header.from.octets());
    bytes.extend(header.to.octets());
    bytes.extend(body);
    bytes
}

/// Sends a packet as it is, from inside.
pub fn send(inside: &Namespace, to: Ipv4Addr, packet: &[u8]) {
    inside.enter(|| {
        let socket = rustix::net::socket(
            AddressFamily::INET,
            SocketType::RAW,
            Some(rustix::net::ipproto::RAW),
        )
        .expect("root of the namespace may");
        rustix::net::sendto(
            &socket,
            packet,
            SendFlags::empty(),
            &SocketAddrV4::new(to, 0),
        )
        .expect("it leaves");
    });
}

/// Sends a frame as it is through the namespace's interface.
pub fn send_frame(inside: &Namespace, frame: &[u8]) {
    inside.enter(|| {
        // SAFETY: plain system calls; the address is a zeroed struct of the kernel's layout that lives
        // across the call, and the descriptor is closed before it goes out of scope.
        unsafe {
            let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
            assert!(socket >= 0, "root of the namespace may");
            let mut to: libc::sockaddr_ll = std::mem::zeroed();
            to.sll_family = libc::AF_PACKET as u16;
            to.sll_ifindex = libc::if_nametoindex(c"eth0".as_ptr()) as i32;
            to.sll_halen = 6;
            let sent = libc::sendto(
                socket,
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            );
            libc::close(socket);
            assert_eq!(sent, frame.len() as isize, "the frame leaves");
        }
    });
}
