//! Descriptors that come along with bytes.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::limits::DESCRIPTORS_MAX;

/// Sends bytes with descriptors attached to the first of them; how many bytes went out.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors in one message"));
    }
    let parts = [IoSlice::new(bytes)];
    let sent =
        rustix::io::retry_on_intr(|| sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(sent)
}

/// What one call received.
#[derive(Debug)]
pub struct Received {
    pub bytes: usize,
    /// A packet was longer than the room for it.
    pub cut: bool,
}

/// Receives into `room`; descriptors are appended to `descriptors`.
pub fn receive(
    socket: impl AsFd,
    room: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut *room)];
        recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(Received {
        bytes: received.bytes,
        cut: received.flags.contains(ReturnFlags::TRUNC),
    })
}
