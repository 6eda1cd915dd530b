//! What one sandbox, and all of them together, may take of the gateway.

use std::time::{Duration, Instant};

use cove_model::{RateLimit, TokenBucket};
use serde::{Deserialize, Serialize};

/// As many as the C library looks at, and some.
pub const UPSTREAMS_MAX: usize = 4;

/// Limits an operator may change; the rest are constants beside the code they bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections of one sandbox that are being carried.
    pub connections: usize,
    /// Connections of all sandboxes together, where there are descriptors for so many. How they are
    /// shared between organisations, see [`crate::shares`].
    pub connections_in_all: usize,
    /// Connections of one sandbox that have not said where they go, or are being dialled.
    pub half_open: usize,
    /// Those of all sandboxes together; at most half of all connections.
    pub half_open_in_all: usize,
    /// Questions a second, and at once, of one sandbox.
    pub queries_per_second: u32,
    pub queries_burst: u32,
    /// Questions of one sandbox that wait for an answer from outside.
    pub queries_outstanding: usize,
    /// DNS connections over TCP of one sandbox, and of all sandboxes together.
    pub dns_streams: usize,
    pub dns_streams_in_all: usize,
    /// Bytes of new names below `*.` entries that leave the host, a second and at once: what a
    /// tunnel through an allowed suffix can carry.
    pub tunnel_bytes_per_second: u32,
    pub tunnel_bytes_burst: u32,
    /// How long a connection may take to say where it goes.
    pub hello_ms: u64,
    /// How long one address may take to accept a connection.
    pub dial_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            connections_in_all: 200_000,
            half_open: 256,
            half_open_in_all: 16_384,
            queries_per_second: 100,
            queries_burst: 400,
            queries_outstanding: 16,
            dns_streams: 16,
            dns_streams_in_all: 1024,
            tunnel_bytes_per_second: 64,
            tunnel_bytes_burst: 8192,
            hello_ms: 10_000,
            dial_ms: 5_000,
        }
    }
}

impl Limits {
    pub fn hello(&self) -> Duration {
        Duration::from_millis(self.hello_ms)
    }

    pub fn dial(&self) -> Duration {
        Duration::from_millis(self.dial_ms)
    }
}

pub type Bucket = TokenBucket<Instant>;

pub fn bucket(per_second: u32, burst: u32, now: Instant) -> Bucket {
    let limit = RateLimit {
        per_second: per_second.into(),
        burst: burst.into(),
    };
    TokenBucket::full(limit, now)
}
