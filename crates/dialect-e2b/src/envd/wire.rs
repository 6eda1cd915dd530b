//! Connect's way to write calls down: JSON, one object for calls with one answer, frames for streams.
//!
//! A frame is a byte of flags, four of length, and a JSON object; the last one has a flag of its own and
//! tells how the stream ended.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use cove_control::Charge;
use cove_dialect::{BODY_COPIES, Pieces};
use futures_util::Stream;
use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Door;
use crate::plane::one;
use crate::refusal::{Kind, Refusal};

/// Bytes of a call's one message.
const MESSAGE_MAX: usize = 8 * 1024 * 1024;
/// Bytes of all messages of a stream that comes in.
const STREAM_MAX: u64 = 1024 * 1024 * 1024;
const HEAD: usize = 5;
const COMPRESSED: u8 = 1;
const LAST: u8 = 2;
const UNARY: &str = "application/json";
const STREAM: &str = "application/connect+json";
const TIMEOUT: &str = "connect-timeout-ms";
const KEEPALIVE: &str = "keepalive-ping-interval";
const KEEPALIVE_DEFAULT_S: u64 = 90;
const KEEPALIVE_MAX_S: u64 = 3600;
/// The longest a call may ask to take.
const TIMEOUT_MAX_MS: u64 = 30 * 86_400_000;

fn is(headers: &HeaderMap, wanted: &str) -> Result<(), Refusal> {
    let given = one(headers, header::CONTENT_TYPE.as_str()).unwrap_or("");
    let given = given.split(';').next().unwrap_or("").trim();
    if given.eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    Err(Refusal::new(
        Kind::Unsupported,
        format!("the body must be {wanted}"),
    ))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(bytes).map_err(|error| {
        Refusal::invalid(format!(
            "the message is invalid: {}",
            cove_dialect::wording::plain("", &error)
        ))
    })
}

/// The message of a call with one answer.
pub async fn unary<T: DeserializeOwned>(door: &Door, body: Body) -> Result<T, Refusal> {
    is(&door.headers, UNARY)?;
    let front = &door.dialect().front;
    let bytes = front
        .whole(&door.tab, body, MESSAGE_MAX, door.known())
        .await?;
    parse(&bytes)
}

/// The one message of a call that is answered by a stream.
pub async fn first<T: DeserializeOwned>(door: &Door, body: Body) -> Result<T, Refusal> {
    let mut frames = Frames::new(door, body)?;
    let message = frames.next().await?;
    message.ok_or_else(|| Refusal::invalid("the stream has no message"))
}

/// Messages that come in one by one.
pub struct Frames {
    pieces: Pieces,
    buffer: BytesMut,
    /// For what is in the buffer, and for what is read from it.
    charge: Charge,
}

impl Frames {
    pub fn new(door: &Door, body: Body) -> Result<Self, Refusal> {
        is(&door.headers, STREAM)?;
        Ok(Self {
            pieces: door.dialect().front.pieces(body, STREAM_MAX),
            buffer: BytesMut::new(),
            charge: door.account().charge(),
        })
    }

    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Refusal> {
        loop {
            if let Some(message) = take(&mut self.buffer)? {
                return parse(&message).map(Some);
            }
            match self.pieces.next().await? {
                Some(piece) => {
                    let held = BODY_COPIES * self.buffer.len();
                    self.charge.shrink(self.charge.bytes().saturating_sub(held));
                    self.charge.take(BODY_COPIES * piece.len())?;
                    self.buffer.extend_from_slice(&piece);
                }
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Refusal::invalid("the stream ended within a message")),
            }
        }
    }
}

/// The next whole message, if it has arrived.
fn take(buffer: &mut BytesMut) -> Result<Option<BytesMut>, Refusal> {
    if buffer.len() < HEAD {
        return Ok(None);
    }
    let flags = buffer[0];
    let length = u32::from_be_bytes([buffer[1], buffer[2], buffer[3], buffer[4]]) as usize;
    if flags & COMPRESSED != 0 {
        return Err(Refusal::new(
            Kind::Unsupported,
            "compressed messages are not supported",
        ));
    }
    if flags != 0 {
        return Err(Refusal::invalid("a message has unknown flags"));
    }
    if length > MESSAGE_MAX {
        let message = format!("a message has at most {MESSAGE_MAX} bytes");
        return Err(Refusal::new(Kind::TooLarge, message));
    }
    if buffer.len() < HEAD + length {
        return Ok(None);
    }
    buffer.advance(HEAD);
    Ok(Some(buffer.split_to(length)))
}

fn frame(flags: u8, message: &impl Serialize) -> Bytes {
    let text = serde_json::to_vec(message).expect("messages are always JSON");
    let mut bytes = BytesMut::with_capacity(HEAD + text.len());
    bytes.put_u8(flags);
    bytes.put_u32(u32::try_from(text.len()).expect("messages are made of bounded pieces"));
    bytes.put_slice(&text);
    bytes.freeze()
}

pub fn answer(message: impl Serialize) -> Response {
    axum::Json(message).into_response()
}

/// How a stream goes on: with a message, or to its end.
pub enum Next {
    Message(Value),
    End(Result<(), Refusal>),
}

/// Messages as the client takes them. After the first `End` nothing more is asked for.
pub fn stream(messages: impl Stream<Item = Next> + Send + 'static) -> Response {
    let state = (Box::pin(messages), false);
    let frames = futures_util::stream::unfold(state, |(mut messages, over)| async move {
        if over {
            return None;
        }
        let (bytes, over) = match messages.next().await {
            Some(Next::Message(message)) => (frame(0, &message), false),
            Some(Next::End(Err(refusal))) => (frame(LAST, &refusal.end()), true),
            Some(Next::End(Ok(()))) | None => (frame(LAST, &json!({})), true),
        };
        Some((Ok::<_, Infallible>(bytes), (messages, over)))
    });
    let mut response = Body::from_stream(frames).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(STREAM));
    // Asks reverse proxies not to collect the stream before passing it on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A refusal of a call that would have been answered by a stream.
pub struct Streamed(pub Refusal);

impl<E: Into<Refusal>> From<E> for Streamed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Streamed {
    fn into_response(self) -> Response {
        let end = Next::End(Err(self.0));
        stream(futures_util::stream::iter([end]))
    }
}

/// How long the caller lets a call take.
pub fn timeout_ms(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(text) = one(headers, TIMEOUT) else {
        return Ok(None);
    };
    match text.parse::<u64>() {
        Ok(0) => Ok(None),
        Ok(ms) => Ok(Some(ms.min(TIMEOUT_MAX_MS))),
        Err(_) => Err(Refusal::invalid("Connect-Timeout-Ms is not a number")),
    }
}

/// How long a stream may be silent.
pub fn keepalive(headers: &HeaderMap) -> Duration {
    let asked = one(headers, KEEPALIVE).and_then(|text| text.parse().ok());
    let seconds = asked.unwrap_or(KEEPALIVE_DEFAULT_S);
    Duration::from_secs(seconds.clamp(1, KEEPALIVE_MAX_S))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_whole_and_one_by_one() {
        let mut bytes = BytesMut::new();
        bytes.extend_from_slice(&frame(0, &json!({"a": 1})));
        bytes.extend_from_slice(&frame(0, &json!({"b": 2})));
        let all = bytes.clone();
        for cut in 0..all.len() {
            let mut part = BytesMut::from(&all[..cut]);
            let mut count = 0;
            while take(&mut part).unwrap().is_some() {
                count += 1;
            }
            let whole = usize::from(cut >= all.len() / 2);
            assert_eq!(count, whole, "{cut}");
        }
        assert_eq!(&take(&mut bytes).unwrap().unwrap()[..], b"{\"a\":1}");
        assert_eq!(&take(&mut bytes).unwrap().unwrap()[..], b"{\"b\":2}");
        assert!(take(&mut bytes).unwrap().is_none());
    }

    #[test]
    fn hostile_frames_are_refused_before_they_are_collected() {
        for head in [
            [1, 0, 0, 0, 2],
            [2, 0, 0, 0, 2],
            [0x80, 0, 0, 0, 2],
            [0, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert!(take(&mut BytesMut::from(&head[..])).is_err(), "{head:?}");
        }
    }
}
