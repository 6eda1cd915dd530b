//! Ports inside that others may visit: who, for how long, and where.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Shares a port: with a signed link, or publicly.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SharePort {
    /// Seconds until the share ends; default: an hour for a link, never for a public port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::LINK_MAX_S))]
    pub expires_s: Option<u64>,
    /// Anyone may open the preview, without a link.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
}

/// The address of a shared port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PortShare {
    /// For browsers: a host of its own. Signed unless the port is public.
    pub url: String,
    /// For programs that do not resolve such names.
    pub path_url: String,
    /// Token of the link; programs may send it as `X-Cove-Token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Anyone can open the preview, without a link.
    pub public: bool,
    /// Time when the share ends; absent: when it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}
