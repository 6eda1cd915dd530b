//! Ports inside that others may visit: who, for how long, and where.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Lets others visit a port: by a signed link, or everybody.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SharePort {
    /// How long; default: an hour for a link, what is public stays so until it is taken
    /// back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::LINK_MAX_S))]
    pub expires_s: Option<u64>,
    /// Everybody may visit, without a link.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
}

/// Where a shared port is visited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PortShare {
    /// For browsers: a host of its own. Signed unless the port is public.
    pub url: String,
    /// For programs that do not resolve such names.
    pub path_url: String,
    /// Of the link by itself: programs may send it as `X-Cove-Token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Everybody can open the preview, without a link.
    pub public: bool,
    /// Time when the share ends; absent: when it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}
