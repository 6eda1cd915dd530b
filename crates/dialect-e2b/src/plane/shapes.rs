//! What requests and answers of the plane look like.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::volumes::Mount;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSandbox {
    #[serde(rename = "templateID")]
    pub template: String,
    pub timeout: Option<i64>,
    #[serde(rename = "autoPause")]
    pub auto_pause: Option<bool>,
    #[serde(rename = "autoPauseMemory")]
    pub auto_pause_memory: Option<bool>,
    #[serde(rename = "autoResume")]
    pub auto_resume: Option<AutoResume>,
    /// Every sandbox has a token; older clients ask whether it should.
    pub secure: Option<bool>,
    pub allow_internet_access: Option<bool>,
    pub network: Option<Network>,
    #[serde(default)]
    pub metadata: Option<BTreeMap<String, String>>,
    #[serde(default, rename = "envVars")]
    pub env: Option<BTreeMap<String, String>>,
    /// What the client tells the gateway that it starts itself, by a command in the sandbox.
    #[serde(rename = "mcp")]
    pub _mcp: Option<serde_json::Map<String, Value>>,
    pub iam: Option<Value>,
    #[serde(rename = "volumeMounts")]
    pub volume_mounts: Option<Vec<Mount>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoResume {
    pub enabled: bool,
}

/// What a sandbox may reach, and who may reach it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Network {
    pub allow_out: Option<Vec<String>>,
    pub deny_out: Option<Vec<String>>,
    pub rules: Option<BTreeMap<String, Value>>,
    pub egress_proxy: Option<Value>,
    pub dns_servers: Option<Vec<String>>,
    pub allow_public_traffic: Option<bool>,
    pub mask_request_host: Option<String>,
    pub https_ports: Option<Vec<u16>>,
    #[serde(rename = "allow_internet_access")]
    pub allow_internet_access: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeout {
    pub timeout: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Connect {
    pub timeout: Option<i64>,
    pub memory: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pause {
    pub memory: Option<bool>,
    /// A guest that does not answer cannot be paused in any case.
    #[serde(rename = "requireHealthyGuest")]
    pub require_healthy_guest: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NewSnapshot {
    pub name: Option<String>,
    pub memory: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fork {
    pub count: Option<u32>,
    pub timeout: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListQuery {
    pub state: Option<String>,
    pub metadata: Option<String>,
    #[serde(rename = "startedAfter")]
    pub started_after: Option<String>,
    pub template: Option<String>,
    pub order: Option<String>,
    pub limit: Option<u32>,
    #[serde(rename = "nextToken")]
    pub next_token: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SnapshotsQuery {
    #[serde(rename = "sandboxID")]
    pub sandbox: Option<String>,
    pub name: Option<String>,
    pub limit: Option<u32>,
    #[serde(rename = "nextToken")]
    pub next_token: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsQuery {
    pub start: Option<i64>,
    pub end: Option<i64>,
}

/// A sandbox at the moment its caller is given the way in.
#[derive(Debug, Serialize)]
pub struct Opened {
    #[serde(rename = "templateID")]
    pub template: String,
    #[serde(rename = "sandboxID")]
    pub id: String,
    #[serde(rename = "clientID")]
    pub client: &'static str,
    #[serde(rename = "envdVersion")]
    pub envd_version: &'static str,
    #[serde(rename = "envdAccessToken")]
    pub access_token: String,
    #[serde(rename = "trafficAccessToken")]
    pub traffic_token: String,
    pub domain: String,
}

/// A sandbox in a list, and with more when asked for by its id.
#[derive(Debug, Serialize)]
pub struct Listed {
    #[serde(rename = "templateID")]
    pub template: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(rename = "sandboxID")]
    pub id: String,
    #[serde(rename = "clientID")]
    pub client: &'static str,
    #[serde(rename = "startedAt")]
    pub started_at: String,
    #[serde(rename = "endAt")]
    pub end_at: String,
    #[serde(rename = "envdVersion")]
    pub envd_version: &'static str,
    #[serde(rename = "cpuCount")]
    pub cpus: u32,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    pub disk_mb: u64,
    pub state: &'static str,
    pub metadata: BTreeMap<String, String>,
    #[serde(rename = "volumeMounts", skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<Mount>,
}

#[derive(Debug, Serialize)]
pub struct Detail {
    #[serde(flatten)]
    pub listed: Listed,
    #[serde(rename = "envdAccessToken")]
    pub access_token: String,
    pub domain: String,
    #[serde(rename = "allowInternetAccess")]
    pub allow_internet_access: bool,
    pub network: NetworkShown,
    pub lifecycle: Lifecycle,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkShown {
    pub allow_out: Vec<String>,
    pub deny_out: Vec<String>,
    pub allow_public_traffic: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    pub auto_resume: bool,
    pub on_timeout: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    pub timestamp: String,
    pub timestamp_unix: i64,
    pub cpu_count: u32,
    pub cpu_used_pct: f64,
    pub mem_used: u64,
    pub mem_total: u64,
    pub mem_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

#[derive(Debug, Serialize)]
pub struct SnapshotShown {
    #[serde(rename = "snapshotID")]
    pub id: String,
    pub names: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Forked {
    Sandbox(Box<Opened>),
    Error { code: u16, message: String },
}
