//! From a name to what the outside knows of it, for the resolver and for the gateway's own dials.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use cove_model::network::Name;

use super::cache::{Cache, Known};
use super::upstream::{UpstreamError, Upstreams};
use super::wire::{self, WireName};
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
}

impl Resolver {
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self {
            cache: Cache::default(),
            upstreams: Upstreams::new(servers),
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
        let slot = sandbox.outstanding.try_acquire();
        let _slot = slot.map_err(|_| ResolveError::Busy)?;
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
