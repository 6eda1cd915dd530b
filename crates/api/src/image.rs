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
        /// Image reference, like `docker.io/library/python:3.12`.
        #[schemars(length(min = 1, max = cove_limits::IMAGE_REF_MAX))]
        reference: String,
        /// User name for the registry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(min = 1, max = cove_limits::REGISTRY_USER_MAX))]
        username: Option<String>,
        /// Password or token for the registry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(min = 1, max = cove_limits::REGISTRY_PASSWORD_MAX))]
        password: Option<String>,
    },
    /// Bootstrap the default Debian image.
    Debian {},
    /// Bootstrap the image `code-interpreter`: the default one with numpy, pandas, matplotlib and Node.
    CodeInterpreter {},
    /// Create an image from a snapshot, with its processes if it has memory.
    Snapshot {
        /// Id or name.
        #[schemars(length(min = 1, max = cove_limits::REFERENCE_MAX))]
        snapshot: String,
        /// Name of the new image.
        #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
        name: String,
    },
    /// A directory or tarball on the host itself; needs the scope `admin`.
    Local {
        /// Name of the new image.
        #[schemars(length(min = 1, max = cove_limits::IMAGE_REF_MAX))]
        name: String,
        /// Absolute path on the server.
        #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
        path: String,
    },
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Image {
    /// Id.
    pub id: String,
    /// Names that refer to the image.
    pub names: Vec<String>,
    /// Digest of the manifest, for images from a registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Size on disk.
    pub size_bytes: u64,
    /// Time of creation.
    pub created_at: Timestamp,
    /// `registry`, `bootstrap` or `import`.
    pub source: String,
    /// Sandboxes made from it.
    pub in_use_by: u64,
}

/// The progress of an image job. Each line of a live answer is one of these; the last is not
/// `running`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageJob {
    /// Id of the job.
    pub id: String,
    /// Name of the image.
    pub name: String,
    /// State of the job.
    pub state: JobState,
    /// Current stage, as text for people.
    pub stage: String,
    /// Bytes done in the current stage.
    pub done_bytes: u64,
    /// Bytes of the current stage, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// Problems that did not stop the job.
    pub warnings: Vec<String>,
    /// The image, once the job is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Why the job failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobError {
    /// Stable code of the error.
    pub code: ErrorCode,
    /// What failed.
    pub message: String,
}
