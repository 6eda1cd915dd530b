//! Protobuf messages in the frames of this wire (`cove_wire::frame::GUEST`).

use std::io;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use cove_wire::frame::GUEST;
pub use cove_wire::{FrameError, Oversize};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

/// Bytes of payload in one data frame: large enough that system calls do not dominate a transfer.
pub const CHUNK: usize = 256 * 1024;
/// The largest frame either side accepts. A peer that announces more is broken or hostile.
pub const FRAME_MAX: usize = GUEST.max();
/// Bytes of the length in front of every frame.
pub const HEADER: usize = GUEST.header();

/// Appends one frame to `buffer`, so that several can go out in one write.
pub fn encode(message: &impl Message, buffer: &mut BytesMut) -> Result<(), FrameError> {
    let length = message.encoded_len();
    let head = GUEST.head(0, length)?;
    buffer.reserve(HEADER + length);
    buffer.extend_from_slice(&head[..HEADER]);
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

/// Takes messages off a stream; see [`cove_wire::stream::FrameReader`].
pub struct FrameReader(cove_wire::stream::FrameReader);

impl Default for FrameReader {
    fn default() -> Self {
        Self(cove_wire::stream::FrameReader::new(GUEST))
    }
}

impl FrameReader {
    /// The next message. Dropping this while it is pending loses nothing.
    pub async fn next<R: AsyncRead + Unpin, M: Message + Default>(
        &mut self,
        stream: &mut R,
    ) -> Result<M, FrameError> {
        let (_, body) = self.0.next(stream).await?;
        M::decode(body).map_err(|error| FrameError::Malformed(error.into()))
    }

    /// Reads once, for callers that poll; 0 at the end of the stream.
    pub fn poll_fill<R: AsyncRead + Unpin>(
        &mut self,
        stream: &mut R,
        cx: &mut Context<'_>,
        room: usize,
    ) -> Poll<io::Result<usize>> {
        self.0.poll_fill(stream, cx, room)
    }

    /// What was read beyond the last frame, for a caller that goes on reading by other means.
    pub fn into_remainder(self) -> BytesMut {
        self.0.into_remainder()
    }

    /// The body of a complete frame at the front of the buffer.
    pub fn take(&mut self) -> Result<Option<Bytes>, FrameError> {
        Ok(self.0.take()?.map(|(_, body)| body))
    }
}

/// The length that the frame at the front of `buffer` announces, once its header is there.
pub fn announced(buffer: &[u8]) -> Result<Option<usize>, FrameError> {
    Ok(GUEST.announced(buffer)?.map(|head| head.length))
}

/// The longest [`data_header`].
const DATA_HEADER_MAX: usize = HEADER + 1 + 5;
/// Field 10 of `Reply`, and field 1 of `Input`, as length-delimited bytes.
const REPLY_DATA_KEY: u8 = 10 << 3 | 2;
const INPUT_DATA_KEY: u8 = 1 << 3 | 2;

/// What goes before `length` bytes of payload to make them a frame with a `Reply` of `Data`: bulk
/// transfers then write payload from where it lies.
pub fn data_header(length: usize) -> Result<impl AsRef<[u8]>, FrameError> {
    let body = 1 + prost::encoding::encoded_len_varint(length as u64) + length;
    let head = GUEST.head(0, body)?;
    let mut header = BytesMut::with_capacity(DATA_HEADER_MAX);
    header.extend_from_slice(&head[..HEADER]);
    header.extend_from_slice(&[REPLY_DATA_KEY]);
    prost::encoding::encode_varint(length as u64, &mut header);
    Ok(header)
}

/// The payload of a frame body that is an `Input` of nothing but `Data`, without copying it.
pub fn input_data(body: &[u8]) -> Option<&[u8]> {
    let (key, mut rest) = body.split_first()?;
    if *key != INPUT_DATA_KEY {
        return None;
    }
    let length = prost::encoding::decode_varint(&mut rest).ok()?;
    (length == rest.len() as u64).then_some(rest)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::message::{Empty, Input, InputKind, Open, Reply, ReplyKind};

    #[test]
    fn a_data_header_makes_the_frame_that_encoding_makes() {
        for length in [0, 1, 127, 128, 5000, CHUNK] {
            let payload = vec![7; length];
            let mut wanted = BytesMut::new();
            let kind = Some(ReplyKind::Data(payload.clone().into()));
            encode(&Reply { kind }, &mut wanted).unwrap();
            let mut made = data_header(length).unwrap().as_ref().to_vec();
            made.extend_from_slice(&payload);
            assert_eq!(made, wanted, "length {length}");
        }
        assert!(data_header(FRAME_MAX).is_err());
    }

    #[test]
    fn input_payload_is_found_only_in_plain_data() {
        let body = |kind| Input { kind: Some(kind) }.encode_to_vec();
        let data = body(InputKind::Data(Bytes::from_static(b"abc")));
        assert_eq!(input_data(&data), Some(&b"abc"[..]));
        assert_eq!(input_data(&data[..data.len() - 1]), None);
        assert_eq!(input_data(&body(InputKind::End(Empty {}))), None);
        assert_eq!(input_data(b""), None);
    }

    #[tokio::test]
    async fn arbitrary_bytes_never_panic_and_never_allocate_what_they_announce() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for round in 0..20_000 {
            let length = (random() % 200) as usize;
            let mut bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
            if round % 2 == 0 && length >= HEADER {
                // A header that fits gets the body into the decoder.
                let body = (length - HEADER) as u32;
                bytes[..HEADER].copy_from_slice(&body.to_le_bytes());
            }
            let mut reader = FrameReader::default();
            let mut stream = &bytes[..];
            for _ in 0..3 {
                let _: Result<Open, _> = reader.next(&mut stream).await;
            }
            let _ = Reply::decode(&bytes[..]);
            let _ = Input::decode(&bytes[..]);
            let _ = input_data(&bytes);
        }
    }

    #[tokio::test]
    async fn an_oversized_frame_is_refused_by_its_header() {
        let mut stream = &(FRAME_MAX as u32 + 1).to_le_bytes()[..];
        let result: Result<Open, _> = FrameReader::default().next(&mut stream).await;
        assert!(matches!(result, Err(FrameError::TooLarge(_))));
    }

    #[tokio::test]
    async fn a_dropped_read_loses_nothing() {
        let (mut near, mut far) = tokio::io::duplex(64);
        let mut frame = BytesMut::new();
        let sent = Reply {
            kind: Some(ReplyKind::Data(Bytes::from_static(b"in two pieces"))),
        };
        encode(&sent, &mut frame).unwrap();
        let mut reader = FrameReader::default();
        near.write_all(&frame[..7]).await.unwrap();
        {
            let read = pin!(reader.next::<_, Reply>(&mut far));
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(read.poll(&mut cx).is_pending());
        }
        near.write_all(&frame[7..]).await.unwrap();
        let got: Reply = reader.next(&mut far).await.unwrap();
        assert_eq!(got, sent);
    }
}
