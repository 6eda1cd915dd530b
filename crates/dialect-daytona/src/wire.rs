//! Bodies as Daytona's SDKs send them. Fields they know and this server cannot honour are listed, so
//! that they can be refused by name; any other field is refused as unknown.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct CreateSandbox {
    pub name: Option<String>,
    pub snapshot: Option<String>,
    pub user: Option<String>,
    pub env: Option<BTreeMap<String, String>>,
    pub labels: Option<BTreeMap<String, String>>,
    pub public: Option<bool>,
    pub network_block_all: Option<bool>,
    pub network_allow_list: Option<String>,
    pub domain_allow_list: Option<String>,
    pub cpu: Option<u32>,
    pub memory: Option<u32>,
    pub disk: Option<u32>,
    pub auto_stop_interval: Option<i64>,
    pub auto_pause_interval: Option<i64>,
    pub auto_archive_interval: Option<i64>,
    pub auto_delete_interval: Option<i64>,
    pub ttl_minutes: Option<i64>,
    pub build_info: Option<BuildInfo>,
    /// There is one place to run in, so a wish for another is refused.
    pub target: Option<String>,
    pub gpu: Option<u32>,
    pub gpu_type: Option<Value>,
    pub kvm: Option<bool>,
    pub spot: Option<bool>,
    pub volumes: Option<Vec<VolumeWish>>,
    pub secrets: Option<Vec<Value>>,
    pub linked_sandbox: Option<String>,
    pub outbound_proxy_url: Option<String>,
    pub otel_endpoint_override: Option<String>,
    /// Creates here are answered when the sandbox runs, so nothing waits in a queue.
    pub queue_timeout: Option<u32>,
    /// Of older SDKs; `class` names a size.
    pub class: Option<String>,
}

/// A volume in a new sandbox.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct VolumeWish {
    /// Id or name.
    pub volume_id: String,
    pub mount_path: String,
    #[serde(default)]
    pub subpath: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct BuildInfo {
    pub dockerfile_content: Option<String>,
    #[serde(default)]
    pub context_hashes: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Labels {
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resize {
    pub cpu: Option<u32>,
    pub memory: Option<u32>,
    pub disk: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Network {
    pub network_block_all: Option<bool>,
    pub network_allow_list: Option<String>,
    pub domain_allow_list: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Force {
    pub force: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Execute {
    pub command: String,
    #[serde(default)]
    pub cwd: Option<String>,
    #[serde(default)]
    pub envs: Option<BTreeMap<String, String>>,
    /// Of older SDKs.
    #[serde(default)]
    pub env: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub timeout: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeRun {
    pub code: String,
    pub language: String,
    #[serde(default)]
    pub argv: Option<Vec<String>>,
    #[serde(default)]
    pub envs: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub timeout: Option<i64>,
}
