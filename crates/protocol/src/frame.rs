//! Length-prefixed frames over any byte stream, with the limit both sides hold each other to.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of payload in one data frame: large enough that system calls do not dominate a transfer.
pub const CHUNK: usize = 256 * 1024;
/// The largest frame either side accepts. A peer that announces more is broken or hostile.
pub const FRAME_MAX: usize = 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the other side closed the connection")]
    Closed,
    #[error("a frame of {0} bytes is over the limit of {FRAME_MAX}")]
    TooLarge(usize),
    #[error("a frame could not be decoded")]
    Malformed(#[source] prost::DecodeError),
    #[error("the connection failed")]
    Io(#[source] io::Error),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// Appends one frame to `buffer`, so that several can go out in one write.
pub fn encode(message: &impl Message, buffer: &mut BytesMut) -> Result<(), FrameError> {
    let length = message.encoded_len();
    if length > FRAME_MAX {
        return Err(FrameError::TooLarge(length));
    }
    buffer.reserve(HEADER + length);
    buffer.extend_from_slice(&(length as u32).to_le_bytes());
    message.encode(buffer).expect("the buffer grows as needed");
    Ok(())
}

pub async fn write<W: AsyncWrite + Unpin>(
    stream: &mut W,
    message: &impl Message,
) -> Result<(), FrameError> {
    let mut buffer = BytesMut::new();
    encode(message, &mut buffer)?;
    stream.write_all(&buffer).await?;
    Ok(())
}

/// Takes frames off a stream. Dropping a pending [`FrameReader::next`] loses nothing: what was
/// read so far stays in the buffer, so it may be one arm of a `select!`.
#[derive(Default)]
pub struct FrameReader {
    buffer: BytesMut,
}

/// Room made for a read when the length of the frame is not known yet.
const READ_AHEAD: usize = 8 * 1024;

impl FrameReader {
    /// The next frame. `Closed` when the stream ends between frames or inside one.
    pub async fn next<R: AsyncRead + Unpin, M: Message + Default>(
        &mut self,
        stream: &mut R,
    ) -> Result<M, FrameError> {
        loop {
            if let Some(body) = self.take()? {
                return M::decode(body).map_err(FrameError::Malformed);
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

    /// The body of a complete frame at the front of the buffer.
    pub fn take(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(length) = announced(&self.buffer)? else {
            return Ok(None);
        };
        if self.buffer.len() < HEADER + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER);
        // The body borrows the buffer, and payloads decoded from it borrow it too: no copy.
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    fn missing(&self) -> usize {
        match announced(&self.buffer) {
            Ok(Some(length)) => (HEADER + length).saturating_sub(self.buffer.len()),
            _ => READ_AHEAD,
        }
    }
}

/// Bytes of the length in front of every frame.
pub const HEADER: usize = 4;

/// The length that the frame at the front of `buffer` announces, once its header is there.
pub fn announced(buffer: &[u8]) -> Result<Option<usize>, FrameError> {
    let Some(header) = buffer.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*header) as usize;
    if length > FRAME_MAX {
        return Err(FrameError::TooLarge(length));
    }
    Ok(Some(length))
}
