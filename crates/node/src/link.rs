//! Control's side of the way to one node.
//!
//! Each call has a connection of its own, as on the unix socket. A few are made ahead, so that a call waits for no
//! handshake. A call that stalls holds its own connection and nothing else.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cove_model::HostId;
use cove_runner_api::wire::{self, Dial};
use cove_runner_api::{ByteStream, GuestStream};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::authority::node_name;
use crate::opening::{self, Kind};
use crate::relay::{Renewal, Renewed};
use crate::{Issued, NodeError, tls};

/// How long a node may take to accept a connection and show its certificate.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a report or a renewal may take.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Reports that must fail in a row before a node counts as away. One alone may be a busy host.
const FAILURES: u32 = 2;
/// Connections that are made ahead for each node, and how long one of them may wait for its call.
const READY_MAX: usize = 4;
const READY_AGE: Duration = Duration::from_secs(120);
/// When a silent connection is asked whether its other end is still there, and when bytes that nobody acknowledged
/// break it.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(3);
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(20);

/// Both ends notice within seconds that the other is gone.
pub(crate) fn tune(tcp: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(tcp);
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_EVERY);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))
}

/// What a relay says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub version: u8,
    pub release: String,
    pub host: HostId,
    /// Milliseconds since 1970, by the node's clock.
    pub now_ms: i64,
}

/// The certificate that this process shows to nodes; replaced before it ends.
pub struct ControlTls {
    authority: String,
    config: RwLock<Arc<ClientConfig>>,
    clock: Arc<dyn TimeProvider>,
}

impl ControlTls {
    pub fn new(authority: &str, own: &Issued) -> Result<Arc<Self>, NodeError> {
        Self::new_at(authority, own, Arc::new(DefaultTimeProvider))
    }

    /// By another clock.
    pub fn new_at(
        authority: &str,
        own: &Issued,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Arc<Self>, NodeError> {
        let config = tls::control(authority, &own.certificate, &own.key, Arc::clone(&clock))?;
        Ok(Arc::new(Self {
            authority: authority.to_owned(),
            config: RwLock::new(config),
            clock,
        }))
    }

    pub fn replace(&self, own: &Issued) -> Result<(), NodeError> {
        let clock = Arc::clone(&self.clock);
        *self.config.write() = tls::control(&self.authority, &own.certificate, &own.key, clock)?;
        Ok(())
    }
}

/// The way to one node.
pub struct Link {
    host: HostId,
    address: String,
    name: ServerName<'static>,
    tls: Arc<ControlTls>,
    ready: Mutex<VecDeque<(Instant, TlsStream<TcpStream>)>>,
    refilling: AtomicBool,
    health: Mutex<Health>,
    closed: CancellationToken,
}

#[derive(Default)]
struct Health {
    failures: u32,
    /// Why the node counts as away. None is known before the first report.
    away: Option<String>,
}

impl Link {
    pub fn new(host: HostId, address: &str, tls: Arc<ControlTls>) -> Result<Arc<Self>, NodeError> {
        let name = ServerName::try_from(node_name(&host));
        let name = name.map_err(|error| NodeError::Tls(error.to_string()))?;
        Ok(Arc::new(Self {
            host,
            address: address.to_owned(),
            name,
            tls,
            ready: Mutex::default(),
            refilling: AtomicBool::new(false),
            health: Mutex::default(),
            closed: CancellationToken::new(),
        }))
    }

    /// The node's runner.
    pub fn runner(self: &Arc<Self>) -> wire::Client {
        wire::Client::remote(Arc::new(Dialer(Arc::clone(self))))
    }

    /// Why the node counts as away, while it does.
    pub fn away(&self) -> Option<String> {
        self.health.lock().away.clone()
    }

    /// Cuts everything that goes on with the node, and begins nothing new.
    pub fn close(&self) {
        self.closed.cancel();
        self.ready.lock().clear();
    }

    /// Asks the relay how it is. Decides whether the node counts as away.
    pub async fn report(self: &Arc<Self>) -> io::Result<Report> {
        let asked = async {
            let mut stream = self.dial().await?;
            stream.write_all(&opening::encode(Kind::Report)).await?;
            stream.flush().await?;
            opening::read_message::<Report>(&mut stream).await
        };
        let reported = match timeout(REPORT_TIMEOUT, asked).await {
            Ok(Ok(report)) if report.host != self.host => Err(io::Error::other(format!(
                "it identifies itself as host {}",
                report.host
            ))),
            Ok(outcome) => outcome,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {} s", REPORT_TIMEOUT.as_secs()),
            )),
        };
        let mut health = self.health.lock();
        match &reported {
            Ok(_) => *health = Health::default(),
            Err(error) => {
                health.failures += 1;
                if health.failures >= FAILURES {
                    health.away = Some(error.to_string());
                    self.ready.lock().clear();
                }
            }
        }
        drop(health);
        if reported.is_ok() {
            self.refill();
        }
        reported
    }

    /// Gives the node a new certificate, made by `sign` for its new public key.
    pub async fn renew(
        &self,
        sign: impl FnOnce(&[u8]) -> Result<String, NodeError> + Send,
    ) -> io::Result<()> {
        let renewed = async {
            let mut stream = self.dial().await?;
            stream.write_all(&opening::encode(Kind::Renew)).await?;
            stream.flush().await?;
            let asked: Renewal = opening::read_message(&mut stream).await?;
            let public = hex::decode(asked.public_key).map_err(io::Error::other)?;
            let certificate = sign(&public).map_err(io::Error::other)?;
            opening::write_message(&mut stream, &Renewed { certificate }).await?;
            opening::read_message::<Report>(&mut stream).await.map(drop)
        };
        timeout(REPORT_TIMEOUT, renewed).await?
    }

    async fn dial(&self) -> io::Result<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.tls.config.read());
        let dialled = async {
            let tcp = TcpStream::connect(&self.address).await?;
            tune(&tcp)?;
            TlsConnector::from(config)
                .connect(self.name.clone(), tcp)
                .await
        };
        tokio::select! {
            dialled = timeout(DIAL_TIMEOUT, dialled) => match dialled {
                Ok(dialled) => dialled,
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no connection within {} s", DIAL_TIMEOUT.as_secs()),
                )),
            },
            () = self.closed.cancelled() => Err(removed()),
        }
    }

    /// One that was made ahead and is still there.
    fn take_ready(&self) -> Option<TlsStream<TcpStream>> {
        let mut ready = self.ready.lock();
        while let Some((since, mut stream)) = ready.pop_front() {
            if since.elapsed() < READY_AGE && is_open(&mut stream) {
                return Some(stream);
            }
        }
        None
    }

    /// Makes connections ahead until there are enough, unless that is under way.
    fn refill(self: &Arc<Self>) {
        if self.refilling.swap(true, Ordering::AcqRel) {
            return;
        }
        let link = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                {
                    let mut ready = link.ready.lock();
                    ready.retain_mut(|(since, stream)| {
                        since.elapsed() < READY_AGE && is_open(stream)
                    });
                    if ready.len() >= READY_MAX || link.closed.is_cancelled() {
                        break;
                    }
                }
                match link.dial().await {
                    Ok(stream) => link.ready.lock().push_back((Instant::now(), stream)),
                    Err(_) => break,
                }
            }
            link.refilling.store(false, Ordering::Release);
        });
    }

    async fn begin(self: &Arc<Self>, kind: Kind) -> io::Result<Live> {
        if self.closed.is_cancelled() {
            return Err(removed());
        }
        if let Some(why) = self.away() {
            return Err(io::Error::new(io::ErrorKind::NotConnected, why));
        }
        let stream = match self.take_ready() {
            Some(stream) => stream,
            None => self.dial().await?,
        };
        self.refill();
        let mut live = Live::new(stream, &self.closed);
        live.write_all(&opening::encode(kind)).await?;
        Ok(live)
    }
}

fn removed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the node was removed")
}

/// The other end says nothing before it is asked: anything to read is its end.
fn is_open(stream: &mut TlsStream<TcpStream>) -> bool {
    let mut byte = [0];
    let mut buffer = ReadBuf::new(&mut byte);
    let mut context = Context::from_waker(Waker::noop());
    Pin::new(stream)
        .poll_read(&mut context, &mut buffer)
        .is_pending()
}

/// What a runner's client calls by.
struct Dialer(Arc<Link>);

#[async_trait]
impl Dial for Dialer {
    async fn call(&self) -> io::Result<Box<dyn ByteStream>> {
        Ok(Box::new(self.0.begin(Kind::Call).await?))
    }

    async fn call_with(
        &self,
        frame: Vec<u8>,
        mut stream: GuestStream,
    ) -> io::Result<Box<dyn ByteStream>> {
        let mut live = self.0.begin(Kind::CallWithStream).await?;
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        live.write_all(&length.to_le_bytes()).await?;
        live.write_all(&frame).await?;
        live.flush().await?;
        let (answer, mut sending) = tokio::io::split(live);
        tokio::spawn(async move {
            // What ends early arrives without an end: the relay cuts it off, and the runner refuses it.
            if tokio::io::copy(&mut stream, &mut sending).await.is_ok() {
                sending.shutdown().await.ok();
            }
        });
        Ok(Box::new(Answer(answer)))
    }
}

/// Only read from; what is written goes by another way.
struct Answer(tokio::io::ReadHalf<Live>);

impl AsyncRead for Answer {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Answer {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A connection that breaks when its node is removed. Reading and writing may be different tasks, and each of them
/// must be woken.
struct Live {
    stream: TlsStream<TcpStream>,
    cut_reading: Pin<Box<WaitForCancellationFutureOwned>>,
    cut_writing: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Live {
    fn new(stream: TlsStream<TcpStream>, closed: &CancellationToken) -> Self {
        let cut = || Box::pin(closed.clone().cancelled_owned());
        Self {
            stream,
            cut_reading: cut(),
            cut_writing: cut(),
        }
    }
}

impl AsyncRead for Live {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.cut_reading.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(removed()));
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Live {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.cut_writing.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(removed()));
        }
        Pin::new(&mut this.stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
