//! Images and the jobs that make them, on the wire.

pub use cove_model::JobState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ErrorCode, Timestamp};

/// Body of `POST /v1/images`: where the image comes from.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum AddImage {
    /// Pull from an OCI registry.
    Registry {
        #[schemars(length(min = 1, max = cove_limits::IMAGE_REF_MAX))]
        reference: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(min = 1, max = cove_limits::REGISTRY_USER_MAX))]
        username: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(min = 1, max = cove_limits::REGISTRY_PASSWORD_MAX))]
        password: Option<String>,
    },
    /// Bootstrap the default Debian image.
    Debian {},
    /// Bootstrap the image `code-interpreter`: the default one with numpy, pandas, matplotlib and Node.
    CodeInterpreter {},
    /// Make a snapshot an image of its own, with its processes when it has memory.
    Snapshot {
        /// Id or name.
        #[schemars(length(min = 1, max = cove_limits::REFERENCE_MAX))]
        snapshot: String,
        #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
        name: String,
    },
    /// A directory or tarball on the host itself; needs the scope `admin`.
    Local {
        #[schemars(length(min = 1, max = cove_limits::IMAGE_REF_MAX))]
        name: String,
        #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
        path: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Image {
    pub id: String,
    pub names: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    pub size_bytes: u64,
    pub created_at: Timestamp,
    /// `registry`, `bootstrap` or `import`.
    pub source: String,
    /// Sandboxes made from it.
    pub in_use_by: u64,
}

/// An image on its way. Each line of a live answer is one of these; the last is not `running`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageJob {
    pub id: String,
    pub name: String,
    pub state: JobState,
    /// For a person: what is done now.
    pub stage: String,
    pub done_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    pub warnings: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobError {
    pub code: ErrorCode,
    pub message: String,
}
