//! Figures of sandboxes and of the host, and the ports a sandbox listens on.

pub use cove_model::Level;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// The resource usage of a sandbox, measured by the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metrics {
    /// Time of the measurement.
    pub at: Timestamp,
    /// Whether the sandbox runs.
    pub running: bool,
    /// CPU time since the start, in microseconds.
    pub cpu_usec: u64,
    /// Memory in use.
    pub memory_bytes: u64,
    /// Most memory in use at any time.
    pub memory_peak_bytes: u64,
    /// Memory limit.
    pub memory_limit_bytes: u64,
    /// Number of processes and threads.
    pub pids: u64,
    /// Processes that the kernel killed because the memory was full.
    pub oom_kills: u64,
    /// Disk space in use.
    pub disk_bytes: u64,
    /// Disk limit.
    pub disk_limit_bytes: u64,
    /// Bytes sent over the network.
    pub network_sent_bytes: u64,
    /// Bytes received over the network.
    pub network_received_bytes: u64,
}

/// A TCP port that a program in the sandbox listens on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Port {
    /// Port number.
    pub port: u32,
    /// Address that the program listens on.
    pub address: String,
    /// Process id inside the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Name of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Address of its preview, if the server has previews. Private unless shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Anyone may open the preview, without a link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
}

/// A host that runs sandboxes: its resources, its commitments and its problems.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Runner {
    /// Name of the host.
    pub name: String,
    /// Number of CPUs.
    pub cpus: u32,
    /// Memory of the host.
    pub memory_bytes: u64,
    /// Size of the storage pool.
    pub disk_bytes: u64,
    /// Free space in the storage pool.
    pub disk_free_bytes: u64,
    /// CPUs promised to sandboxes.
    pub promised_cpu: f64,
    /// Memory promised to sandboxes.
    pub promised_memory_bytes: u64,
    /// Disk promised to sandboxes.
    pub promised_disk_bytes: u64,
    /// Number of sandboxes.
    pub sandboxes: u64,
    /// Number of running sandboxes.
    pub running: u64,
    /// Number of sandboxes prepared in advance; 0: none.
    #[serde(default)]
    pub warm: u64,
    /// Isolation tiers.
    pub tiers: Vec<Tier>,
    /// Results of the checks of the host.
    pub findings: Vec<Finding>,
}

/// An isolation tier of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tier {
    /// Name of the tier.
    pub name: String,
    /// Whether sandboxes of this tier can run; virtual machines: without emulation.
    pub usable: bool,
    /// Features of the tier, like `snapshot` or `memory`.
    pub capabilities: Vec<String>,
}

/// One line of `cove doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Name of the check.
    pub name: String,
    /// Result of the check.
    pub level: Level,
    /// What was found.
    pub message: String,
    /// How to fix it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Answer of `/healthz` and `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Always `ok`.
    pub status: String,
    /// Version of the server.
    pub version: String,
}
