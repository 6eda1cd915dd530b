//! One message per packet, with descriptors attached, over a `SOCK_SEQPACKET` socket. The layouts are fixed: both
//! sides are of one build, which the hello at the beginning makes sure of.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, recv};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::descriptor;
use crate::hello::{BadHello, Hello};
use crate::limits::SPAWNER_PACKET_MAX;

pub fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let packet = postcard::to_stdvec(message).map_err(io::Error::other)?;
    if packet.len() > SPAWNER_PACKET_MAX {
        return Err(over_the_limit());
    }
    descriptor::send(socket, &packet, fds).map(drop)
}

/// The next packet; `None` when the other side is gone.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let Some((packet, fds)) = receive_bytes(socket)? else {
        return Ok(None);
    };
    let message = postcard::from_bytes(&packet).map_err(io::Error::other)?;
    Ok(Some((message, fds)))
}

/// The first packet on a connection.
pub fn send_hello(socket: impl AsFd, hello: &Hello) -> io::Result<()> {
    let mut packet = Vec::new();
    hello.put(&mut packet).map_err(io::Error::other)?;
    descriptor::send(socket, &packet, &[]).map(drop)
}

/// The first packet; `None` when the other side is gone.
pub fn receive_hello(socket: impl AsFd) -> io::Result<Option<Hello>> {
    let Some((packet, _)) = receive_bytes(socket)? else {
        return Ok(None);
    };
    match Hello::take(&packet) {
        Ok((hello, [])) => Ok(Some(hello)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, BadHello)),
    }
}

fn receive_bytes(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    // As long as the packet: clearing the longest one for each message takes longer than asking.
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC;
    let mut nothing: [u8; 0] = [];
    let (_, length) = rustix::io::retry_on_intr(|| recv(&socket, &mut nothing[..], flags))?;
    if length > SPAWNER_PACKET_MAX {
        return Err(over_the_limit());
    }
    let mut packet = vec![0; length];
    let mut fds = Vec::new();
    let received = descriptor::receive(socket, &mut packet, &mut fds)?;
    if received.bytes == 0 && fds.is_empty() {
        return Ok(None);
    }
    if received.cut {
        return Err(over_the_limit());
    }
    packet.truncate(received.bytes);
    Ok(Some((packet, fds)))
}

fn over_the_limit() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a packet is over the limit of {SPAWNER_PACKET_MAX} bytes"),
    )
}
