//! How the gateway hands a connection over: one connection to the process for each, with both sockets attached.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cove_model::SandboxId;
use cove_wire::{Layout, blocking, descriptor, frame};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// A hello in base64, and little besides.
const BYTES_MAX: usize = 64 * 1024;
const HANDOVER: Layout = frame::GATEWAY_CALL.at_most(BYTES_MAX);
/// The client's and the server's socket.
const SOCKETS: usize = 2;
/// Bytes sent to the server, and received from it: what the process says when a connection has ended.
pub const COUNTS: usize = 16;
/// One more byte follows the counts: this, or zero. A process of an earlier version sends none.
pub const DISTRUSTED: u8 = 1;

/// Who connects, and where to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    pub sandbox: SandboxId,
    /// What the TLS hello names; the server's socket leads there.
    pub host: String,
    pub port: u16,
    /// What the client has said already, base64.
    pub hello: String,
}

impl Handover {
    pub fn new(sandbox: SandboxId, host: String, port: u16, hello: &[u8]) -> Self {
        Self {
            sandbox,
            host,
            port,
            hello: STANDARD.encode(hello),
        }
    }

    pub fn hello(&self) -> io::Result<Vec<u8>> {
        STANDARD.decode(&self.hello).map_err(io::Error::other)
    }
}

pub async fn send(
    stream: &UnixStream,
    handover: &Handover,
    client: BorrowedFd<'_>,
    server: BorrowedFd<'_>,
) -> io::Result<()> {
    let frame = blocking::whole(HANDOVER, 0, &serde_json::to_vec(handover)?)?;
    let mut sent = 0;
    while sent < frame.len() {
        stream.writable().await?;
        let sockets: &[BorrowedFd<'_>] = match sent {
            0 => &[client, server],
            _ => &[],
        };
        let attempt = stream.try_io(Interest::WRITABLE, || {
            descriptor::send(stream.as_fd(), &frame[sent..], sockets)
        });
        match attempt {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => sent += other?,
        }
    }
    Ok(())
}

/// The message, and the client's and the server's socket.
pub async fn receive(stream: &UnixStream) -> io::Result<(Handover, OwnedFd, OwnedFd)> {
    let mut bytes = Vec::new();
    let mut sockets = Vec::new();
    let mut room = vec![0; 16 * 1024];
    loop {
        if let Some(head) = HANDOVER.announced(&bytes)? {
            let whole = HANDOVER.header() + head.length;
            if bytes.len() >= whole {
                let message = serde_json::from_slice(&bytes[HANDOVER.header()..whole])?;
                let [client, server] = <[OwnedFd; SOCKETS]>::try_from(sockets)
                    .map_err(|_| io::Error::other("no two sockets came along"))?;
                return Ok((message, client, server));
            }
        }
        stream.readable().await?;
        let attempt = stream.try_io(Interest::READABLE, || {
            descriptor::receive(stream.as_fd(), &mut room, &mut sockets)
        });
        match attempt {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
            Ok(got) if got.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => bytes.extend_from_slice(&room[..got.bytes]),
        }
        sockets.truncate(SOCKETS);
    }
}
