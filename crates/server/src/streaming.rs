//! Answers that go on: one JSON value a line, or one server-sent event each, made as fast as the
//! client reads and no faster.

use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cove_api::route::{NDJSON, SSE};
use futures_util::{Stream, StreamExt};
use serde::Serialize;

use crate::state::App;

/// A comment goes out when nothing else does, so that proxies and clients know the stream lives.
const SSE_PING: Duration = Duration::from_secs(15);

/// Counts a live answer for as long as it is kept.
pub struct Counted(App);

impl Counted {
    pub fn new(app: &App) -> Self {
        app.metrics.streams.fetch_add(1, Relaxed);
        Self(app.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.metrics.streams.fetch_sub(1, Relaxed);
    }
}

pub fn ndjson<T: Serialize + 'static>(
    app: &App,
    values: impl Stream<Item = T> + Send + 'static,
) -> Response {
    let counted = Counted::new(app);
    let lines = values.map(move |value| {
        let _ = &counted;
        let mut line = serde_json::to_vec(&value).expect("wire types are always JSON");
        line.push(b'\n');
        Ok::<_, Infallible>(Bytes::from(line))
    });
    live(NDJSON, Body::from_stream(lines))
}

/// One server-sent event.
pub struct ServerEvent<T> {
    pub id: Option<u64>,
    pub name: Option<&'static str>,
    pub data: T,
}

/// Frames of server-sent events, see [`ServerEvent::frame`].
pub fn sse(app: &App, events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let counted = Counted::new(app);
    let events = Box::pin(events);
    let chunks =
        futures_util::stream::unfold((events, counted), |(mut events, counted)| async move {
            let chunk = match tokio::time::timeout(SSE_PING, events.next()).await {
                Ok(None) => return None,
                Ok(Some(frame)) => frame,
                Err(_) => Bytes::from_static(b":\n\n"),
            };
            Some((Ok::<_, Infallible>(chunk), (events, counted)))
        });
    live(SSE, Body::from_stream(chunks))
}

impl<T: Serialize> ServerEvent<T> {
    /// As it goes over the wire.
    pub fn frame(&self) -> Bytes {
        let mut text = String::new();
        if let Some(id) = self.id {
            text.push_str(&format!("id: {id}\n"));
        }
        if let Some(name) = self.name {
            text.push_str(&format!("event: {name}\n"));
        }
        // JSON has no bare line breaks, so the data is one line.
        let data = serde_json::to_string(&self.data).expect("wire types are always JSON");
        text.push_str(&format!("data: {data}\n\n"));
        text.into()
    }
}

fn live(media_type: &'static str, body: Body) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks reverse proxies not to collect the stream before passing it on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
