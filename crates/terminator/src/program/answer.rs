//! What a server answers, on its way to the guest.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use hyper::{HeaderMap, Response};

use super::carry::Answer;
use super::decode::{self, Decoder};
use super::heads::{only_chunked, only_identity};
use super::meter::{Metered, is_bodiless};
use super::refusal::Refusal;
use super::scrub::{Scrubber, Stream};
use super::table::{Connection, Held};

/// Without values of secrets in its headers, its body and its trailers.
pub fn scrubbed(
    connection: &Connection,
    room: Option<Held>,
    answer: Response<Metered<Incoming>>,
    scrubber: Option<Arc<Scrubber>>,
    head: bool,
) -> Result<Answer, Refusal> {
    let (mut parts, body) = answer.into_parts();
    // The reason phrase and the headers' names as the server wrote them; nobody needs either.
    parts.extensions.clear();
    let Some(scrubber) = scrubber else {
        // The server has no value that it could repeat.
        only_chunked(&parts.headers)?;
        return Ok(Response::from_parts(parts, body.boxed_unsync()));
    };
    scrub_headers(&mut parts.headers, &scrubber);
    if is_bodiless(parts.status, head) {
        // Whatever the server sends after it all the same.
        let none = Full::default().map_err(|never| match never {});
        return Ok(Response::from_parts(parts, none.boxed_unsync()));
    }
    only_chunked(&parts.headers)?;
    only_identity(&parts.headers)?;
    // A guest may leave many answers unread, each with a decoder that holds what it has not sent.
    let decoder = match Decoder::of(&mut parts.headers)? {
        Some(decoder) => {
            // Some servers compress what they were asked to send plain.
            let held = room.or_else(|| connection.hold_spare(decode::MEMORY));
            Some((decoder, held.ok_or(Refusal::Busy)?))
        }
        None => None,
    };
    // A placeholder is as long as it is.
    parts.headers.remove(CONTENT_LENGTH);
    let body = Scrubbed {
        body,
        decoder,
        compressed: Bytes::new(),
        scrubber,
        stream: Stream::default(),
        waiting: None,
        ended: false,
    };
    Ok(Response::from_parts(parts, body.boxed_unsync()))
}

fn scrub_headers(headers: &mut HeaderMap, scrubber: &Scrubber) {
    for value in headers.values_mut() {
        if let Some(changed) = scrubber.whole(value.as_bytes()) {
            *value =
                HeaderValue::from_bytes(&changed).unwrap_or(HeaderValue::from_static("removed"));
        }
    }
}

/// A body without values of secrets.
struct Scrubbed {
    body: Metered<Incoming>,
    decoder: Option<(Decoder, Held)>,
    /// Not decompressed yet.
    compressed: Bytes,
    scrubber: Arc<Scrubber>,
    stream: Stream,
    /// Trailers that come after what was held back.
    waiting: Option<Frame<Bytes>>,
    ended: bool,
}

impl Scrubbed {
    /// What was held back, when nothing more comes.
    fn rest(&mut self) -> io::Result<Bytes> {
        let plain = match self.decoder.take() {
            Some((decoder, _held)) => decoder.finish()?,
            None => Bytes::new(),
        };
        let piece = self.stream.push(&self.scrubber, plain);
        let last = self.stream.finish(&self.scrubber);
        match piece.is_empty() {
            true => Ok(last),
            false => Ok([piece, last].concat().into()),
        }
    }
}

impl Body for Scrubbed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            if let Some(frame) = self.waiting.take() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let this = &mut *self;
            if let Some((decoder, _)) = this
                .decoder
                .as_mut()
                .filter(|_| !this.compressed.is_empty())
            {
                let plain = decoder.push(&mut this.compressed);
                let plain = plain.inspect_err(|_| this.ended = true)?;
                let piece = this.stream.push(&this.scrubber, plain);
                match piece.is_empty() {
                    true => continue,
                    false => return Poll::Ready(Some(Ok(Frame::data(piece)))),
                }
            }
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    this.ended = true;
                    let rest = this.rest()?;
                    match rest.is_empty() {
                        true => return Poll::Ready(None),
                        false => return Poll::Ready(Some(Ok(Frame::data(rest)))),
                    }
                }
            };
            match frame.into_data() {
                Ok(piece) if this.decoder.is_some() => this.compressed = piece,
                Ok(piece) => {
                    let piece = this.stream.push(&this.scrubber, piece);
                    if !piece.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                }
                Err(frame) => {
                    this.ended = true;
                    let Ok(mut trailers) = frame.into_trailers() else {
                        continue;
                    };
                    scrub_headers(&mut trailers, &this.scrubber);
                    this.waiting = Some(Frame::trailers(trailers));
                    let rest = this.rest()?;
                    if !rest.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(rest))));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.waiting.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
