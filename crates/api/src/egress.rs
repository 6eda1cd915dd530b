//! What a sandbox's network policy decided, on the wire.

pub use cove_model::egress::{EgressProtocol, EgressVerdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// One decision. A connection comes again when it is over, with the bytes it carried and a new `id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EgressEntry {
    /// Grows; pass the last one seen as `after` to go on.
    pub id: u64,
    pub at: Timestamp,
    pub protocol: EgressProtocol,
    /// The name asked for or spoken to, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    pub verdict: EgressVerdict,
    /// The entry of the policy that allowed it, or why nothing did.
    pub rule: String,
    /// Bytes carried, once a connection is over.
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// What is kept now.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct EgressList {
    pub items: Vec<EgressEntry>,
    /// Pass as `after` to read on.
    pub next: u64,
    /// Entries after `after` were dropped before they could be read.
    pub lost: bool,
}

/// One line of a log that is followed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EgressLine {
    Entry(EgressEntry),
    /// Entries between the last one and the next were dropped before they could be read.
    Lost,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EgressQuery {
    /// Begin after this entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Entries at most; default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::PAGE_MAX))]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<EgressVerdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<EgressProtocol>,
    /// Only this name and names below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::DOMAIN_NAME_MAX))]
    pub name: Option<String>,
    /// Wait for more, one JSON value a line.
    pub follow: bool,
}
