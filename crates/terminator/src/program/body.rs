//! Bodies of requests: streamed as they are, or held where a form or a hash needs all of one.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cove_model::approval::BodyDigest;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::Body as _;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING,
};
use tokio::time::timeout;

use super::chunks::Resigned;
use super::refusal::Refusal;
use super::table::{Connection, Held};

/// A form that has a secret in it, and a body that is hashed before it is signed.
pub const FORM_MAX: usize = 1 << 20;
pub const HASHED_MAX: usize = 8 << 20;
/// How long a guest may take to send either.
const HELD_TIME: Duration = Duration::from_secs(60);
const FORM_TYPE: &str = "application/x-www-form-urlencoded";

/// What is sent at once of a body that is held, so that it counts as held until its last piece is taken.
const PIECE: usize = 64 * 1024;

/// The next piece of a body that is held.
fn next_piece(body: &mut Bytes) -> Poll<Option<io::Result<Frame<Bytes>>>> {
    if body.is_empty() {
        return Poll::Ready(None);
    }
    let piece = body.split_to(body.len().min(PIECE));
    // A slice would keep all of the body in memory.
    Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(&piece)))))
}

/// A body as it comes from the sandbox: on its way, or read to its end for an approval.
pub enum Body {
    Coming(Incoming),
    Whole { body: Bytes, held: Held },
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Coming(body) => Pin::new(body).poll_frame(cx).map_err(io::Error::other),
            Self::Whole { body, .. } => next_piece(body),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Coming(body) => body.is_end_stream(),
            Self::Whole { body, .. } => body.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Coming(body) => body.size_hint(),
            Self::Whole { body, .. } => SizeHint::with_exact(body.len() as u64),
        }
    }
}

pub fn digest(body: &[u8]) -> BodyDigest {
    let digest = ring::digest::digest(&ring::digest::SHA256, body);
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(digest.as_ref());
    BodyDigest {
        sha256,
        // Bodies that are held are shorter than that.
        bytes: u32::try_from(body.len()).unwrap_or(u32::MAX),
    }
}

/// A body as the server gets it.
pub enum Outgoing {
    Streamed(Body),
    Whole {
        body: Bytes,
        _held: Held,
    },
    Chunks {
        body: Box<Resigned<Body>>,
        _held: Held,
    },
}

impl hyper::body::Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Streamed(body) => Pin::new(body).poll_frame(cx),
            Self::Whole { body, .. } => next_piece(body),
            Self::Chunks { body, .. } => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Streamed(body) => body.is_end_stream(),
            Self::Whole { body, .. } => body.is_empty(),
            Self::Chunks { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Streamed(body) => body.size_hint(),
            Self::Whole { body, .. } => SizeHint::with_exact(body.len() as u64),
            Self::Chunks { body, .. } => body.size_hint(),
        }
    }
}

/// Whether the body is a form that can be read: one that is compressed stays what it is.
pub fn is_form(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(text), None) = (types.next(), types.next()) else {
        return false;
    };
    let text = text.to_str().unwrap_or_default();
    let kind = text.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case(FORM_TYPE) && !headers.contains_key(CONTENT_ENCODING)
}

/// All of a body, at most so many bytes.
pub async fn collect(
    connection: &Connection,
    body: Body,
    max: usize,
) -> Result<(Bytes, Held), Refusal> {
    let mut body = match body {
        Body::Coming(body) => body,
        Body::Whole { body, held } => {
            return match body.len() > max {
                true => Err(Refusal::TooLarge),
                false => Ok((body, held)),
            };
        }
    };
    let hint = body.size_hint();
    let expected = hint
        .exact()
        .map_or(max, |length| usize::try_from(length).unwrap_or(usize::MAX));
    if expected > max {
        return Err(Refusal::TooLarge);
    }
    let mut held = connection.hold(expected).ok_or(Refusal::Busy)?;
    let collecting = async {
        let mut all = BytesMut::new();
        while let Some(frame) = body.frame().await {
            // A guest that goes away hears nothing of this.
            let Ok(piece) = frame.map_err(|_| Refusal::Unwritable)?.into_data() else {
                continue;
            };
            if all.len() + piece.len() > expected {
                return Err(Refusal::TooLarge);
            }
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    };
    let all = timeout(HELD_TIME, collecting)
        .await
        .map_err(|_| Refusal::Slow)??;
    held.shrink(all.len());
    Ok((all, held))
}

/// The request has this body now, and no other length.
pub fn set_length(headers: &mut HeaderMap, length: usize) {
    headers.remove(TRANSFER_ENCODING);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
}
