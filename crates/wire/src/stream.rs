//! Frames over streams of tokio's.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use crate::descriptor;
use crate::frame::{FrameError, HEADER_MAX, Head, Layout};

/// Room made for a read when the length of the frame is not known yet.
const READ_AHEAD: usize = 8 * 1024;

/// Takes frames off a stream. Dropping a pending [`FrameReader::next`] loses nothing: what was read so far stays in
/// the buffer, so it may be one arm of a `select!`.
#[derive(Debug)]
pub struct FrameReader {
    layout: Layout,
    buffer: BytesMut,
}

impl FrameReader {
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            buffer: BytesMut::new(),
        }
    }

    /// The next frame: its kind and its body. `Closed` when the stream ends between frames or inside one.
    pub async fn next<R: AsyncRead + Unpin>(
        &mut self,
        stream: &mut R,
    ) -> Result<(u8, Bytes), FrameError> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            let wanted = self.missing();
            self.buffer.reserve(wanted);
            if stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(FrameError::Closed);
            }
        }
    }

    /// Reads once, for callers that poll; 0 at the end of the stream.
    pub fn poll_fill<R: AsyncRead + Unpin>(
        &mut self,
        stream: &mut R,
        cx: &mut Context<'_>,
        room: usize,
    ) -> Poll<io::Result<usize>> {
        self.buffer.reserve(room.max(self.missing()));
        // `read_buf` keeps nothing between polls, so a future that lives for one poll is enough.
        pin!(stream.read_buf(&mut self.buffer)).poll(cx)
    }

    /// What was read beyond the last frame, for a caller that goes on reading by other means.
    pub fn into_remainder(self) -> BytesMut {
        self.buffer
    }

    /// Kind and body of a complete frame at the front of the buffer.
    pub fn take(&mut self) -> Result<Option<(u8, Bytes)>, FrameError> {
        let Some(Head { kind, length }) = self.layout.announced(&self.buffer)? else {
            return Ok(None);
        };
        let header = self.layout.header();
        if self.buffer.len() < header + length {
            return Ok(None);
        }
        self.buffer.advance(header);
        // The body borrows the buffer, and payloads decoded from it borrow it too: no copy.
        Ok(Some((kind, self.buffer.split_to(length).freeze())))
    }

    fn missing(&self) -> usize {
        match self.layout.announced(&self.buffer) {
            Ok(Some(head)) => {
                (self.layout.header() + head.length).saturating_sub(self.buffer.len())
            }
            _ => READ_AHEAD,
        }
    }
}

/// One frame and not a byte beyond it.
pub async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    layout: Layout,
) -> Result<(u8, Vec<u8>), FrameError> {
    let mut bytes = [0; HEADER_MAX];
    let bytes = &mut bytes[..layout.header()];
    stream.read_exact(bytes).await?;
    let head = layout.announced(bytes)?.ok_or(FrameError::Closed)?;
    Ok((head.kind, body(stream, head.length).await?))
}

/// The body behind a header. Grows with what really arrives, so that an announced length alone costs nothing.
pub async fn body(
    stream: &mut (impl AsyncRead + Unpin),
    length: usize,
) -> Result<Vec<u8>, FrameError> {
    let mut body = Vec::new();
    let read = stream.take(length as u64).read_to_end(&mut body).await?;
    match read == length {
        true => Ok(body),
        false => Err(FrameError::Closed),
    }
}

/// A whole frame in one write.
pub async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    layout: Layout,
    kind: u8,
    body: &[u8],
) -> Result<(), FrameError> {
    let frame = crate::blocking::whole(layout, kind, body)?;
    Ok(stream.write_all(&frame).await?)
}

/// Sends a frame with a descriptor attached to its first byte.
pub async fn send_with(
    stream: &mut UnixStream,
    frame: &[u8],
    attached: BorrowedFd<'_>,
) -> io::Result<()> {
    let sent = loop {
        stream.writable().await?;
        let attempt = stream.try_io(Interest::WRITABLE, || {
            descriptor::send(stream.as_fd(), frame, &[attached])
        });
        match attempt {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            other => break other?,
        }
    };
    stream.write_all(&frame[sent..]).await
}

/// Reads exactly one header, and the descriptor that came with it, if one did.
pub async fn read_head_with(
    stream: &mut UnixStream,
    layout: Layout,
) -> Result<(Head, Option<OwnedFd>), FrameError> {
    let mut bytes = [0; HEADER_MAX];
    let bytes = &mut bytes[..layout.header()];
    let mut filled = 0;
    let mut received = Vec::new();
    while filled < bytes.len() {
        stream.readable().await?;
        let attempt = stream.try_io(Interest::READABLE, || {
            descriptor::receive(stream.as_fd(), &mut bytes[filled..], &mut received)
        });
        match attempt {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
            Ok(got) if got.bytes == 0 => return Err(FrameError::Closed),
            Ok(got) => filled += got.bytes,
        }
        // A peer may attach some to every byte.
        received.truncate(1);
    }
    let head = layout.announced(bytes)?.ok_or(FrameError::Closed)?;
    Ok((head, received.pop()))
}
