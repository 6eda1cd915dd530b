//! Passing one descriptor along with a frame.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use super::frame::HEADER;

/// Sends `frame` with `descriptor` attached to its first byte.
pub async fn send(
    stream: &mut UnixStream,
    frame: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    let sent = loop {
        stream.writable().await?;
        let attempt = stream.try_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let descriptors = [descriptor];
            if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                return Err(io::Error::other("no room for the descriptor"));
            }
            let parts = [IoSlice::new(frame)];
            Ok(sendmsg(
                stream.as_fd(),
                &parts,
                &mut control,
                SendFlags::NOSIGNAL,
            )?)
        });
        match attempt {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            other => break other?,
        }
    };
    stream.write_all(&frame[sent..]).await
}

/// Reads exactly one header, and the descriptor that came with it, if one did.
pub async fn receive_header(
    stream: &mut UnixStream,
) -> io::Result<([u8; HEADER], Option<OwnedFd>)> {
    let mut bytes = [0; HEADER];
    let mut filled = 0;
    let mut received = None;
    while filled < HEADER {
        stream.readable().await?;
        let attempt = stream.try_io(Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut bytes[filled..])];
            let message = recvmsg(
                stream.as_fd(),
                &mut parts,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )?;
            for ancillary in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = ancillary {
                    received = descriptors.last().or(received.take());
                }
            }
            Ok(message.bytes)
        });
        match attempt {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
        }
    }
    Ok((bytes, received))
}
