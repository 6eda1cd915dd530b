//! What a sandbox's network policy decided, on the wire.

pub use cove_model::egress::{EgressProtocol, EgressVerdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// One decision. A connection has a second entry when it has ended, with its bytes and a new `id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EgressEntry {
    /// Increases; pass the last one as `after` to continue.
    pub id: u64,
    /// Time of the decision.
    pub at: Timestamp,
    /// Protocol of the attempt.
    pub protocol: EgressProtocol,
    /// The requested host name, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Destination address, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Destination port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Whether it was allowed.
    pub verdict: EgressVerdict,
    /// The entry of the policy that allowed it, or why it was denied.
    pub rule: String,
    /// Bytes sent, once a connection has ended.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

/// The kept entries.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct EgressList {
    /// The entries, oldest first.
    pub items: Vec<EgressEntry>,
    /// Pass it as `after` to continue.
    pub next: u64,
    /// Entries after `after` were dropped before they could be read.
    pub lost: bool,
}

/// One line of a log that is followed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EgressLine {
    /// An entry of the log.
    Entry(EgressEntry),
    /// Entries between the last one and the next were dropped before they could be read.
    Lost,
}

/// Query of `GET /v1/sandboxes/{id}/egress`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EgressQuery {
    /// Start after this entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Maximum number of entries; default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::PAGE_MAX))]
    pub limit: Option<u32>,
    /// Only entries with this verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<EgressVerdict>,
    /// Only entries of this protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<EgressProtocol>,
    /// Only this name and names below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::DOMAIN_NAME_MAX))]
    pub name: Option<String>,
    /// Wait for new entries, one JSON value per line.
    pub follow: bool,
}
