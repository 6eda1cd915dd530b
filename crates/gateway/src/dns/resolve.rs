//! From a name to what the outside knows of it, for the resolver and for the gateway's own dials.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use cove_model::network::Name;
use tokio::time::timeout;

use super::cache::{Cache, Known};
use super::upstream::{SLOT_WAIT, UpstreamError, Upstreams};
use super::wire::{self, WireName};
use crate::shares::Shares;
use crate::state::Sandbox;

/// Aliases followed over several answers.
const CHASES_MAX: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("too many new names below a '*.' entry in a short time")]
    Tunnel,
    #[error("too many questions wait for an answer")]
    Busy,
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
}

#[derive(Debug)]
pub struct Resolver {
    cache: Cache,
    upstreams: Upstreams,
    outstanding: Arc<Shares>,
}

impl Resolver {
    /// `outstanding_max`: questions of all sandboxes that may be under way at once, each of which takes
    /// a descriptor.
    pub fn new(servers: Vec<SocketAddr>, outstanding_max: usize) -> Self {
        Self {
            cache: Cache::default(),
            upstreams: Upstreams::new(servers),
            outstanding: Shares::new("questions to resolvers", outstanding_max),
        }
    }

    pub fn set_upstreams(&self, servers: Vec<SocketAddr>) {
        self.upstreams.set(servers);
        self.cache.clear();
    }

    /// `chosen_bytes`: how much of the name the guest made up, when it is not known yet.
    pub async fn resolve(
        &self,
        sandbox: &Sandbox,
        name: &Name,
        kind: u16,
        chosen_bytes: u32,
    ) -> Result<Arc<Known>, ResolveError> {
        if let Some(known) = self.cache.get(name, kind, Instant::now()) {
            return Ok(known);
        }
        // How many wait here is bounded by the rate at which a sandbox may ask.
        let Ok(Ok(_slot)) = timeout(SLOT_WAIT, sandbox.outstanding.acquire()).await else {
            return Err(ResolveError::Busy);
        };
        if let Some(known) = self.cache.get(name, kind, Instant::now()) {
            return Ok(known);
        }
        let share = self.outstanding.take(&sandbox.owner, &sandbox.id);
        let Some(_share) = share else {
            return Err(UpstreamError::Busy.into());
        };
        if chosen_bytes > 0 && !sandbox.may_choose(chosen_bytes) {
            return Err(ResolveError::Tunnel);
        }
        let known = Arc::new(self.ask(name, kind).await?);
        self.cache.put(name.clone(), kind, known.clone());
        Ok(known)
    }

    async fn ask(&self, name: &Name, kind: u16) -> Result<Known, UpstreamError> {
        let mut at = WireName::from_name(name);
        for _ in 0..CHASES_MAX {
            let answer = self.upstreams.ask(&at, kind).await?;
            match answer.alias {
                Some(alias) => at = alias,
                None => {
                    let (code, ttl) = (answer.code, answer.negative_ttl);
                    return Ok(Known::new(code, answer.records, ttl, Instant::now()));
                }
            }
        }
        let none = Vec::new();
        Ok(Known::new(wire::SERVER_FAILURE, none, None, Instant::now()))
    }
}

/// The addresses among the records.
pub fn addresses(known: &Known) -> Vec<Ipv4Addr> {
    known
        .records
        .iter()
        .filter(|record| record.kind == wire::A)
        .filter_map(|record| record.data.first_chunk::<4>())
        .map(|octets| Ipv4Addr::from(*octets))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use cove_model::SandboxId;
    use tokio::net::UdpSocket;

    use super::*;
    use crate::control::Placed;
    use crate::dns::wire::{Answer, Record};
    use crate::limits::Limits;
    use crate::policy::Policy;
    use crate::state::World;

    const DEADLINE: Duration = Duration::from_secs(60);
    const GREEDY: u8 = 12;
    const NAMES_EACH: usize = 64;

    /// Answers `good.example` and nothing else.
    async fn serve(socket: UdpSocket, silent: Arc<AtomicUsize>) {
        let mut buffer = [0; 2048];
        loop {
            let (length, peer) = socket.recv_from(&mut buffer).await.unwrap();
            let Ok(query) = wire::parse_query(&buffer[..length]) else {
                continue;
            };
            if query.shown != "good.example" {
                silent.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let answer = Answer {
                records: vec![Record::address(Ipv4Addr::new(1, 1, 1, 1), 60)],
                ..Answer::default()
            };
            let bytes = wire::encode_answer(&query, &answer, 1232);
            socket.send_to(&bytes, peer).await.unwrap();
        }
    }

    #[tokio::test]
    async fn sandboxes_whose_names_nobody_answers_leave_room_for_others() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let server = socket.local_addr().unwrap();
        let silent = Arc::new(AtomicUsize::new(0));
        tokio::spawn(serve(socket, silent.clone()));
        let world = World::new(Limits::default(), Vec::new());
        let place = |last: u8| {
            let address = Ipv4Addr::new(10, 9, 0, last);
            world.place(Placed {
                termination: None,
                address,
                owner: String::new(),
                sandbox: SandboxId::random(),
                policy: Policy::default(),
            });
            world.at(address).unwrap()
        };
        let resolver = Arc::new(Resolver::new(vec![server], 512));
        for last in 1..=GREEDY {
            let sandbox = place(last);
            for number in 0..NAMES_EACH {
                let name = format!("n{number}.of{last}.example");
                let name = Name::from_text(&name).unwrap();
                let (resolver, sandbox) = (resolver.clone(), sandbox.clone());
                tokio::spawn(async move {
                    let _ = resolver.resolve(&sandbox, &name, wire::A, 0).await;
                });
            }
        }
        let enough = usize::from(GREEDY) * Limits::default().queries_outstanding.min(32);
        let taken = async {
            while silent.load(Ordering::Relaxed) < enough {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, taken).await.unwrap();
        let victim = place(200);
        let good = Name::from_text("good.example").unwrap();
        let known = resolver.resolve(&victim, &good, wire::A, 0).await.unwrap();
        assert_eq!(addresses(&known), vec![Ipv4Addr::new(1, 1, 1, 1)]);
    }

    #[tokio::test]
    async fn an_organisation_whose_names_nobody_answers_leaves_room_for_others() {
        const AT_ONCE: usize = 32;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let server = socket.local_addr().unwrap();
        let silent = Arc::new(AtomicUsize::new(0));
        tokio::spawn(serve(socket, silent.clone()));
        let world = World::new(Limits::default(), Vec::new());
        let place = |last: u8, owner: &str| {
            let address = Ipv4Addr::new(10, 9, 0, last);
            world.place(Placed {
                termination: None,
                address,
                owner: owner.into(),
                sandbox: SandboxId::random(),
                policy: Policy::default(),
            });
            world.at(address).unwrap()
        };
        let resolver = Arc::new(Resolver::new(vec![server], AT_ONCE));
        for last in 1..=GREEDY {
            let sandbox = place(last, "org_greedy");
            for number in 0..NAMES_EACH {
                let name = format!("n{number}.of{last}.example");
                let name = Name::from_text(&name).unwrap();
                let (resolver, sandbox) = (resolver.clone(), sandbox.clone());
                tokio::spawn(async move {
                    let _ = resolver.resolve(&sandbox, &name, wire::A, 0).await;
                });
            }
        }
        let taken = async {
            while silent.load(Ordering::Relaxed) < AT_ONCE / 2 {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, taken).await.unwrap();
        assert!(resolver.outstanding.held() <= AT_ONCE / 2);
        let good = Name::from_text("good.example").unwrap();
        let victim = place(200, "org_other");
        let known = resolver.resolve(&victim, &good, wire::A, 0).await.unwrap();
        assert_eq!(addresses(&known), vec![Ipv4Addr::new(1, 1, 1, 1)]);
    }

    #[tokio::test]
    async fn more_questions_at_once_than_a_sandbox_has_room_for_wait_and_are_answered() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let server = socket.local_addr().unwrap();
        tokio::spawn(serve(socket, Arc::default()));
        let limits = Limits {
            queries_outstanding: 1,
            ..Limits::default()
        };
        let world = World::new(limits, Vec::new());
        let address = Ipv4Addr::new(10, 9, 0, 1);
        world.place(Placed {
            termination: None,
            address,
            owner: String::new(),
            sandbox: SandboxId::random(),
            policy: Policy::default(),
        });
        let sandbox = world.at(address).unwrap();
        let resolver = Resolver::new(vec![server], 1);
        let good = Name::from_text("good.example").unwrap();
        let (one, other) = tokio::join!(
            resolver.resolve(&sandbox, &good, wire::A, 0),
            resolver.resolve(&sandbox, &good, wire::TXT, 0),
        );
        assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
    }
}
