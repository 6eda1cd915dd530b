//! One request, carried to a server inside and its answer carried back, at the pace of the slower side.
//!
//! Every request has a connection of its own inside, so no server sees two visitors' requests on one
//! and no framing trick reaches a neighbour's. Messages are parsed and written anew on the way.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, Uri, Version, header};
use axum::response::Response;
use bytes::Bytes;
use cove_api::ErrorCode;
use cove_control::{Admission, GuestAccess};
use cove_protocol::client::PortStream;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::url::{PreviewUrl, Target};
use super::{Visitor, headers};
use crate::failure::Failure;
use crate::state::App;
use crate::streaming::Counted;
use cove_dialect::Slot;

/// How long a server may take to begin its answer. Long, because some hold requests until there is news.
const ANSWER_WAIT: Duration = Duration::from_secs(15 * 60);
/// Of an answer: more than browsers take.
const HEADERS_MAX: usize = 256;
const HEADERS_BUFFER: usize = 256 * 1024;
/// For each direction of a connection that left HTTP behind.
const TUNNEL_BUFFER: usize = 32 * 1024;

/// Bytes of an answer over HTTP/2 that wait here for a visitor who does not read.
const WINDOW: u32 = 64 * 1024;

/// What a visit holds until it is over: the sandbox is awake, and its visits are counted.
pub type Kept = (GuestAccess, Visitor, Slot);

/// Ready when the visitor may stay no longer.
type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection inside, and what it holds.
pub struct Carried {
    pub app: App,
    pub stream: PortStream,
    pub kept: Kept,
    pub admission: Admission,
}

impl Carried {
    pub async fn send(
        self,
        mut request: Request,
        host: &str,
        peer: Option<IpAddr>,
        place: &PreviewUrl,
        target: &Target,
    ) -> Result<Response, Failure> {
        let Self {
            app,
            stream,
            kept,
            admission,
        } = self;
        let mut ended: Ended = Box::pin(admission.ended());
        let calls_procedures = is_grpc(&request);
        let upgrade = match request.version() {
            Version::HTTP_11 => headers::upgrade(request.headers()),
            _ => None,
        };
        let visitor_side = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        headers::inward(&mut parts.headers, peer, place, target);
        let set = |headers: &mut axum::http::HeaderMap, name, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        set(
            &mut parts.headers,
            header::HeaderName::from_static("x-forwarded-host"),
            host,
        );
        // A host of its own is the server's name for itself: its links and checks of origin hold. By
        // path it has no name but the one inside.
        let inner = format!("localhost:{}", target.port);
        let inner = if target.prefix.is_some() {
            inner.as_str()
        } else {
            host
        };
        if let Some(protocol) = &upgrade {
            let word = HeaderValue::from_static("upgrade");
            parts.headers.insert(header::CONNECTION, word);
            parts.headers.insert(header::UPGRADE, protocol.clone());
        }
        let path = inner_path(&parts.uri, target.prefix.as_deref())?;
        let body = Paced::new(body, app.config.upload_idle);
        let answer = if calls_procedures {
            parts.uri = format!("http://{inner}{path}").parse().map_err(|_| odd())?;
            parts.version = Version::HTTP_2;
            parts.headers.remove(header::HOST);
            let trailers = HeaderValue::from_static("trailers");
            parts.headers.insert(header::TE, trailers);
            let asked = second(&app, stream, Request::from_parts(parts, body));
            unless(&mut ended, timeout(ANSWER_WAIT, asked)).await?
        } else {
            parts.uri = path.parse().map_err(|_| odd())?;
            parts.version = Version::HTTP_11;
            set(&mut parts.headers, header::HOST, inner);
            let asked = first(&app, stream, Request::from_parts(parts, body));
            unless(&mut ended, timeout(ANSWER_WAIT, asked)).await?
        };
        let mut answer = answer
            .map_err(|_| Failure::new(ErrorCode::TimedOut, "the server inside does not answer"))?
            .map_err(|error| broken(&error))?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(visitor_side) = visitor_side else {
                return Err(strange());
            };
            return Ok(tunnel(app, kept, ended, &mut answer, visitor_side, target));
        }
        headers::outward(answer.headers_mut(), target);
        relocate(answer.headers_mut(), target);
        Ok(answer.map(|inner| {
            Body::new(KeptBody {
                inner,
                ended: Some(ended),
                _kept: kept,
            })
        }))
    }
}

/// The outcome, unless the visitor has to go before.
async fn unless<T>(ended: &mut Ended, work: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::select! {
        outcome = work => Ok(outcome),
        () = ended => {
            let message = "the key or link of this visit was revoked or has expired";
            Err(Failure::new(ErrorCode::Unauthenticated, message))
        }
    }
}

/// gRPC has no form in HTTP/1.1: it goes on as it came.
fn is_grpc(request: &Request) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    request.version() == Version::HTTP_2
        && kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The path and query as the server inside knows them.
fn inner_path(uri: &Uri, prefix: Option<&str>) -> Result<String, Failure> {
    let all = uri.path_and_query().map_or("/", |path| path.as_str());
    let path = match prefix {
        Some(prefix) => all.strip_prefix(prefix).ok_or_else(odd)?,
        None => all,
    };
    Ok(match path.as_bytes().first() {
        Some(b'/') | Some(b'*') => path.to_owned(),
        _ => format!("/{path}"),
    })
}

/// By path, what the server calls `/x` is below the prefix.
fn relocate(headers: &mut axum::http::HeaderMap, target: &Target) {
    let (Some(prefix), Some(place)) = (&target.prefix, headers.get(header::LOCATION)) else {
        return;
    };
    let Ok(place) = place.to_str() else {
        return;
    };
    let own = format!("http://localhost:{}", target.port);
    let path = place.strip_prefix(own.as_str()).unwrap_or(place);
    if path.starts_with('/')
        && !path.starts_with("//")
        && let Ok(value) = HeaderValue::from_str(&format!("{prefix}{path}"))
    {
        headers.insert(header::LOCATION, value);
    }
}

async fn first(
    app: &App,
    stream: PortStream,
    request: Request<Paced>,
) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEADERS_BUFFER)
        .handshake(TokioIo::new(stream))
        .await?;
    app.sessions.spawn(async move {
        // Its end is the answer's, reported there.
        let _ = connection.with_upgrades().await;
    });
    sender.send_request(request).await
}

async fn second(
    app: &App,
    stream: PortStream,
    request: Request<Paced>,
) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .max_header_list_size(HEADERS_BUFFER as u32)
        // A visitor that never reads holds no more than this of what a server inside sends.
        .adaptive_window(false)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .handshake(TokioIo::new(stream))
        .await?;
    app.sessions.spawn(async move {
        let _ = connection.await;
    });
    sender.send_request(request).await
}

/// Both sides said goodbye to HTTP: from here on bytes go to and fro until one of them ends.
fn tunnel(
    app: App,
    kept: Kept,
    ended: Ended,
    answer: &mut Response<Incoming>,
    visitor_side: hyper::upgrade::OnUpgrade,
    target: &Target,
) -> Response {
    let protocol = answer.headers().get(header::UPGRADE).cloned();
    let server_side = hyper::upgrade::on(&mut *answer);
    let ending = app.closing.clone();
    let counted = Counted::new(&app);
    app.sessions.spawn(async move {
        let carry = async {
            let (visitor, server) =
                tokio::try_join!(visitor_side, server_side).map_err(io::Error::other)?;
            let (mut visitor, mut server) = (TokioIo::new(visitor), TokioIo::new(server));
            let (one, other) = (TUNNEL_BUFFER, TUNNEL_BUFFER);
            copy_bidirectional_with_sizes(&mut visitor, &mut server, one, other).await
        };
        tokio::select! {
            // Whoever broke it off knows.
            _ = carry => {}
            () = ending.cancelled() => {}
            () = ended => {}
        }
        drop((kept, counted));
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let mut headers = std::mem::take(answer.headers_mut());
    headers::outward(&mut headers, target);
    headers.remove(header::CONTENT_SECURITY_POLICY);
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        headers.insert(header::UPGRADE, protocol);
    }
    *response.headers_mut() = headers;
    response
}

fn odd() -> Failure {
    Failure::new(ErrorCode::MalformedRequest, "the address is invalid")
}

fn strange() -> Failure {
    Failure::new(
        ErrorCode::PortClosed,
        "the server inside sent an unexpected response",
    )
}

/// The server inside is its owner's to mend; its visitor's mistakes are reported as such.
fn broken(error: &hyper::Error) -> Failure {
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if inner.is::<TooSlow>() {
            let message = "the body did not arrive in time";
            return Failure::new(ErrorCode::RequestTimeout, message);
        }
        cause = inner.source();
    }
    let message = "the server inside does not speak HTTP, or ended too early";
    Failure::new(ErrorCode::PortClosed, message).hint(
        "serve plain HTTP in the sandbox, because the preview has its own TLS; for TLS \
             and other protocols use cove port-forward SANDBOX PORT",
    )
}

/// A request's body whose sender must not stand still.
struct Paced {
    inner: Body,
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug, thiserror::Error)]
#[error("the body did not arrive in time")]
struct TooSlow;

impl Paced {
    fn new(inner: Body, limit: Duration) -> Self {
        Self {
            inner,
            limit,
            timer: None,
        }
    }
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            self.timer = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(timer.as_mut().poll(cx));
        timer.as_mut().reset(Instant::now() + limit);
        Poll::Ready(Some(Err(Box::new(TooSlow))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        HttpBody::size_hint(&self.inner)
    }
}

/// An answer's body, with what must live as long as it is read.
struct KeptBody {
    inner: Incoming,
    /// Absent once the visitor has the answer.
    ended: Option<Ended>,
    _kept: Kept,
}

#[derive(Debug, thiserror::Error)]
#[error("the visitor may stay no longer")]
struct Dismissed;

impl HttpBody for KeptBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        // First: a server that always has something to say must not keep its visitor in.
        let Some(ended) = &mut self.ended else {
            return Poll::Ready(None);
        };
        if ended.as_mut().poll(cx).is_ready() {
            self.ended = None;
            return Poll::Ready(Some(Err(Box::new(Dismissed))));
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
