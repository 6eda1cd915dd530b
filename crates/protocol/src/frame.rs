//! Length-prefixed frames over any byte stream, with the limit both sides hold each other to.

use std::io;

use bytes::{Bytes, BytesMut};
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
    buffer.reserve(4 + length);
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

/// The next frame. `Closed` when the stream ends between frames or inside one.
pub async fn read<R: AsyncRead + Unpin, M: Message + Default>(
    stream: &mut R,
) -> Result<M, FrameError> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).await?;
    let length = u32::from_le_bytes(header) as usize;
    if length > FRAME_MAX {
        return Err(FrameError::TooLarge(length));
    }
    let mut body = BytesMut::zeroed(length);
    stream.read_exact(&mut body).await?;
    // Decoding from `Bytes` lets payloads borrow the buffer instead of being copied.
    M::decode(Bytes::from(body)).map_err(FrameError::Malformed)
}
