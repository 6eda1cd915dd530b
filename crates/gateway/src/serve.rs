//! The process's life after it is confined: serves packets, streams, connections and the control
//! socket, until it is asked to stop or nobody needs it.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cove_wire::Side;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, UdpSocket, UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout};

use crate::control::needs::SIDE;
use crate::control::{self, Call, Hello, OLDEST, Reply, Request, Start};
use crate::dns::resolve::Resolver;
use crate::dns::server::Server;
use crate::journal::{FILES, Journal};
use crate::proxy::Proxy;
use crate::proxy::relay::Pipes;
use crate::state::World;

/// Without an engine and without a sandbox there is nothing to stay for.
const UNNEEDED_FOR: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Calls under way at once; further ones wait in the socket's own queue.
const CALLS_MAX: usize = 512;
/// Of those, the ones that wait for entries of a log. Who follows logs never keeps policies out.
const WAITING_MAX: usize = 256;
/// How long a caller may take to say what it wants.
const CALL_PATIENCE: Duration = Duration::from_secs(10);
/// How long to rest when descriptors or memory run out.
const PAUSE: Duration = Duration::from_millis(20);
/// Descriptors that connections do not get: pipes, control.
const DESCRIPTORS_KEPT: u64 = 2048;
/// Questions of all sandboxes to the host's resolvers at once, where descriptors allow it, and the part
/// of the descriptors that they get elsewhere.
pub const QUESTIONS_MAX: u64 = 4096;
const QUESTIONS_PART: u64 = 8;
/// The client's and the server's.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;

/// What the parent has opened.
pub struct Sockets {
    pub packets: OwnedFd,
    pub streams: OwnedFd,
    pub proxy: OwnedFd,
    pub control: OwnedFd,
    pub journal: [OwnedFd; FILES],
}

struct Gateway {
    world: Arc<World>,
    resolver: Arc<Resolver>,
    instance: String,
    build: String,
    owner: u32,
    dns: SocketAddrV4,
    proxy: SocketAddrV4,
    watched: AtomicUsize,
    waiting: Semaphore,
    stop: Notify,
}

/// The policies are in place before the first packet is read.
pub async fn serve(start: Start, sockets: Sockets, ready: impl FnOnce()) -> io::Result<()> {
    let journal = Arc::new(Journal::begin(sockets.journal.map(Into::into))?);
    let mut limits = start.limits;
    limits.connections_in_all = limits.connections_in_all.min(connections_max());
    let mut world = World::new(limits, start.reserved);
    world.log_to(journal.clone());
    let world = Arc::new(world);
    world.remember(start.logs);
    world.replace(start.table);
    let resolver = Arc::new(Resolver::new(start.upstreams, questions_max()));
    let packets = UdpSocket::from_std(unblocked(sockets.packets)?.into())?;
    let streams = TcpListener::from_std(unblocked(sockets.streams)?.into())?;
    let proxied = TcpListener::from_std(unblocked(sockets.proxy)?.into())?;
    let control = UnixListener::from_std(unblocked(sockets.control)?.into())?;
    let server = Arc::new(Server {
        world: world.clone(),
        resolver: resolver.clone(),
    });
    let proxy = Arc::new(Proxy {
        world: world.clone(),
        resolver: resolver.clone(),
        pipes: Arc::new(Pipes::default()),
    });
    tokio::spawn(server.clone().serve_packets(packets));
    tokio::spawn(server.serve_streams(streams));
    tokio::spawn(proxy.serve(proxied));
    let gateway = Arc::new(Gateway {
        world,
        resolver,
        instance: start.instance,
        build: start.build,
        owner: start.owner,
        dns: start.dns,
        proxy: start.proxy,
        watched: AtomicUsize::new(0),
        waiting: Semaphore::new(WAITING_MAX),
        stop: Notify::new(),
    });
    tokio::spawn(gateway.clone().listen(control));
    ready();
    tokio::select! {
        () = gateway.stop.notified() => {}
        () = gateway.unneeded() => {}
    }
    journal.flush();
    Ok(())
}

fn unblocked(fd: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}

fn descriptors() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

fn questions_max() -> usize {
    let questions = (descriptors() / QUESTIONS_PART).min(QUESTIONS_MAX);
    usize::try_from(questions).unwrap_or(usize::MAX)
}

/// Connections that there are descriptors for.
fn connections_max() -> usize {
    let descriptors = descriptors();
    // On a host with very few descriptors half of them still go to connections.
    let free = descriptors
        .saturating_sub(DESCRIPTORS_KEPT + questions_max() as u64)
        .max(descriptors / 2);
    usize::try_from(free / DESCRIPTORS_PER_CONNECTION).unwrap_or(usize::MAX)
}

/// Why a process that is `side` does nothing for this request: it would be weakened, or misread.
fn refusal(side: &Side, request: &Request) -> Option<Reply> {
    if let Err(error) = side.accept_version(request.version) {
        let message = error.to_string();
        return Some(Reply::Refused { message });
    }
    let named = request.needs.iter().map(String::as_str);
    let missing = side
        .accept_needs(named)
        .and_then(|()| side.accept_content(&request.call.needs()));
    let features = missing.err()?.features;
    Some(Reply::Missing { features })
}

impl Gateway {
    async fn listen(self: Arc<Self>, listener: UnixListener) {
        let calls = Arc::new(Semaphore::new(CALLS_MAX));
        loop {
            // Waiting instead of turning callers away: every call has its end, and one that is turned
            // away looks like a process that is not there.
            let Ok(slot) = calls.clone().acquire_owned().await else {
                return;
            };
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let trusted = stream
                .peer_cred()
                .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == self.owner);
            if !trusted {
                continue;
            }
            let gateway = self.clone();
            tokio::spawn(async move {
                // A caller that goes away asks again if it wants to know.
                let _ = gateway.call(stream).await;
                drop(slot);
            });
        }
    }

    async fn call(&self, mut stream: UnixStream) -> io::Result<()> {
        let request: Request = timeout(CALL_PATIENCE, control::read(&mut stream)).await??;
        // Hello is understood between all versions, so that each can tell which the other is.
        let same = request.instance == self.instance;
        let reply = match request.call {
            Call::Hello => Reply::Hello(self.hello(request.version)),
            Call::Stop if same => {
                control::write_reply(&mut stream, &Reply::Done).await?;
                self.stop.notify_one();
                return Ok(());
            }
            _ if !same => Reply::Refused {
                message: format!("this is the gateway of instance {}", self.instance),
            },
            _ => match refusal(&SIDE, &request) {
                Some(refusal) => refusal,
                None => match request.call {
                    Call::Watch => return self.watch(stream).await,
                    call => self.perform(call).await,
                },
            },
        };
        control::write_reply(&mut stream, &reply).await
    }

    /// In a form that the caller knows.
    fn hello(&self, version: u32) -> Hello {
        let plain = version <= OLDEST;
        Hello {
            version: if plain { OLDEST } else { SIDE.version },
            features: if plain { Vec::new() } else { SIDE.names() },
            instance: self.instance.clone(),
            build: self.build.clone(),
            pid: std::process::id(),
            sandboxes: self.world.sandboxes() as u64,
            connections: self.world.connections() as u64,
            dns: self.dns,
            proxy: self.proxy,
        }
    }

    async fn watch(&self, mut stream: UnixStream) -> io::Result<()> {
        self.watched.fetch_add(1, Ordering::Relaxed);
        let ended = async {
            control::write_reply(&mut stream, &Reply::Done).await?;
            // The engine sends nothing more; what comes is its end.
            stream.read_u8().await.map(drop)
        };
        let ended = ended.await;
        self.watched.fetch_sub(1, Ordering::Relaxed);
        ended
    }

    async fn perform(&self, call: Call) -> Reply {
        match call {
            Call::Place(placed) => self.world.place(placed),
            Call::Remove { address } => self.world.remove(address),
            Call::Replace(table) => self.world.replace(table),
            Call::Forget { sandbox } => self.world.forget(&sandbox),
            Call::Append(entries) => {
                for (address, entry) in entries {
                    self.world.append(address, entry);
                }
            }
            Call::Upstreams(servers) => self.set_upstreams(servers),
            Call::Egress(mut query) => {
                let waiting = self.waiting.try_acquire();
                if waiting.is_err() {
                    query.wait_ms = 0;
                }
                return match self.world.log(&query.sandbox) {
                    Some(log) => Reply::Egress(log.read(&query).await),
                    None => Reply::Unknown,
                };
            }
            Call::Hello | Call::Watch | Call::Stop => {}
        }
        Reply::Done
    }

    fn set_upstreams(&self, servers: Vec<SocketAddr>) {
        self.resolver.set_upstreams(servers);
    }

    /// Whether the engine's data was deleted: our log lies there. Somebody who only deletes a log does so
    /// while an engine watches.
    fn homeless(&self) -> bool {
        let log = rustix::fs::fstat(std::io::stderr());
        self.watched.load(Ordering::Relaxed) == 0 && log.is_ok_and(|log| log.st_nlink == 0)
    }

    async fn unneeded(&self) {
        let mut since = Instant::now();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if self.homeless() {
                return;
            }
            let needed = self.watched.load(Ordering::Relaxed) > 0
                || self.world.sandboxes() > 0
                || self.world.connections() > 0;
            if needed {
                since = Instant::now();
            } else if since.elapsed() > UNNEEDED_FOR {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LACKING: Side = Side {
        features: &[],
        ..SIDE
    };

    fn placed(owner: &str) -> control::Placed {
        control::Placed {
            termination: None,
            address: std::net::Ipv4Addr::new(10, 9, 0, 1),
            sandbox: cove_model::SandboxId::random(),
            owner: owner.to_owned(),
            policy: crate::policy::Policy::default(),
        }
    }

    #[test]
    fn a_process_without_a_feature_refuses_every_call_that_needs_it() {
        for call in [
            Call::Place(placed("")),
            Call::Place(placed("org")),
            Call::Replace(vec![placed("org")]),
        ] {
            let mut request = Request::new("main", call);
            assert_eq!(refusal(&SIDE, &request), None);
            let features = request.needs.clone();
            assert!(!features.is_empty(), "{request:?}");
            let refused = Some(Reply::Missing { features });
            assert_eq!(refusal(&LACKING, &request), refused);
            // An engine that names nothing is refused for what it says.
            request.needs.clear();
            assert_eq!(refusal(&LACKING, &request), refused);
        }
        let harmless = Request::new("main", Call::Upstreams(Vec::new()));
        assert_eq!(refusal(&LACKING, &harmless), None);
    }

    #[test]
    fn a_policy_of_a_newer_engine_is_refused_and_not_weakened() {
        let mut request = Request::new("main", Call::Place(placed("org")));
        request.needs.push("made-up".into());
        let features = vec!["made-up".to_owned()];
        assert_eq!(refusal(&SIDE, &request), Some(Reply::Missing { features }));
        request.version = SIDE.version + 1;
        let refused = refusal(&SIDE, &request);
        assert!(
            matches!(refused, Some(Reply::Refused { .. })),
            "{refused:?}"
        );
    }
}
