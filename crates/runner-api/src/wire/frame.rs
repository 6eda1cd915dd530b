//! JSON in the frames of this wire (`cove_wire::frame::RUNNER`), and the kinds of frames.

use std::io;

use cove_wire::frame::{Head, RUNNER};
use cove_wire::{Hello, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

/// The largest frame either side accepts.
pub const FRAME_MAX: usize = RUNNER.max();
/// All frames of one list together.
pub const LIST_BYTES_MAX: usize = 256 * 1024 * 1024;
/// A list's frame is sent when it has grown to this.
pub const LIST_FRAME_BYTES: usize = 256 * 1024;
/// Length and kind.
pub const HEADER: usize = RUNNER.header();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A request of version 0, which had no hello.
    Request = 0,
    /// The answer, or the last part of a list.
    Done = 1,
    /// A part of a list; more follows.
    More = 2,
    Error = 3,
    /// A descriptor came with this frame.
    Descriptor = 4,
    /// From here on the connection carries the guest's bytes.
    Relay = 5,
    /// A hello, and behind it the request.
    Opening = 6,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Self::Request,
        Self::Done,
        Self::More,
        Self::Error,
        Self::Descriptor,
        Self::Relay,
        Self::Opening,
    ];
}

impl TryFrom<u8> for Kind {
    type Error = io::Error;

    fn try_from(byte: u8) -> io::Result<Self> {
        let known = Self::ALL.into_iter().find(|known| *known as u8 == byte);
        known.ok_or_else(|| broken("a frame of unknown kind"))
    }
}

fn broken(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

pub fn encode(kind: Kind, content: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; HEADER];
    serde_json::to_writer(&mut frame, content)?;
    finish(kind, frame)
}

/// The first frame of a call.
pub fn encode_opening(hello: &Hello, request: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; HEADER];
    hello.put(&mut frame).map_err(io::Error::other)?;
    serde_json::to_writer(&mut frame, request)?;
    finish(Kind::Opening, frame)
}

/// Fills the header of a frame whose content already stands behind it.
pub fn finish(kind: Kind, mut frame: Vec<u8>) -> io::Result<Vec<u8>> {
    RUNNER.seal(kind as u8, &mut frame)?;
    Ok(frame)
}

pub async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
    content: &impl Serialize,
) -> io::Result<()> {
    stream.write_all(&encode(kind, content)?).await
}

/// Kind and length that a header announces.
pub fn announced(head: Head) -> io::Result<(Kind, usize)> {
    Ok((head.kind.try_into()?, head.length))
}

pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(Kind, Vec<u8>)> {
    let (kind, content) = stream::read(stream, RUNNER).await?;
    Ok((kind.try_into()?, content))
}

pub fn parse<T: DeserializeOwned>(content: &[u8]) -> io::Result<T> {
    serde_json::from_slice(content).map_err(|error| broken(error.to_string()))
}

/// Sends a list in frames of bounded size.
pub async fn write_list<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    items: &[T],
) -> io::Result<()> {
    let empty = || {
        let mut frame = vec![0; HEADER];
        frame.push(b'[');
        frame
    };
    let mut frame = empty();
    for item in items {
        if frame.len() > LIST_FRAME_BYTES {
            frame.push(b']');
            stream.write_all(&finish(Kind::More, frame)?).await?;
            frame = empty();
        }
        if frame.len() > HEADER + 1 {
            frame.push(b',');
        }
        serde_json::to_writer(&mut frame, item)?;
    }
    frame.push(b']');
    stream.write_all(&finish(Kind::Done, frame)?).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_announced_length_over_the_limit_is_refused_unread() {
        let mut bytes = ((FRAME_MAX + 1) as u32).to_le_bytes().to_vec();
        bytes.push(Kind::Done as u8);
        let refused = read(&mut bytes.as_slice()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn a_frame_that_ends_early_or_is_of_no_kind_is_refused() {
        let whole = encode(Kind::Done, &"hello").unwrap();
        for length in 0..whole.len() {
            assert!(read(&mut &whole[..length]).await.is_err());
        }
        let mut odd = whole.clone();
        odd[4] = 77;
        assert!(read(&mut odd.as_slice()).await.is_err());
    }
}
