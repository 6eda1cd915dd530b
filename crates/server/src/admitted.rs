//! Answers end with the key they were asked for with.
//!
//! A request may take long and its answer may go on for days. Whose key is revoked or has expired
//! meanwhile gets nothing more: a request still being worked on is refused, an answer under way is
//! cut, whichever dialect it is in. Conversations that left HTTP behind hold a [`cove_dialect::StreamPermit`].

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::{IntoResponse, Response};
use cove_api::ErrorCode;
use cove_control::Control;
use cove_dialect::Seen;
use hyper::body::{Frame, SizeHint};

use crate::failure::Failure;

type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What `handler` answers, as long as its caller may have it.
pub async fn answer(
    control: &Control,
    seen: &Seen,
    handler: impl Future<Output = Response>,
) -> Response {
    let mut handler = pin!(handler);
    let mut ended: Option<Ended> = None;
    let watch = |ended: &mut Option<Ended>| {
        if ended.is_none()
            && let Some(principal) = seen.0.get()
        {
            *ended = Some(Box::pin(control.admission_of(principal).ended()));
        }
    };
    let answered = poll_fn(|cx| {
        if let Poll::Ready(response) = handler.as_mut().poll(cx) {
            return Poll::Ready(Some(response));
        }
        watch(&mut ended);
        match &mut ended {
            Some(ended) => ended.as_mut().poll(cx).map(|()| None),
            None => Poll::Pending,
        }
    });
    let Some(response) = answered.await else {
        return taken_back().into_response();
    };
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    watch(&mut ended);
    match ended {
        Some(ended) => response.map(|body| Body::new(Admitted { body, ended })),
        None => response,
    }
}

fn taken_back() -> Failure {
    Failure::new(
        ErrorCode::Unauthenticated,
        "the API key was revoked or expired during the request",
    )
    .hint("pass a key that exists, has not expired and was not revoked")
}

/// A body that breaks off when its reader must go: an end would look like all there was.
struct Admitted {
    body: Body,
    ended: Ended,
}

impl HttpBody for Admitted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.ended.as_mut().poll(cx).is_ready() {
            // A body that has failed is not asked again.
            let why = std::io::Error::other("the key of a request was revoked or has expired");
            return Poll::Ready(Some(Err(axum::Error::new(why))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
