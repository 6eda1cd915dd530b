//! What a child of the supervisor gets over its standard input: descriptors in a fixed order, then its
//! configuration as text. Nothing of it stands in an environment or on a command line, where children of
//! the child would inherit it.
//!
//! Listening sockets stay open in the supervisor too, so callers of a control side that is replaced wait
//! instead of being refused.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors handed over at most.
const DESCRIPTORS_MAX: usize = 8;

/// The end for the child's standard input, with everything in it already.
pub fn give(descriptors: &[BorrowedFd<'_>], text: &str) -> io::Result<OwnedFd> {
    let (mut ours, childs) = UnixStream::pair()?;
    // Nobody reads yet, so what does not fit would wait for ever.
    ours.set_nonblocking(true)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors to hand over"));
    }
    // One byte must travel with them.
    let byte = [IoSlice::new(&[0])];
    sendmsg(&ours, &byte, &mut ancillary, SendFlags::NOSIGNAL)?;
    ours.write_all(text.as_bytes())?;
    Ok(childs.into())
}

/// What the supervisor gave, from standard input.
pub fn take() -> io::Result<(Vec<OwnedFd>, String)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let stdin = rustix::stdio::stdin();
    recvmsg(stdin, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut received = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            received.extend(descriptors);
        }
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok((received, text))
}
