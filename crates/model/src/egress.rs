//! What was decided about connections of a sandbox, as its egress log keeps and shows it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::SandboxId;

/// Which decisions of the network policy to show.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EgressQuery {
    pub sandbox: SandboxId,
    /// Entries after this sequence number.
    pub after: u64,
    pub limit: u32,
    /// How long to wait for the first entry when there is none yet.
    pub wait_ms: u64,
    pub verdict: Option<EgressVerdict>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EgressBatch {
    pub entries: Vec<EgressEntry>,
    /// Pass as `after` next time.
    pub next: u64,
    /// Entries after `after` that were dropped before they could be read.
    pub lost: bool,
}

/// Whether an attempt was allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EgressVerdict {
    Allowed,
    Denied,
}

/// Protocol of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EgressProtocol {
    Dns,
    Tcp,
    Udp,
    Icmp,
    Other,
}

impl EgressProtocol {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Other => "other",
        }
    }
}

/// One decision of a sandbox's network policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EgressEntry {
    pub sequence: u64,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub protocol: EgressProtocol,
    /// The requested host name, if there is one.
    pub name: Option<String>,
    pub address: Option<IpAddr>,
    pub port: Option<u16>,
    pub verdict: EgressVerdict,
    /// The entry of the policy that decided, or why nothing allowed it.
    pub rule: String,
    /// Bytes sent, once a connection has ended.
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// What a sandbox reports that it refused because its network is off. Its own word: shown, and never acted on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    pub names: Vec<RefusedName>,
    /// Queries for names beyond those.
    pub more: u64,
    /// Attempts to reach an address.
    pub addresses: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedName {
    pub name: String,
    pub queries: u64,
}

impl Refusals {
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.more == 0 && self.addresses == 0
    }

    /// Whether it is as large, and its names as plain, as control makes it of what a guest says.
    pub fn is_bounded(&self) -> bool {
        let plain = |refused: &RefusedName| {
            let length = refused.name.len();
            (1..=cove_limits::DOMAIN_NAME_MAX).contains(&length)
                && refused.name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        self.names.len() <= cove_limits::REFUSED_NAMES_MAX && self.names.iter().all(plain)
    }
}
