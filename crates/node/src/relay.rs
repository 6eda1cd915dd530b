//! The relay of a node: TLS outside, the runner's socket inside.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use cove_wire::{descriptor, stream};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::link::Report;
use crate::opening::{self, Kind};
use crate::{Identity, NodeError, NodeKey, tls};

/// Connections of control at once: as many as the runner takes calls.
const CONNECTIONS_MAX: usize = cove_runner_api::wire::CALLS_MAX;
/// Connections that have not shown a certificate yet, in all and from one network: an IPv4 address, or the first 64
/// bits of an IPv6 address, which one host can choose the rest of. Those beyond are closed at once. Networks from which
/// control came before have places of their own, so that many others together do not keep it out.
const STRANGERS_MAX: usize = 256;
const STRANGERS_PER_NETWORK_MAX: usize = 32;
const KNOWN_NETWORKS_MAX: usize = 16;
/// How long a connection may take to show its certificate.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long control may keep a connection ready before it uses it.
const READY_TIMEOUT: Duration = Duration::from_secs(600);
/// How long the rest of an opening, a report or a renewal may take.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the runner's socket may take to accept.
const RUNNER_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of one connection that are on their way here, for each direction.
const BUFFER_BYTES: usize = 32 * 1024;
/// Pause after a failed accept, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long connections may go on after a shutdown was asked for.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// Where [`Identity`] is.
    pub directory: PathBuf,
    /// The runner's socket.
    pub runner: PathBuf,
    /// The version of this program, for reports.
    pub release: String,
}

pub struct Relay {
    config: RelayConfig,
    identity: Mutex<Identity>,
    tls: RwLock<Arc<ServerConfig>>,
    clock: Arc<dyn TimeProvider>,
    strangers: Strangers,
    connections: AtomicUsize,
}

/// A new public key that wants a certificate.
#[derive(Serialize, Deserialize)]
pub(crate) struct Renewal {
    pub public_key: String,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Renewed {
    pub certificate: String,
}

impl Relay {
    pub fn open(config: RelayConfig) -> Result<Arc<Self>, NodeError> {
        Self::open_at(config, Arc::new(DefaultTimeProvider))
    }

    /// By another clock.
    pub fn open_at(
        config: RelayConfig,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Arc<Self>, NodeError> {
        let identity = Identity::load(&config.directory)?
            .ok_or_else(|| NodeError::Join("this host has not joined a fleet".into()))?;
        let tls = Self::listen_with(&identity, &clock)?;
        Ok(Arc::new(Self {
            config,
            identity: Mutex::new(identity),
            tls: RwLock::new(tls),
            clock,
            strangers: Strangers::default(),
            connections: AtomicUsize::new(0),
        }))
    }

    fn listen_with(
        identity: &Identity,
        clock: &Arc<dyn TimeProvider>,
    ) -> Result<Arc<ServerConfig>, NodeError> {
        let key = identity.key_bytes()?;
        tls::relay(
            &identity.authority,
            &identity.certificate,
            &key,
            Arc::clone(clock),
        )
    }

    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: CancellationToken) {
        let connections = TaskTracker::new();
        let cut = CancellationToken::new();
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let (tcp, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (relay, cut) = (Arc::clone(&self), cut.clone());
            connections.spawn(async move {
                let Some(stranger) = relay.strangers.enter(from.ip()) else {
                    tracing::debug!(%from, "too many connections without a certificate; closed one");
                    return;
                };
                tokio::select! {
                    ended = relay.connection(tcp, stranger) => {
                        if let Err(error) = ended {
                            tracing::debug!(%from, %error, "a connection ended");
                        }
                    }
                    () = cut.cancelled() => {}
                }
            });
        }
        connections.close();
        if timeout(DRAIN_TIMEOUT, connections.wait()).await.is_err() {
            cut.cancel();
            connections.wait().await;
        }
    }

    async fn connection(&self, tcp: TcpStream, stranger: Stranger<'_>) -> io::Result<()> {
        crate::link::tune(&tcp)?;
        let acceptor = TlsAcceptor::from(Arc::clone(&self.tls.read()));
        let mut tls = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(tcp)).await??;
        stranger.showed_control();
        let _counted = Counted::enter(&self.connections)
            .ok_or_else(|| io::Error::other("there are too many connections already"))?;
        let mut bytes = [0; opening::BYTES];
        timeout(READY_TIMEOUT, tls.read_exact(&mut bytes)).await??;
        match opening::parse(&bytes)? {
            Kind::Call => self.call(tls).await,
            Kind::CallWithStream => self.call_with_stream(tls).await,
            Kind::Report => timeout(MESSAGE_TIMEOUT, self.report(&mut tls)).await?,
            Kind::Renew => timeout(MESSAGE_TIMEOUT, self.renew(&mut tls)).await?,
        }
    }

    async fn runner(&self) -> io::Result<UnixStream> {
        timeout(RUNNER_TIMEOUT, UnixStream::connect(&self.config.runner)).await?
    }

    async fn call(&self, tls: TlsStream<TcpStream>) -> io::Result<()> {
        let runner = self.runner().await?;
        let (mut from_control, mut to_control) = tokio::io::split(tls);
        // Control says nothing after its request, so the end of this is the end of control.
        let guest = tokio::select! {
            passed = pass_answer(&runner, &mut to_control) => passed?,
            asked = pass_request(&mut from_control, &runner) => return asked,
        };
        let Some(guest) = guest else {
            return to_control.shutdown().await;
        };
        drop(runner);
        let guest = std::os::unix::net::UnixStream::from(guest);
        guest.set_nonblocking(true)?;
        let mut guest = UnixStream::from_std(guest)?;
        let mut tls = from_control.unsplit(to_control);
        copy_bidirectional_with_sizes(&mut tls, &mut guest, BUFFER_BYTES, BUFFER_BYTES)
            .await
            .map(drop)
    }

    async fn call_with_stream(&self, mut tls: TlsStream<TcpStream>) -> io::Result<()> {
        let call = async {
            let length = tls.read_u32_le().await? as usize;
            if length > opening::CALL_MAX {
                return Err(io::Error::other("the call is too long"));
            }
            let mut call = vec![0; length];
            tls.read_exact(&mut call).await?;
            Ok(call)
        };
        let call = timeout(MESSAGE_TIMEOUT, call).await??;
        let mut runner = self.runner().await?;
        let (mut ours, theirs) = UnixStream::pair()?;
        let theirs = theirs.into_std()?;
        let send = stream::send_with(&mut runner, &call, theirs.as_fd());
        timeout(RUNNER_TIMEOUT, send).await??;
        drop(theirs);
        let (mut from_control, mut to_control) = tokio::io::split(tls);
        let sent = async move {
            tokio::io::copy(&mut from_control, &mut ours).await?;
            ours.shutdown().await?;
            drop(ours);
            // The answer is still to come; when control goes away before it, nobody waits for that.
            let mut byte = [0];
            from_control.read(&mut byte).await.map(drop)
        };
        let answered = async {
            pass_answer(&runner, &mut to_control).await?;
            to_control.shutdown().await
        };
        tokio::pin!(answered);
        tokio::select! {
            answered = &mut answered => answered,
            sent = sent => match sent {
                Ok(()) => answered.await,
                Err(error) => Err(error),
            },
        }
    }

    fn now(&self) -> Option<i64> {
        let now = self.clock.current_time()?;
        i64::try_from(now.as_secs()).ok()
    }

    async fn report(&self, tls: &mut TlsStream<TcpStream>) -> io::Result<()> {
        let report = Report {
            version: opening::VERSION,
            release: self.config.release.clone(),
            host: self.identity.lock().host.clone(),
            now_ms: now_ms().or(self.now().map(|now| now * 1000)).unwrap_or(0),
        };
        opening::write_message(tls, &report).await?;
        tls.shutdown().await
    }

    /// Connections that are there keep the certificate they have; new ones get the new one.
    async fn renew(&self, tls: &mut TlsStream<TcpStream>) -> io::Result<()> {
        let key = NodeKey::generate().map_err(io::Error::other)?;
        let public_key = hex::encode(key.public());
        opening::write_message(tls, &Renewal { public_key }).await?;
        let renewed: Renewed = opening::read_message(tls).await?;
        let identity = Identity {
            certificate: renewed.certificate,
            key: hex::encode(&key.serialize()[..]),
            ..self.identity.lock().clone()
        };
        let config = Self::listen_with(&identity, &self.clock).map_err(io::Error::other)?;
        identity
            .save(&self.config.directory)
            .map_err(io::Error::other)?;
        *self.identity.lock() = identity;
        *self.tls.write() = config;
        tracing::info!("the certificate of this node was renewed");
        self.report(tls).await
    }
}

fn now_ms() -> Option<i64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(now.ok()?.as_millis()).ok()
}

/// What control says, to the runner. Ends when control does.
async fn pass_request(
    from: &mut (impl tokio::io::AsyncRead + Unpin),
    runner: &UnixStream,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let mut left = &buffer[..count];
        while !left.is_empty() {
            runner.writable().await?;
            match runner.try_write(left) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => left = &left[written?..],
            }
        }
    }
}

/// What the runner says, to control: to its end, or with a descriptor, which is returned.
async fn pass_answer(
    runner: &UnixStream,
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<Option<OwnedFd>> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut received = Vec::new();
    loop {
        runner.readable().await?;
        let attempt = runner.try_io(Interest::READABLE, || {
            descriptor::receive(runner.as_fd(), &mut buffer, &mut received)
        });
        let count = match attempt {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            got => got?.bytes,
        };
        if count == 0 {
            return Ok(None);
        }
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
        if let Some(descriptor) = received.pop() {
            return Ok(Some(descriptor));
        }
    }
}

/// A place among the connections of control, given back when it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn enter(count: &'a AtomicUsize) -> Option<Self> {
        let counted = Self(count);
        (count.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX).then_some(counted)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connections without a certificate, by where they come from.
#[derive(Default)]
struct Strangers(Mutex<Entrance>);

#[derive(Default)]
struct Entrance {
    present: HashMap<IpAddr, usize>,
    /// Where control came from, latest last.
    known: VecDeque<IpAddr>,
}

struct Stranger<'a>(&'a Strangers, IpAddr);

fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => {
            let bits = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        }
        address => address,
    }
}

impl Strangers {
    fn enter(&self, from: IpAddr) -> Option<Stranger<'_>> {
        let from = network(from);
        let mut entrance = self.0.lock();
        let Entrance { present, known } = &mut *entrance;
        let here = present.get(&from).copied().unwrap_or_default();
        let is_full = || {
            let others = present
                .iter()
                .filter(|(network, _)| !known.contains(network));
            others.map(|(_, count)| count).sum::<usize>() >= STRANGERS_MAX
        };
        if here >= STRANGERS_PER_NETWORK_MAX || (!known.contains(&from) && is_full()) {
            return None;
        }
        present.insert(from, here + 1);
        Some(Stranger(self, from))
    }
}

impl Stranger<'_> {
    /// It has shown a certificate of control.
    fn showed_control(self) {
        let known = &mut self.0.0.lock().known;
        if known.back() == Some(&self.1) {
            return;
        }
        known.retain(|network| *network != self.1);
        if known.len() >= KNOWN_NETWORKS_MAX {
            known.pop_front();
        }
        known.push_back(self.1);
    }
}

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        let present = &mut self.0.0.lock().present;
        if let Some(count) = present.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                present.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_host_with_many_addresses_has_the_places_of_one() {
        let strangers = Strangers::default();
        let enter = |rest: usize| strangers.enter(address(&format!("2001:db8::{rest:x}")));
        let held: Vec<_> = (0..100).filter_map(enter).collect();
        assert_eq!(held.len(), STRANGERS_PER_NETWORK_MAX);
        assert!(strangers.enter(address("2001:db8:0:1::1")).is_some());
        drop(held);
        assert!(strangers.0.lock().present.is_empty());
    }

    #[test]
    fn many_networks_together_do_not_keep_control_out() {
        let strangers = Strangers::default();
        let control = address("192.0.2.1");
        strangers.enter(control).unwrap().showed_control();
        let enter = |host: usize| strangers.enter(address(&format!("198.51.100.{}", host % 256)));
        let held: Vec<_> = (0..1000).filter_map(enter).collect();
        assert_eq!(held.len(), STRANGERS_MAX);
        assert!(strangers.enter(address("203.0.113.1")).is_none());
        assert!(strangers.enter(control).is_some());
    }
}
