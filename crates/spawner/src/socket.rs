//! One message per packet, with descriptors attached, over a `SOCK_SEQPACKET` socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest packet. The cpuinfo text of a large machine is the bulk of it.
pub const PACKET_MAX: usize = 512 * 1024;
/// Most descriptors in one packet.
pub const FDS_MAX: usize = 4;

pub fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let packet = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors in one packet"));
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(
            &socket,
            &[IoSlice::new(&packet)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
    })?;
    Ok(())
}

/// The next packet; `None` when the other side is gone.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    // As long as the packet: clearing the longest one for each message takes longer than asking.
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC;
    let mut nothing: [u8; 0] = [];
    let (_, length) = rustix::io::retry_on_intr(|| recv(&socket, &mut nothing[..], flags))?;
    if length > PACKET_MAX {
        return Err(io::Error::other("packet over the limit"));
    }
    let mut packet = vec![0; length];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut packet)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.bytes == 0 && fds.is_empty() {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::other("packet over the limit"));
    }
    let message = postcard::from_bytes(&packet[..received.bytes]).map_err(io::Error::other)?;
    Ok(Some((message, fds)))
}
