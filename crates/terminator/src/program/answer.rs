//! What a server answers, on its way to the guest.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};

use super::carry::Answer;
use super::heads::{only_chunked, only_identity};
use super::refusal::Refusal;
use super::scrub::{Scrubber, Stream};

/// Without values of secrets in its headers, its body and its trailers.
pub fn scrubbed(
    answer: Response<Incoming>,
    scrubber: Arc<Scrubber>,
    head: bool,
) -> Result<Answer, Refusal> {
    let (mut parts, body) = answer.into_parts();
    // The reason phrase and the headers' names as the server wrote them; nobody needs either.
    parts.extensions.clear();
    scrub_headers(&mut parts.headers, &scrubber);
    let bodiless = head
        || parts.status.is_informational()
        || matches!(
            parts.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
    if bodiless {
        // Whatever the server sends after it all the same.
        let none = Full::default().map_err(|never| match never {});
        return Ok(Response::from_parts(parts, none.boxed_unsync()));
    }
    only_chunked(&parts.headers)?;
    only_identity(&parts.headers)?;
    // A placeholder is as long as it is.
    parts.headers.remove(CONTENT_LENGTH);
    let body = Scrubbed {
        body,
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
    body: Incoming,
    scrubber: Arc<Scrubber>,
    stream: Stream,
    /// Trailers that come after what was held back.
    waiting: Option<Frame<Bytes>>,
    ended: bool,
}

impl Body for Scrubbed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            if let Some(frame) = self.waiting.take() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let this = &mut *self;
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    this.ended = true;
                    let rest = this.stream.finish(&this.scrubber);
                    match rest.is_empty() {
                        true => return Poll::Ready(None),
                        false => return Poll::Ready(Some(Ok(Frame::data(rest)))),
                    }
                }
            };
            match frame.into_data() {
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
                    let rest = this.stream.finish(&this.scrubber);
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
