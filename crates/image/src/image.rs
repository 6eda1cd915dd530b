//! What is known about one image. Plain data; kept by [`crate::records`].

use cove_model::ImageId;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::chain::ChainId;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub id: ImageId,
    /// References and names that lead here. A name leads to one image only, the newest that took it.
    pub names: Vec<String>,
    /// Digest of the manifest at the registry; of the archive for imports and the bootstrap.
    pub digest: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created: OffsetDateTime,
    /// Disk bytes of everything in the image, shared layers included.
    pub size_bytes: u64,
    pub source: Source,
    pub config: OciConfig,
    /// Chains from the bottom up; the last one is the image's volume.
    pub layers: Vec<ChainId>,
    /// Architecture as Go and OCI spell it: `amd64`, `arm64`.
    pub arch: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Registry,
    Bootstrap,
    Import,
    /// Flattened from a snapshot, or come with one.
    Snapshot,
}

/// How the image wants its processes started. Hints: the sandbox's own settings come first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OciConfig {
    pub env: Vec<(String, String)>,
    /// Name or uid, with an optional `:group`.
    pub user: Option<String>,
    pub workdir: Option<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
}

impl Image {
    pub(crate) fn top(&self) -> &ChainId {
        self.layers.last().expect("an image has at least one layer")
    }
}

/// This machine's architecture as OCI spells it.
pub fn host_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
