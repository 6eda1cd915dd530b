//! Figures of sandboxes and of the host, and the ports a sandbox listens on.

pub use cove_model::Level;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// What a sandbox uses, from the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metrics {
    pub at: Timestamp,
    pub running: bool,
    pub cpu_usec: u64,
    pub memory_bytes: u64,
    pub memory_peak_bytes: u64,
    pub memory_limit_bytes: u64,
    pub pids: u64,
    pub oom_kills: u64,
    pub disk_bytes: u64,
    pub disk_limit_bytes: u64,
    pub network_sent_bytes: u64,
    pub network_received_bytes: u64,
}

/// A TCP port somebody inside listens on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Port {
    pub port: u32,
    pub address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Where its preview is, where the server has previews. Private unless shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Everybody may visit the preview.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
}

/// A host that runs sandboxes: what it has, has promised and lacks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Runner {
    pub name: String,
    pub cpus: u32,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub disk_free_bytes: u64,
    pub promised_cpu: f64,
    pub promised_memory_bytes: u64,
    pub promised_disk_bytes: u64,
    pub sandboxes: u64,
    pub running: u64,
    /// How many sandboxes are prepared ahead of need; 0: every create begins from nothing.
    #[serde(default)]
    pub warm: u64,
    pub tiers: Vec<Tier>,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tier {
    pub name: String,
    pub usable: bool,
    pub capabilities: Vec<String>,
}

/// One line of `cove doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    pub name: String,
    pub level: Level,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Answer of `/healthz` and `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    pub status: String,
    pub version: String,
}
