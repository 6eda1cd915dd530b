//! Reading and writing the port itself.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use bytes::{Buf, BytesMut};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::frame::{CONTENT_MAX, First, Frame, GREETING, HEADER, Kind, first};

/// The longest frame, and what is read at once.
const PIECE: usize = HEADER + CONTENT_MAX;

pub struct Port {
    port: Rc<AsyncFd<OwnedFd>>,
    read: BytesMut,
}

impl Port {
    pub fn new(port: Rc<AsyncFd<OwnedFd>>) -> Self {
        Self {
            port,
            read: BytesMut::new(),
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        let mut piece = [0; PIECE];
        let got = self
            .port
            .async_io(Interest::READABLE, |port| {
                Ok(rustix::io::read(port, &mut piece[..])?)
            })
            .await?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read.extend_from_slice(&piece[..got]);
        Ok(())
    }

    /// The next frame; `None` when what comes is none.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            match first(&mut self.read) {
                First::Whole(frame) => return Ok(Some(frame)),
                First::Garbage => return Ok(None),
                First::Part => self.fill().await?,
            }
        }
    }

    /// Skips everything up to the end of what `look` finds.
    pub async fn find<T>(&mut self, look: impl Fn(&[u8]) -> Option<(usize, T)>) -> io::Result<T> {
        loop {
            if let Some((end, found)) = look(&self.read) {
                self.read.advance(end);
                return Ok(found);
            }
            // What is wanted may have begun.
            let kept = (HEADER + GREETING - 1).min(self.read.len());
            self.read.advance(self.read.len() - kept);
            self.fill().await?;
        }
    }
}

/// Writes frames until the port fails or nobody has more.
pub async fn write_all(port: Rc<AsyncFd<OwnedFd>>, mut frames: mpsc::Receiver<Frame>) {
    while let Some(frame) = frames.recv().await {
        let mut bytes = BytesMut::with_capacity(PIECE);
        // The other side may still wait for the rest of a frame. Zeros complete the longest one and begin none.
        if frame.kind == Kind::Greet {
            bytes.resize(PIECE, 0);
        }
        bytes.extend_from_slice(&frame.header());
        bytes.extend_from_slice(&frame.content);
        while !bytes.is_empty() {
            let written = port
                .async_io(Interest::WRITABLE, |port| {
                    Ok(rustix::io::write(port, &bytes)?)
                })
                .await;
            match written {
                Ok(written) => bytes.advance(written),
                Err(_) => return,
            }
        }
    }
}
