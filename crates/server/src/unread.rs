//! What a handler left unread of a request's body. A connection of HTTP/1 cannot be used again before the body
//! of its last request was read: left unread, it is closed, and a client that is still sending sees a broken
//! pipe instead of the answer, or the end of the connection as the answer to its next request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, Version, header};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use tokio::time::timeout;

/// How much is read before the answer.
const DISCARD_MAX: usize = 4 * 1024 * 1024;
/// The part of the time for all of it that the next piece is waited for.
const QUIET_PART: u32 = 10;

type Slot = Arc<Mutex<Option<Body>>>;

/// A body that comes back here when its handler lets go of it before its end.
pub struct Unread {
    slot: Slot,
    /// The client sends the body only when somebody reads it.
    waits_to_send: bool,
    closable: bool,
}

struct Lent {
    /// Nothing once its end was seen.
    body: Option<Body>,
    slot: Slot,
}

impl Unread {
    /// Nothing for a request without a body.
    pub fn watch(request: &mut Request) -> Option<Self> {
        if request.body().is_end_stream() {
            return None;
        }
        let slot = Slot::default();
        let body = std::mem::take(request.body_mut());
        *request.body_mut() = Body::new(Lent {
            body: Some(body),
            slot: slot.clone(),
        });
        Some(Self {
            slot,
            waits_to_send: request.headers().contains_key(header::EXPECT),
            closable: request.version() < Version::HTTP_2,
        })
    }

    /// Reads the rest within limits. Where there is more, the answer says that the connection ends with it.
    pub async fn discard(self, answer: &mut Response, wait: Duration) {
        let returned = self.slot.lock().take();
        let Some(body) = returned else { return };
        if (self.waits_to_send || !read_to_the_end(body, wait).await) && self.closable {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
        }
    }
}

async fn read_to_the_end(mut body: Body, wait: Duration) -> bool {
    let read = async {
        let mut left = DISCARD_MAX;
        loop {
            match timeout(wait / QUIET_PART, body.frame()).await {
                Ok(None) => return true,
                Ok(Some(Ok(frame))) => {
                    let length = frame.data_ref().map_or(0, Bytes::len);
                    match left.checked_sub(length) {
                        Some(rest) => left = rest,
                        None => return false,
                    }
                }
                Ok(Some(Err(_))) | Err(_) => return false,
            }
        }
    };
    timeout(wait, read).await.unwrap_or(false)
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(context);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(body) = self.body.take()
            && !body.is_end_stream()
        {
            *self.slot.lock() = Some(body);
        }
    }
}
