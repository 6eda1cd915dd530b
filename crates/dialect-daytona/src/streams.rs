//! Conversations over WebSockets: followed logs, terminals, the code interpreter.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request};
use bytes::Bytes;
use cove_control::Principal;
use cove_dialect::{Front, READ_BUFFER, Wire};
use futures_util::future::BoxFuture;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::refusal::Refusal;

pub type Sink = SplitSink<WebSocket, Message>;

/// The side that listens. What it hears is on the account of whoever pays for the wire.
pub struct Stream {
    inner: SplitStream<WebSocket>,
    wire: Wire,
    /// Bytes of the last message, which its hearer is done with when the next one is asked for.
    last: usize,
}

impl Stream {
    pub fn new(inner: SplitStream<WebSocket>, wire: Wire) -> Self {
        Self {
            inner,
            wire,
            last: 0,
        }
    }
}

/// Bytes of one message from a caller.
pub const MESSAGE_MAX: usize = 8 * 1024 * 1024;
/// A ping goes out this often; a client silent for three of them is gone.
const PING_EVERY: Duration = Duration::from_secs(20);
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long a goodbye may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// The end of a conversation as it went.
pub const DONE: u16 = 1000;
/// The other side broke something.
pub const FAILED: u16 = 1011;

/// Whoever talks must go.
const NOT_ALLOWED: u16 = 1008;

/// The end of a conversation whose key is no longer good.
pub fn taken_back() -> (u16, String) {
    let reason = "the API key was revoked or has expired";
    (NOT_ALLOWED, reason.to_owned())
}

pub fn is_upgrade(request: &Request) -> bool {
    let asked = request.headers().get(axum::http::header::UPGRADE);
    asked.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// For whoever is known: what they say is on their account.
pub async fn upgrade(
    front: &Front,
    caller: &Principal,
    request: Request,
    protocols: Vec<String>,
) -> Result<(WebSocketUpgrade, Wire), Refusal> {
    let (upgrade, wire) = upgrade_within(front, request, MESSAGE_MAX).await?;
    wire.pay(&front.control.budget().account(caller));
    Ok((upgrade.protocols(protocols), wire))
}

/// With messages of at most so many bytes, of whoever it is.
pub async fn upgrade_within(
    front: &Front,
    request: Request,
    max: usize,
) -> Result<(WebSocketUpgrade, Wire), Refusal> {
    let (mut parts, _) = request.into_parts();
    let wire = parts.extensions.get::<Wire>().cloned().unwrap_or_default();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, front)
        .await
        .map_err(|_| Refusal::invalid("this route is for WebSockets"))?;
    let upgrade = upgrade
        .max_message_size(max)
        .max_frame_size(max)
        .read_buffer_size(READ_BUFFER.min(max));
    Ok((upgrade, wire))
}

/// The side that speaks. Keeps the connection known to be alive.
pub struct Out {
    sink: Sink,
    pings: tokio::time::Interval,
}

impl Out {
    pub fn new(sink: Sink) -> Self {
        let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { sink, pings }
    }

    /// Waits for what is next to be said; `None` when the other side is gone.
    pub async fn while_waiting<T>(&mut self, next: BoxFuture<'_, T>) -> Option<T> {
        let mut next = next;
        loop {
            tokio::select! {
                said = &mut next => return Some(said),
                _ = self.pings.tick() => {
                    self.sink.send(Message::Ping(Bytes::new())).await.ok()?;
                }
            }
        }
    }

    pub async fn text(&mut self, text: String) -> Option<()> {
        self.sink.send(Message::text(text)).await.ok()
    }

    pub async fn bytes(&mut self, bytes: impl Into<Bytes>) -> Option<()> {
        self.sink.send(Message::binary(bytes)).await.ok()
    }

    pub async fn close(mut self, code: u16, reason: &str) {
        // A reason has 123 bytes at most.
        let reason = &reason[..reason.floor_char_boundary(123)];
        let frame = CloseFrame {
            code,
            reason: Utf8Bytes::from(reason),
        };
        let said = async {
            self.sink.send(Message::Close(Some(frame))).await.ok();
            self.sink.close().await.ok();
        };
        timeout(FAREWELL, said).await.ok();
    }
}

/// What the other side says next: bytes, whether they came as text or not. `None` when it is gone or
/// silent for too long.
pub async fn heard(stream: &mut Stream) -> Option<Bytes> {
    loop {
        stream.wire.taken(std::mem::take(&mut stream.last));
        let bytes = match timeout(SILENCE_MAX, stream.inner.next())
            .await
            .ok()??
            .ok()?
        {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => Bytes::from(text),
            Message::Close(_) => return None,
            Message::Ping(bytes) | Message::Pong(bytes) => {
                stream.last = bytes.len();
                continue;
            }
        };
        stream.last = bytes.len();
        return Some(bytes);
    }
}
