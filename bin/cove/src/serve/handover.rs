//! How the control side gets its listening sockets: over its standard input, in a fixed order. They stay
//! open in the supervisor, so callers of a control side that is replaced wait instead of being refused.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sockets handed over at most.
const SOCKETS_MAX: usize = 4;

/// The end for the child's standard input, with everything in it already.
pub fn give(sockets: &[OwnedFd]) -> io::Result<OwnedFd> {
    let (ours, childs) = UnixStream::pair()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    if !ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::other("too many sockets to hand over"));
    }
    // One byte must travel with them.
    let byte = [IoSlice::new(&[0])];
    sendmsg(&ours, &byte, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(childs.into())
}

/// What the supervisor gave, from standard input.
pub fn take() -> io::Result<Vec<TcpListener>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let stdin = rustix::stdio::stdin();
    recvmsg(stdin, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut sockets = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            sockets.extend(descriptors.map(TcpListener::from));
        }
    }
    Ok(sockets)
}
