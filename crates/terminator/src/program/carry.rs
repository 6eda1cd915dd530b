//! One connection: TLS on both sides, requests from one to the other, checked and rewritten on the way.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use cove_model::approval::{APPROVAL_BODY_MAX, APPROVAL_METHOD_MAX, APPROVAL_PATH_MAX};
use cove_model::network::Name;
use cove_model::secret::SecretHost;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT_ENCODING, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use time::OffsetDateTime;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, AlertDescription};
use tokio_rustls::{LazyConfigAcceptor, TlsConnector};

use super::answer::scrubbed;
use super::approvals::{Permit, Wanted};
use super::body::{Body, FORM_MAX, HASHED_MAX, Outgoing, collect, digest, is_form, set_length};
use super::certificates::Certificates;
use super::chunks::{CHUNK_MAX, Resigned};
use super::decode;
use super::heads::{is_websocket, only_chunked, restrain};
use super::meter::{Meter, Metered, request_head};
use super::refusal::Refusal;
use super::sigv4::{self, Payload, Signing};
use super::swap::{swap, swap_form};
use super::table::{Connection, Usable, Usables};
use crate::call::is_shown_whole;

/// How long either side may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a client may go on sending after the connection has ended, and how long it may pause meanwhile.
const LEAVING: Duration = Duration::from_secs(30);
const PAUSING: Duration = Duration::from_secs(5);
const H2: &[u8] = b"h2";
/// What one connection may hold in memory: heads, windows and buffers. A stream can fill its buffer on both sides, so
/// the connections of one sandbox with HTTP/2 hold about 100 MiB of the process's 1 GiB, and the others less.
const HEAD_BYTES_MAX: usize = 128 * 1024;
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 256 * 1024;
const SEND_BUFFER: usize = 32 * 1024;
const STREAMS_MAX: u32 = 100;
const HEADERS_MAX: u32 = 16 * 1024;

pub type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// With these some servers take a request for one with another method or path. Some also take `_` for `-`.
const OVERRIDES: [&str; 7] = [
    "x-http-method",
    "x-http-method-override",
    "x-http-path-override",
    "x-method-override",
    "x-original-url",
    "x-original-uri",
    "x-rewrite-url",
];

/// Where a connection leads.
pub struct Route {
    pub host: Name,
    pub port: u16,
}

/// The client does not accept the certificate that it was shown: it pins another one, or has roots of its own.
#[derive(Debug, thiserror::Error)]
#[error("the client refused the certificate: {0}")]
pub struct Distrusted(io::Error);

impl Distrusted {
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|it| it.is::<Self>())
    }

    /// `error`: what ended the client's handshake.
    fn or(error: io::Error) -> io::Error {
        let inner = error.get_ref().and_then(|it| it.downcast_ref());
        match inner {
            Some(rustls::Error::AlertReceived(
                AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateExpired,
            )) => io::Error::other(Self(error)),
            _ => error,
        }
    }
}

/// Bytes that went to the server and came from it.
#[derive(Default)]
pub struct Counts {
    pub sent: AtomicU64,
    pub received: AtomicU64,
}

/// A socket with what was read of it before in front, which counts.
pub struct Counted {
    first: Bytes,
    stream: Arc<TcpStream>,
    counts: Option<Arc<Counts>>,
}

impl Counted {
    pub fn client(hello: Vec<u8>, stream: TcpStream) -> Self {
        Self {
            first: hello.into(),
            stream: Arc::new(stream),
            counts: None,
        }
    }

    pub fn server(stream: TcpStream, counts: Arc<Counts>) -> Self {
        Self {
            first: Bytes::new(),
            stream: Arc::new(stream),
            counts: Some(counts),
        }
    }
}

/// Ends a connection that may have been answered while it still sent. Closed at once, what it sent and nobody read
/// would be answered with a reset, which takes the answer away from a client that has not read it yet.
async fn leave(stream: &TcpStream) {
    if rustix::net::shutdown(stream, rustix::net::Shutdown::Write).is_err() {
        return;
    }
    let mut unread = vec![0; 16 * 1024];
    let reading = async {
        while let Ok(Ok(())) = timeout(PAUSING, stream.readable()).await {
            match stream.try_read(&mut unread) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    // A client that goes on for longer than this is cut.
    let _ = timeout(LEAVING, reading).await;
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let count = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first.split_to(count));
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            let read = match self.stream.try_read(buffer.initialize_unfilled()) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(error)),
            };
            buffer.advance(read);
            if let Some(counts) = &self.counts {
                counts.received.fetch_add(read as u64, Ordering::Relaxed);
            }
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            let written = match self.stream.try_write(bytes) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(error)),
            };
            if let Some(counts) = &self.counts {
                counts.sent.fetch_add(written as u64, Ordering::Relaxed);
            }
            return Poll::Ready(Ok(written));
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match rustix::net::shutdown(&*self.stream, rustix::net::Shutdown::Write) {
            // The peer was faster.
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

enum Sender {
    One(Mutex<hyper::client::conn::http1::SendRequest<Metered<Outgoing>>>),
    Many(hyper::client::conn::http2::SendRequest<Metered<Outgoing>>),
}

impl Sender {
    /// The server has ended the connection. One that is busy has not.
    fn is_closed(&self) -> bool {
        match self {
            Self::One(sender) => sender.try_lock().is_ok_and(|sender| sender.is_closed()),
            Self::Many(sender) => sender.is_closed(),
        }
    }

    async fn send(&self, request: Request<Metered<Outgoing>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::One(sender) => {
                let mut sender = sender.lock().await;
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Many(sender) => {
                let mut sender = sender.clone();
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

/// Until either side ends it, or it is cut.
pub async fn carry(
    certificates: &Certificates,
    connection: Connection,
    route: Route,
    client: Counted,
    server: Counted,
) -> io::Result<()> {
    let connection = Arc::new(connection);
    let cut = connection.cut.clone();
    tokio::select! {
        done = terminate(certificates, connection, route, client, server) => done,
        () = cut.notified() => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}

async fn terminate(
    certificates: &Certificates,
    connection: Arc<Connection>,
    route: Route,
    client: Counted,
    server: Counted,
) -> io::Result<()> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let clients = Arc::clone(&client.stream);
    let acceptor = LazyConfigAcceptor::new(Default::default(), client);
    let start = timeout(HANDSHAKE, acceptor).await.map_err(late)??;
    let hello = start.client_hello();
    if hello.server_name() != Some(route.host.as_str()) {
        return Err(io::Error::other("the hello names another host"));
    }
    let mut offered: Vec<Vec<u8>> = hello
        .alpn()
        .map(|names| names.map(<[u8]>::to_vec).collect())
        .unwrap_or_default();
    if offered.iter().any(|it| it == H2) && !connection.may_multiplex() {
        offered.retain(|it| it != H2);
        if offered.is_empty() {
            return Err(io::Error::other(
                "the sandbox has too many connections with HTTP/2",
            ));
        }
    }
    let config = certificates.client(offered.iter().map(Vec::as_slice));
    let name = ServerName::try_from(route.host.to_string()).map_err(io::Error::other)?;
    // The server first: what it chooses is what the client is offered.
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, server);
    let server = timeout(HANDSHAKE, connecting).await.map_err(late)??;
    let protocol = server.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    let config = certificates.server(route.host.as_str(), protocol.as_deref())?;
    let client = timeout(HANDSHAKE, start.into_stream(config))
        .await
        .map_err(late)?
        .map_err(Distrusted::or)?;
    let both_h2 = protocol.as_deref() == Some(H2);
    connection.speaks(both_h2);
    let tasks = Tasks::default();
    let _ending = Ending(tasks.clone());
    let (sender, driver) = open(TokioIo::new(server), both_h2, &tasks).await?;
    // Both end with this future, also when it is dropped because the connection is cut.
    let mut driving = JoinSet::new();
    driving.spawn(driver);
    let tunnels = Arc::new(Mutex::new(JoinSet::new()));
    let exchange = Arc::new(Exchange {
        connection,
        route,
        sender,
        tunnels: tunnels.clone(),
    });
    let service = service_fn(move |request| {
        let exchange = exchange.clone();
        async move { Ok::<_, std::convert::Infallible>(exchange.answer(request).await) }
    });
    let client = TokioIo::new(client);
    let serving = async {
        match both_h2 {
            true => {
                hyper::server::conn::http2::Builder::new(tasks.clone())
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .max_send_buf_size(SEND_BUFFER)
                    .max_header_list_size(HEADERS_MAX)
                    .max_concurrent_streams(STREAMS_MAX)
                    .serve_connection(client, service)
                    .await
            }
            false => {
                let mut builder = hyper::server::conn::http1::Builder::new();
                builder
                    .half_close(false)
                    .preserve_header_case(true)
                    .max_buf_size(HEAD_BYTES_MAX)
                    .serve_connection(client, service)
                    .with_upgrades()
                    .await
            }
        }
    };
    let served = serving.await;
    // An upgraded connection goes on after the requests on it have ended.
    while tunnels.lock().await.join_next().await.is_some() {}
    leave(&clients).await;
    served.map_err(io::Error::other)
}

/// What HTTP/2 runs beside a connection. It ends with the connection, also when that is cut.
#[derive(Clone, Default)]
struct Tasks(Arc<parking_lot::Mutex<Option<JoinSet<()>>>>);

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        let mut tasks = self.0.lock();
        let tasks = tasks.get_or_insert_default();
        // Those that have ended.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            future.await;
        });
    }
}

struct Ending(Tasks);

impl Drop for Ending {
    fn drop(&mut self) {
        // Tasks hold the set that they are in: it does not end by itself.
        drop(self.0.0.lock().take());
    }
}

type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn open<T>(server: TokioIo<T>, many: bool, tasks: &Tasks) -> io::Result<(Sender, Driver)>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match many {
        true => {
            let shaken = hyper::client::conn::http2::Builder::new(tasks.clone())
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_send_buf_size(SEND_BUFFER)
                .max_header_list_size(HEADERS_MAX)
                .handshake(server)
                .await;
            let (sender, connection) = shaken.map_err(io::Error::other)?;
            let driver = Box::pin(async move {
                let _ = connection.await;
            });
            Ok((Sender::Many(sender), driver))
        }
        false => {
            let mut builder = hyper::client::conn::http1::Builder::new();
            let builder = builder.preserve_header_case(true);
            let shaken = builder.max_buf_size(HEAD_BYTES_MAX).handshake(server).await;
            let (sender, connection) = shaken.map_err(io::Error::other)?;
            let driver = Box::pin(async move {
                let _ = connection.with_upgrades().await;
            });
            Ok((Sender::One(Mutex::new(sender)), driver))
        }
    }
}

struct Exchange {
    connection: Arc<Connection>,
    route: Route,
    sender: Sender,
    tunnels: Arc<Mutex<JoinSet<()>>>,
}

impl Exchange {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        match self.pass(request).await {
            Ok(answer) => answer,
            Err(refusal) => refusal
                .response()
                .map(|body: Full<Bytes>| body.map_err(|never| match never {}).boxed_unsync()),
        }
    }

    async fn pass(&self, mut request: Request<Incoming>) -> Result<Answer, Refusal> {
        if matches!(*request.method(), Method::TRACE | Method::CONNECT) {
            return Err(Refusal::Method);
        }
        self.check_host(&request)?;
        let upgrading = request.version() == Version::HTTP_11 && is_websocket(request.headers());
        let client = upgrading.then(|| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        only_chunked(&parts.headers).map_err(|_| Refusal::Unwritable)?;
        let (body, permit) = self.approved(&mut parts, body, upgrading).await?;
        let now = OffsetDateTime::now_utc();
        let usable = self.connection.usable(&self.route.host, self.route.port);
        let signing = sigv4::wanted(&mut parts, &usable, now)?;
        let mut used = swap(&mut parts, &usable, now)?;
        // Where no value is ever sent, an answer can repeat none.
        let secrets = &usable.secrets;
        let searched =
            secrets.is_empty() || secrets.iter().any(|it| it.binding.usage.sends_value());
        // What was signed comes back with errors only.
        let errors = !searched && secrets.iter().any(Usable::sends_token);
        restrain(&mut parts.headers, upgrading, searched);
        // Before anything is sent: a request that was carried out must not be answered as one that was too much.
        let compresses = parts
            .headers
            .get(ACCEPT_ENCODING)
            .is_some_and(|it| searched && it != "identity");
        let room = match compresses {
            true => self.connection.hold_spare(decode::MEMORY),
            false => None,
        };
        if compresses && room.is_none() {
            let plain = HeaderValue::from_static("identity");
            parts.headers.insert(ACCEPT_ENCODING, plain);
        }
        if parts.version != Version::HTTP_2 {
            // In the form that servers expect; the host is in its header.
            parts.uri = origin_form(&parts.uri)?;
        }
        let scrubber = match searched || errors {
            true => {
                let scrubber = self.connection.scrubber(&usable.secrets);
                Some(scrubber.ok_or(Refusal::Unsearchable)?)
            }
            false => None,
        };
        let body = self
            .outgoing(&mut parts, body, signing, &usable, &mut used, now)
            .await?;
        let length = hyper::body::Body::size_hint(&body);
        let meter = Meter::reserve(&self.connection, &used, &parts, &length, upgrading).await?;
        if !used.is_empty() && !self.connection.use_now(&used, &permit) {
            return Err(Refusal::Unknown);
        }
        drop(used);
        drop(usable);
        let head = parts.method == Method::HEAD;
        if let Some(meter) = &meter {
            meter.sent(request_head(&parts));
        }
        let body = Metered::new(body, meter.clone());
        let sent = self.sender.send(Request::from_parts(parts, body)).await;
        let over = || meter.as_ref().and_then(|meter| meter.over());
        let mut answer = sent.map_err(|_| over().unwrap_or(Refusal::Server))?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let client = client.filter(|_| is_websocket(answer.headers()));
            let client = client.ok_or(Refusal::Server)?;
            let server = hyper::upgrade::on(&mut answer);
            self.tunnels.lock().await.spawn(tunnel(client, server));
        }
        let scrubber = scrubber.filter(|_| searched || !answer.status().is_success());
        let (parts, body) = answer.into_parts();
        if let Some(meter) = &meter {
            let length = hyper::body::Body::size_hint(&body).exact();
            meter.answered(&parts, head, length).await?;
        }
        let answer = Response::from_parts(parts, Metered::new(body, meter));
        scrubbed(&self.connection, room, answer, scrubber, head)
    }

    /// Waits where the request uses a secret that asks, until it may be sent. What is decided about is the request
    /// as the sandbox sent it; the values are put in afterwards.
    async fn approved(
        &self,
        parts: &mut Parts,
        body: Incoming,
        upgrading: bool,
    ) -> Result<(Body, Permit), Refusal> {
        let body = Body::Coming(body);
        let usable = self.connection.usable(&self.route.host, self.route.port);
        if !usable.secrets.iter().any(|it| it.binding.ask) {
            return Ok((body, Permit::default()));
        }
        let now = OffsetDateTime::now_utc();
        let mut probe = parts.clone();
        let signing = sigv4::wanted(&mut probe, &usable, now)?;
        let mut used = swap(&mut probe, &usable, now)?;
        // What a signed request does may stand in its headers, which nobody is shown: it is approved for a time only.
        let signs = signing.as_ref().is_some_and(|it| it.secret.binding.ask);
        used.extend(signing.map(|it| it.secret));
        used.retain(|it| it.binding.ask);
        let is_asking_field =
            |it: &Usable| it.binding.ask && it.binding.usage.form_field().is_some();
        let form = is_form(&parts.headers) && usable.secrets.iter().any(is_asking_field);
        if used.is_empty() && !form {
            return Ok((body, Permit::default()));
        }
        let mut wanted = self.wanted(parts)?;
        let asking = |used: &[&Usable]| used.iter().map(|it| it.asking()).collect::<Vec<_>>();
        if !form && let Some(permit) = self.connection.timed_permit(&asking(&used), &wanted) {
            return Ok((body, permit));
        }
        let mut body = body;
        // Frames after an upgrade have no end that could be waited for.
        if !upgrading {
            let length = hyper::body::Body::size_hint(&body).exact();
            if length.is_none_or(|length| length <= APPROVAL_BODY_MAX as u64) {
                let collected = collect(&self.connection, body, APPROVAL_BODY_MAX).await;
                let (whole, held) = match collected {
                    // What was read of it is gone, so that it cannot be sent when somebody approves.
                    Err(Refusal::TooLarge) if !form => {
                        return Err(match self.connection.permit(&asking(&used), &wanted)? {
                            Ok(_) => Refusal::TooLarge,
                            Err(id) => Refusal::AskedForTime(id),
                        });
                    }
                    other => other?,
                };
                wanted.body = (!signs).then(|| digest(&whole));
                if form && let Some((_, fields)) = swap_form(&whole, &usable, now)? {
                    used.extend(fields.into_iter().filter(|it| it.binding.ask));
                }
                if !whole.is_empty() || parts.headers.contains_key(TRANSFER_ENCODING) {
                    set_length(&mut parts.headers, whole.len());
                }
                body = Body::Whole { body: whole, held };
            } else if form {
                return Err(Refusal::TooLarge);
            }
        }
        if used.is_empty() {
            return Ok((body, Permit::default()));
        }
        let secrets = asking(&used);
        // No value is in memory for this request while it waits.
        drop(used);
        drop((usable, probe));
        let mut decisions = self.connection.decisions();
        let deadline = tokio::time::Instant::now() + self.connection.hold_time();
        loop {
            decisions.borrow_and_update();
            if self.sender.is_closed() {
                return Err(Refusal::Left);
            }
            let id = match self.connection.permit(&secrets, &wanted)? {
                Ok(permit) => return Ok((body, permit)),
                Err(id) => id,
            };
            let refusal = match wanted.body {
                Some(_) => Refusal::Asked(id.clone()),
                None => Refusal::AskedForTime(id.clone()),
            };
            let Some(_waiting) = self.connection.wait(&id) else {
                return Err(refusal);
            };
            let decided = tokio::time::timeout_at(deadline, decisions.changed()).await;
            if decided.is_err() {
                return Err(refusal);
            }
        }
    }

    /// What a person is asked about: all of it can be shown.
    fn wanted(&self, parts: &Parts) -> Result<Wanted, Refusal> {
        let path = parts.uri.path_and_query().map_or("/", |it| it.as_str());
        let method = parts.method.as_str();
        let mut names = parts.headers.keys();
        if !is_shown_whole(path, APPROVAL_PATH_MAX)
            || !is_shown_whole(method, APPROVAL_METHOD_MAX)
            || names.any(|name| OVERRIDES.contains(&name.as_str().replace('_', "-").as_str()))
        {
            return Err(Refusal::Unshowable);
        }
        Ok(Wanted {
            host: SecretHost {
                name: self.route.host.clone(),
                port: self.route.port,
            },
            method: method.to_owned(),
            path: path.to_owned(),
            body: None,
        })
    }

    /// The body as it is sent. Holds all of one that has a form's field to be swapped, or that must be hashed.
    async fn outgoing<'a>(
        &self,
        parts: &mut Parts,
        body: Body,
        signing: Option<Signing<'a>>,
        usable: &'a Usables,
        used: &mut Vec<&'a Usable>,
        now: OffsetDateTime,
    ) -> Result<Outgoing, Refusal> {
        let mut fields = usable.secrets.iter();
        let form =
            fields.any(|it| it.binding.usage.form_field().is_some()) && is_form(&parts.headers);
        let payload = match &signing {
            Some(signing) => Some(signing.payload(&parts.headers)?),
            None => None,
        };
        let hashed = payload == Some(Payload::Hash);
        if form || hashed {
            let max = if form { FORM_MAX } else { HASHED_MAX };
            let (mut whole, held) = collect(&self.connection, body, max).await?;
            let mut payload = payload;
            if form && let Some((changed, secrets)) = swap_form(&whole, usable, now)? {
                whole = changed.into();
                used.extend(secrets);
                // A hash of the placeholder's body is none of this one.
                if signing.is_some() {
                    parts.headers.remove(sigv4::CONTENT_HASH);
                    payload = Some(Payload::Hash);
                }
            }
            if !whole.is_empty() || parts.headers.contains_key(TRANSFER_ENCODING) {
                set_length(&mut parts.headers, whole.len());
            }
            if let (Some(signing), Some(payload)) = (signing, payload) {
                used.push(signing.secret);
                signing.sign(parts, &payload, Some(&whole), now)?;
            }
            return Ok(Outgoing::Whole {
                body: whole,
                _held: held,
            });
        }
        let (Some(signing), Some(payload)) = (signing, payload) else {
            return Ok(Outgoing::Streamed(body));
        };
        used.push(signing.secret);
        let chain = signing.sign(parts, &payload, None, now)?;
        match payload {
            Payload::Chunks { trailer } => {
                let held = self.connection.hold(CHUNK_MAX).ok_or(Refusal::Busy)?;
                Ok(Outgoing::Chunks {
                    body: Box::new(Resigned::new(body, chain, trailer)),
                    _held: held,
                })
            }
            _ => Ok(Outgoing::Streamed(body)),
        }
    }

    /// The connection is for one host, and so is every request on it.
    fn check_host(&self, request: &Request<Incoming>) -> Result<(), Refusal> {
        let names = |text: &str| {
            let (name, port) = match text.rsplit_once(':') {
                Some((name, port)) => (name, port.parse().ok()),
                None => (text, Some(443)),
            };
            let name = Name::from_text(name).ok();
            name.as_ref() == Some(&self.route.host) && port == Some(self.route.port)
        };
        let authority = request.uri().authority().map(|it| it.as_str());
        let mut hosts = request.headers().get_all(HOST).iter();
        let host = hosts.next().map(|it| it.to_str().unwrap_or_default());
        let one = hosts.next().is_none() && (authority.is_some() || host.is_some());
        match one && authority.into_iter().chain(host).all(names) {
            true => Ok(()),
            false => Err(Refusal::OtherHost),
        }
    }
}

fn origin_form(uri: &hyper::Uri) -> Result<hyper::Uri, Refusal> {
    let path = uri.path_and_query().map_or("/", |it| it.as_str());
    path.parse().map_err(|_| Refusal::Unwritable)
}

/// Frames of an upgraded connection pass as they are.
async fn tunnel(client: hyper::upgrade::OnUpgrade, server: hyper::upgrade::OnUpgrade) {
    let (Ok(client), Ok(server)) = (client.await, server.await) else {
        return;
    };
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    // Either side may end it at any moment.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}
