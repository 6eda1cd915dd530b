//! How an image wants its processes started, and what else it says of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The configuration that a build carries along and leaves behind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    /// `PORT/PROTOCOL`, sorted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expose: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Healthcheck>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Absent: `/bin/sh -c`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<Vec<String>>,
    /// Instructions for builds that begin from this.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub onbuild: Vec<String>,
}

impl Config {
    pub fn shell(&self) -> Vec<String> {
        self.shell
            .clone()
            .unwrap_or_else(|| vec!["/bin/sh".into(), "-c".into()])
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Healthcheck {
    /// Empty: `NONE`.
    pub command: Vec<String>,
    /// Durations as written, such as `30s`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}
