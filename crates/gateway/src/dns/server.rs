//! Answers sandboxes, over UDP and TCP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_model::NetworkMode;
use cove_model::egress::{EgressProtocol, EgressVerdict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use super::resolve::{ResolveError, Resolver, addresses};
use super::wire::{self, Answer, Malformed, Query, Record};
use crate::log::Draft;
use crate::policy::{Denied, Policy};
use crate::proxy;
use crate::state::{Sandbox, World};

/// A stream of questions may be silent for this long.
const STREAM_IDLE: Duration = Duration::from_secs(10);
/// Questions on one stream; clients open another after that.
const STREAM_QUERIES_MAX: usize = 256;
/// How long to rest when descriptors or memory run out.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Server {
    pub world: Arc<World>,
    pub resolver: Arc<Resolver>,
}

impl Server {
    pub async fn serve_packets(self: Arc<Self>, socket: UdpSocket) {
        let socket = Arc::new(socket);
        let mut buffer = [0; wire::QUERY_BYTES_MAX + 1];
        loop {
            let (length, peer) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                // A sandbox that has gone away tells us so; that is not about this socket.
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            self.packet(&socket, &buffer[..length], peer);
        }
    }

    /// What can be decided at once is; a task is made only for what the bounds of the sandbox let in.
    fn packet(self: &Arc<Self>, socket: &Arc<UdpSocket>, message: &[u8], peer: SocketAddr) {
        let parsed = match self.begin(message, peer.ip()) {
            Begun::Silence => return,
            Begun::Reply(bytes) => {
                // When the socket is full the packet is lost, as packets may be.
                let _ = socket.try_send_to(&bytes, peer);
                return;
            }
            Begun::Query(sandbox, query) => (sandbox, query),
        };
        let (server, socket) = (self.clone(), socket.clone());
        tokio::spawn(async move {
            let (sandbox, query) = parsed;
            let answer = server.answer(&sandbox, &query).await;
            let room = usize::from(query.edns.unwrap_or(wire::UDP_BYTES_PLAIN));
            let bytes = wire::encode_answer(&query, &answer, room);
            // When the socket is full the packet is lost, as packets may be.
            let _ = socket.send_to(&bytes, peer).await;
        });
    }

    pub async fn serve_streams(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let slot = self.sandbox(peer.ip()).and_then(|sandbox| {
                let own = sandbox.dns_streams.clone().try_acquire_owned().ok()?;
                let share = self.world.dns_streams.take(&sandbox.owner, &sandbox.id)?;
                Some((own, share))
            });
            let Some(slot) = slot else {
                proxy::reset(&stream);
                continue;
            };
            let server = self.clone();
            tokio::spawn(async move {
                // A broken stream is the guest's own affair.
                let _ = server.stream(stream, peer.ip()).await;
                drop(slot);
            });
        }
    }

    async fn stream(&self, mut stream: TcpStream, peer: IpAddr) -> io::Result<()> {
        for _ in 0..STREAM_QUERIES_MAX {
            let message = timeout(STREAM_IDLE, read_message(&mut stream)).await??;
            let bytes = match self.begin(&message, peer) {
                Begun::Silence => return Ok(()),
                Begun::Reply(bytes) => bytes,
                Begun::Query(sandbox, query) => {
                    let answer = self.answer(&sandbox, &query).await;
                    wire::encode_answer(&query, &answer, usize::from(u16::MAX))
                }
            };
            let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
            let message = [&length.to_be_bytes()[..], &bytes].concat();
            timeout(STREAM_IDLE, stream.write_all(&message)).await??;
        }
        Ok(())
    }

    fn sandbox(&self, peer: IpAddr) -> Option<Arc<Sandbox>> {
        match peer {
            IpAddr::V4(address) => self.world.at(address),
            IpAddr::V6(_) => None,
        }
    }

    fn begin(&self, message: &[u8], peer: IpAddr) -> Begun {
        let query = match wire::parse_query(message) {
            Ok(query) => query,
            Err(Malformed::Silence) => return Begun::Silence,
            Err(Malformed::Reply { id, code }) => {
                return Begun::Reply(wire::encode_error(id, code));
            }
        };
        let Some(sandbox) = self.sandbox(peer) else {
            let because = "no sandbox has this address".to_owned();
            let answer = refusal(wire::EDE_PROHIBITED, because);
            return Begun::Reply(encode_small(&query, &answer));
        };
        if !sandbox.may_ask() {
            let reason = "too many questions in a short time";
            log(&sandbox, &query, None, EgressVerdict::Denied, reason.into());
            let answer = refusal(wire::EDE_PROHIBITED, reason.into());
            return Begun::Reply(encode_small(&query, &answer));
        }
        Begun::Query(sandbox, query)
    }

    async fn answer(&self, sandbox: &Arc<Sandbox>, query: &Query) -> Answer {
        let policy = sandbox.policy();
        let name = match &query.name {
            Ok(name) => name,
            Err(error) => {
                let reason = error.to_string();
                return deny(sandbox, query, &reason);
            }
        };
        let grant = match policy.name(name) {
            Ok(grant) => grant,
            Err(denied) => return deny(sandbox, query, &denied.to_string()),
        };
        // There is no IPv6 inside, and the records that could carry keys for encrypted hellos or
        // lead elsewhere are not reported: such a question has no answer, which is not an error.
        if !FORWARDED.contains(&query.kind) {
            log(sandbox, query, None, EgressVerdict::Allowed, grant.rule);
            return Answer::default();
        }
        // Where every name may be asked for, the host's resolvers may know names that are not the
        // public's, and such records have no addresses to judge them by.
        if policy.mode == NetworkMode::Open && query.kind != wire::A {
            let reason = "in mode open only addresses are looked up for a sandbox";
            log(sandbox, query, None, EgressVerdict::Denied, reason.into());
            return Answer {
                code: wire::NOT_IMPLEMENTED,
                because: Some((
                    wire::EDE_PROHIBITED,
                    format!("cove network policy: {reason}"),
                )),
                ..Answer::default()
            };
        }
        let resolved = self
            .resolver
            .resolve(sandbox, name, query.kind, grant.chosen_bytes)
            .await;
        let known = match resolved {
            Ok(known) => known,
            Err(error @ (ResolveError::Tunnel | ResolveError::Busy)) => {
                return deny(sandbox, query, &error.to_string());
            }
            Err(error @ ResolveError::Upstream(_)) => {
                let rule = format!("{}; {error}", grant.rule);
                log(sandbox, query, None, EgressVerdict::Allowed, rule);
                return Answer {
                    code: wire::SERVER_FAILURE,
                    because: Some((wire::EDE_OTHER, error.to_string())),
                    ..Answer::default()
                };
            }
        };
        if query.kind != wire::A {
            log(sandbox, query, None, EgressVerdict::Allowed, grant.rule);
            return Answer {
                code: known.code,
                records: known.records_now(Instant::now()).collect(),
                because: None,
            };
        }
        // The policy may have changed while we waited.
        let policy = sandbox.policy();
        if let Err(denied) = policy.name(name) {
            return deny(sandbox, query, &denied.to_string());
        }
        let all = addresses(&known);
        let (told, kept) = sort(&policy, &self.world, all);
        if let Some(reason) = kept.first() {
            let reason = format!("answered with {reason}");
            // Which address it is stays here: it tells of a network that is not the sandbox's.
            log(sandbox, query, None, EgressVerdict::Denied, reason.clone());
            if told.is_empty() {
                return refusal(wire::EDE_BLOCKED, reason);
            }
        }
        sandbox.answered(name, &told);
        let first = told.first().copied();
        log(sandbox, query, first, EgressVerdict::Allowed, grant.rule);
        let ttl = known.records_now(Instant::now()).map(|it| it.ttl).min();
        let ttl = ttl.unwrap_or(super::cache::TTL_MIN_S);
        Answer {
            code: known.code,
            records: told
                .into_iter()
                .map(|address| Record::address(address, ttl))
                .collect(),
            because: None,
        }
    }
}

enum Begun {
    Silence,
    Reply(Vec<u8>),
    Query(Arc<Sandbox>, Query),
}

/// Kinds that are asked for outside; every other has an empty answer.
const FORWARDED: [u16; 9] = [
    wire::A,
    wire::NS,
    wire::CNAME,
    wire::SOA,
    wire::PTR,
    wire::MX,
    wire::TXT,
    wire::SRV,
    wire::CAA,
];

/// Those the sandbox gets, and why it does not get the others.
fn sort(policy: &Policy, world: &World, all: Vec<Ipv4Addr>) -> (Vec<Ipv4Addr>, Vec<Denied>) {
    let mut told = Vec::new();
    let mut kept = Vec::new();
    for address in all {
        let decided = if world.is_reserved(address) {
            Err(Denied::Never)
        } else {
            policy.may_lead_to(address)
        };
        match decided {
            Ok(()) => told.push(address),
            Err(denied) => kept.push(denied),
        }
    }
    (told, kept)
}

fn encode_small(query: &Query, answer: &Answer) -> Vec<u8> {
    wire::encode_answer(query, answer, usize::from(wire::UDP_BYTES_PLAIN))
}

fn refusal(code: u16, because: String) -> Answer {
    Answer {
        code: wire::REFUSED,
        records: Vec::new(),
        because: Some((code, format!("cove network policy: {because}"))),
    }
}

fn deny(sandbox: &Sandbox, query: &Query, reason: &str) -> Answer {
    log(
        sandbox,
        query,
        None,
        EgressVerdict::Denied,
        reason.to_owned(),
    );
    refusal(wire::EDE_BLOCKED, reason.to_owned())
}

fn log(
    sandbox: &Sandbox,
    query: &Query,
    address: Option<Ipv4Addr>,
    verdict: EgressVerdict,
    rule: String,
) {
    sandbox.log.record(Draft {
        protocol: EgressProtocol::Dns,
        name: Some(query.shown.clone()),
        address,
        port: None,
        verdict,
        rule,
    });
}

async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > wire::QUERY_BYTES_MAX {
        return Err(io::Error::other("the question is too long"));
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}
