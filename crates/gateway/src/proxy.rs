//! The egress gateway: takes redirected connections, finds out where they want to go, and carries
//! those that the policy allows.
//!
//! ```text
//! accepted ─► an entry lists the address itself? ──────────────► dial it
//!          ─► port 443: name in the TLS hello ─┐
//!          ─► port 80:  host of each request  ─┴─► listed? ─► resolve the name, dial that
//!          ─► other:    a name this address was answered for, listed with the port ─► dial it
//!          ─► else: reset
//! ```

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cove_model::egress::{EgressProtocol, EgressVerdict};
use cove_model::network::Name;
use cove_model::secret::SecretHost;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::control::Termination;
use crate::dns::resolve::{Resolver, addresses};
use crate::dns::wire;
use crate::log::Draft;
use crate::policy::Denied;
use crate::shares::Share;
use crate::state::{Grounds, Sandbox, Ticket, World};
use crate::{http, tls};

mod buffer;
pub mod dial;
pub mod relay;
mod terminate;
mod web;

use buffer::Buffer;
use dial::Dialled;
use relay::Pipes;

const HTTP: u16 = 80;
const HTTPS: u16 = 443;
/// How long to rest when descriptors or memory run out.
const PAUSE: Duration = Duration::from_millis(20);
/// Names with this port that are looked up for an address which nobody remembers answering.
const LOOKUPS_MAX: usize = 16;
/// A peer that has gone without a word is noticed after about two minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_TRIES: u32 = 4;

pub struct Proxy {
    pub world: Arc<World>,
    pub resolver: Arc<Resolver>,
    pub pipes: Arc<Pipes>,
}

/// Why a connection was not carried.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Policy(#[from] Denied),
    #[error(transparent)]
    Tls(#[from] tls::Refused),
    #[error(transparent)]
    Http(#[from] http::Refused),
    #[error("{0}")]
    Limit(&'static str),
    #[error("the client sent nothing in time")]
    Slow,
    #[error("the request is for port {0}, the connection for another")]
    OtherPort(u16),
    #[error("the request is for another host than the first on this connection")]
    OtherHost,
    #[error("{0}")]
    Unresolved(String),
    #[error("{0}")]
    Undialled(String),
    /// The client went away by itself.
    #[error("the connection was closed")]
    Gone,
}

/// Held by a connection that has not said where it goes, or is being dialled.
struct HalfOpen {
    _own: OwnedSemaphorePermit,
    _share: Share,
}

impl HalfOpen {
    fn of(world: &World, sandbox: &Sandbox) -> Option<Self> {
        Some(Self {
            _own: sandbox.half_open.clone().try_acquire_owned().ok()?,
            _share: world.half_open.take(&sandbox.owner, &sandbox.id)?,
        })
    }
}

/// Where a connection goes, once that is known.
struct Route {
    ticket: Ticket,
    name: Option<Name>,
    /// Addresses to try, all allowed by name or by themselves.
    addresses: Vec<Ipv4Addr>,
}

impl Proxy {
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let local = listener.local_addr().ok();
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            self.accepted(stream, peer, local);
        }
    }

    fn accepted(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr, local: Option<SocketAddr>) {
        let SocketAddr::V4(peer) = peer else {
            return reset(&stream);
        };
        let Some(sandbox) = self.world.at(*peer.ip()) else {
            return reset(&stream);
        };
        // Without an original destination nobody redirected it; what was not redirected has our own.
        let target = rustix::net::sockopt::ip_original_dst(stream.as_fd());
        let Ok(target) = target else {
            return reset(&stream);
        };
        if local == Some(SocketAddr::V4(target)) || self.world.is_reserved(*target.ip()) {
            return reset(&stream);
        }
        let slot = sandbox.connections.clone().try_acquire_owned().ok();
        let half = HalfOpen::of(&self.world, &sandbox);
        // The shares of all come last: what a sandbox's own limits refuse is nobody else's affair.
        let counted = slot
            .as_ref()
            .zip(half.as_ref())
            .and_then(|_| self.world.connections.take(&sandbox.owner, &sandbox.id));
        let (Some(counted), Some(slot), Some(half)) = (counted, slot, half) else {
            let reason = Refusal::Limit("too many connections at once");
            log_denied(&sandbox, None, target, &reason);
            return reset(&stream);
        };
        let proxy = self.clone();
        tokio::spawn(async move {
            proxy.carry(stream, target, &sandbox, half).await;
            drop((counted, slot));
        });
    }

    async fn carry(
        &self,
        client: TcpStream,
        target: SocketAddrV4,
        sandbox: &Arc<Sandbox>,
        half: HalfOpen,
    ) {
        prepare(&client);
        let policy = sandbox.policy();
        let listed = policy
            .address_and_port(*target.ip(), target.port())
            .is_some();
        let bound = sandbox.termination().is_some_and(|termination| {
            let mut hosts = termination.hosts.iter();
            hosts.any(|host| host.port == target.port())
        });
        match target.port() {
            // The name decides, also where an entry lists the address.
            _ if bound => self.carry_tls(client, target, sandbox, half, listed).await,
            HTTPS if !listed => self.carry_tls(client, target, sandbox, half, false).await,
            HTTP if !listed => web::carry(self, client, target, sandbox, half).await,
            _ => {
                self.carry_plain(client, target, sandbox, half, listed)
                    .await
            }
        }
    }

    /// Nothing is read before the other side is dialled: in many protocols it speaks first.
    async fn carry_plain(
        &self,
        client: TcpStream,
        target: SocketAddrV4,
        sandbox: &Arc<Sandbox>,
        half: HalfOpen,
        listed: bool,
    ) {
        let route = if listed {
            by_address(target, sandbox)
        } else {
            self.by_answer(target, sandbox).await
        };
        let dialled = match route {
            Ok(route) => self.dial(route, target.port(), sandbox).await,
            Err(refusal) => Err((None, refusal)),
        };
        match dialled {
            Ok(dialled) => {
                drop(half);
                self.relay(client, dialled, sandbox).await;
            }
            Err((name, refusal)) => {
                log_denied(sandbox, name.as_ref(), target, &refusal);
                reset(&client);
            }
        }
    }

    /// The names this address was answered for, and failing those, the ones it could have been:
    /// what was answered is forgotten when this process or the sandbox moves.
    async fn by_answer(
        &self,
        target: SocketAddrV4,
        sandbox: &Arc<Sandbox>,
    ) -> Result<Route, Refusal> {
        let (address, port) = (*target.ip(), target.port());
        let mut denied = Denied::NotListed;
        for name in sandbox.names_of(address) {
            match sandbox.admit(Grounds::Name(name.clone(), port)) {
                Ok(ticket) => {
                    return Ok(Route {
                        ticket,
                        name: Some(name),
                        addresses: vec![address],
                    });
                }
                Err(other) => denied = other,
            }
        }
        let policy = sandbox.policy();
        let names: Vec<Name> = policy
            .exact_names(port)
            .take(LOOKUPS_MAX)
            .cloned()
            .collect();
        for name in names {
            let Ok(known) = self.resolver.resolve(sandbox, &name, wire::A, 0).await else {
                continue;
            };
            if addresses(&known).contains(&address) {
                let ticket = sandbox.admit(Grounds::Name(name.clone(), port))?;
                return Ok(Route {
                    ticket,
                    name: Some(name),
                    addresses: vec![address],
                });
            }
        }
        Err(Refusal::Policy(denied))
    }

    async fn carry_tls(
        &self,
        client: TcpStream,
        target: SocketAddrV4,
        sandbox: &Arc<Sandbox>,
        half: HalfOpen,
        listed: bool,
    ) {
        let mut buffer = Buffer::default();
        let hello = timeout(self.world.limits.hello(), read_hello(&client, &mut buffer)).await;
        let hello = hello.unwrap_or(Err(Refusal::Slow));
        let termination = match &hello {
            Ok(name) => terminated(sandbox, name, target.port()),
            Err(_) => None,
        };
        let (name, routed) = match hello {
            // Nobody's bound name: to the address that the list has.
            Ok(_) | Err(Refusal::Tls(_) | Refusal::Slow) if listed && termination.is_none() => {
                (None, by_address(target, sandbox))
            }
            Ok(name) => {
                let routed = self.by_name(&name, target, sandbox).await;
                (Some(name), routed)
            }
            Err(refusal) => (None, Err(refusal)),
        };
        let dialled = match routed {
            Ok(route) => match self.dial(route, target.port(), sandbox).await {
                Ok(dialled) if let Some(termination) = &termination => {
                    drop(half);
                    let hello = buffer.take();
                    terminate::hand_over(client, dialled, sandbox, termination, &hello).await;
                    return;
                }
                Ok(dialled) => relay::write_all(&dialled.stream, &buffer.take())
                    .await
                    .map(|sent| {
                        dialled.ticket.sent.fetch_add(sent, Ordering::Relaxed);
                        dialled
                    })
                    .map_err(|error| Refusal::Undialled(error.to_string())),
                Err((_, refusal)) => Err(refusal),
            },
            Err(refusal) => Err(refusal),
        };
        match dialled {
            Ok(dialled) => {
                drop(half);
                self.relay(client, dialled, sandbox).await;
            }
            Err(refusal) => {
                log_denied(sandbox, name.as_ref(), target, &refusal);
                if matches!(refusal, Refusal::Policy(_)) {
                    // Most clients show an alert as words, a reset only as a reset.
                    let _ = client.try_write(&tls::ALERT_DENIED);
                }
                reset(&client);
            }
        }
    }

    /// Where a name leads, whatever address the client dialled: the name is resolved here.
    async fn by_name(
        &self,
        name: &Name,
        target: SocketAddrV4,
        sandbox: &Arc<Sandbox>,
    ) -> Result<Route, Refusal> {
        let ticket = sandbox.admit(Grounds::Name(name.clone(), target.port()))?;
        let known = self
            .resolver
            .resolve(sandbox, name, wire::A, ticket.chosen_bytes)
            .await
            .map_err(|error| Refusal::Unresolved(error.to_string()))?;
        let mut addresses = addresses(&known);
        if addresses.is_empty() {
            return Err(Refusal::Unresolved("the name has no address".into()));
        }
        // The one the client chose comes first, if the name really has it.
        addresses.sort_by_key(|address| address != target.ip());
        Ok(Route {
            ticket,
            name: Some(name.clone()),
            addresses,
        })
    }

    async fn dial(
        &self,
        route: Route,
        port: u16,
        sandbox: &Arc<Sandbox>,
    ) -> Result<Dialled, (Option<Name>, Refusal)> {
        let name = route.name.clone();
        dial::dial(&self.world, sandbox, route, port)
            .await
            .map_err(|refusal| (name, refusal))
    }

    async fn relay(&self, client: TcpStream, dialled: Dialled, sandbox: &Arc<Sandbox>) {
        let sequence = log_allowed(sandbox, &dialled);
        let carried = {
            let Dialled { stream, ticket, .. } = &dialled;
            let (sent, received) = (&ticket.sent, &ticket.received);
            let relay = relay::both_ways(&client, stream, &self.pipes, sandbox, sent, received);
            tokio::select! {
                result = relay => result,
                () = ticket.cut.wait() => Err(io::ErrorKind::ConnectionAborted.into()),
            }
        };
        if carried.is_err() {
            reset(&client);
            reset(&dialled.stream);
        }
        finish(sandbox, sequence, &dialled.ticket, None);
    }
}

fn finish(sandbox: &Sandbox, sequence: u64, ticket: &Ticket, fault: Option<&str>) {
    let sent = ticket.sent.load(Ordering::Relaxed);
    let received = ticket.received.load(Ordering::Relaxed);
    sandbox.log.finish(sequence, sent, received, fault);
}

/// To an address that an entry lists by itself.
fn by_address(target: SocketAddrV4, sandbox: &Arc<Sandbox>) -> Result<Route, Refusal> {
    let ticket = sandbox.admit(Grounds::Address(*target.ip(), target.port()))?;
    Ok(Route {
        ticket,
        name: None,
        addresses: vec![*target.ip()],
    })
}

/// Who terminates a connection to this name, if a secret of the sandbox is bound to it.
fn terminated(sandbox: &Sandbox, name: &Name, port: u16) -> Option<Arc<Termination>> {
    let termination = sandbox.termination()?;
    let bound = |host: &SecretHost| host.name == *name && host.port == port;
    let is_bound = termination.hosts.iter().any(bound);
    is_bound.then_some(termination)
}

async fn read_hello(client: &TcpStream, buffer: &mut Buffer) -> Result<Name, Refusal> {
    loop {
        if let Some(hello) = tls::hello(buffer.bytes())? {
            return Ok(hello.name);
        }
        let read = buffer.read(client, tls::BUFFER_BYTES_MAX).await;
        if read.map_err(|_| Refusal::Gone)? == 0 {
            return Err(Refusal::Gone);
        }
    }
}

fn log_allowed(sandbox: &Sandbox, dialled: &Dialled) -> u64 {
    sandbox.log.record(Draft {
        protocol: EgressProtocol::Tcp,
        name: dialled.name.as_ref().map(Name::to_string),
        address: Some(dialled.address),
        port: Some(dialled.port),
        verdict: EgressVerdict::Allowed,
        rule: dialled.ticket.rule.clone(),
    })
}

fn log_denied(sandbox: &Sandbox, name: Option<&Name>, target: SocketAddrV4, refusal: &Refusal) {
    // Allowed, but it came to nothing: that is not the policy's doing.
    let verdict = match refusal {
        Refusal::Undialled(_) | Refusal::Unresolved(_) => EgressVerdict::Allowed,
        Refusal::Gone => return,
        _ => EgressVerdict::Denied,
    };
    sandbox.log.record(Draft {
        protocol: EgressProtocol::Tcp,
        name: name.map(Name::to_string),
        address: Some(*target.ip()),
        port: Some(target.port()),
        verdict,
        rule: refusal.to_string(),
    });
}

fn prepare(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_TRIES);
    // Without them the connection is only slower to notice its end.
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = stream.set_nodelay(true);
}

/// Makes the coming close a reset: the other side learns at once, and nothing lingers here.
pub fn reset(stream: &TcpStream) {
    // On failure the close is an ordinary one, which ends the connection too.
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
