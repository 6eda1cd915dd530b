//! Volumes on the wire: directories that outlive sandboxes.

use cove_model::Placement;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Body of `POST /v1/volumes`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Unique among the organisation's volumes: 1 to 63 lowercase letters, digits or dashes.
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: String,
    /// Size limit in MiB. Default: 10 GiB, or the size of `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::VOLUME_MIN_MB, max = cove_limits::VOLUME_MAX_MB))]
    pub size_mb: Option<u64>,
    /// Id or name of a volume to copy, in its current state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::REFERENCE_MAX))]
    pub from: Option<String>,
    /// With `from`: make the copy read-only for ever.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Which host it may be on, and so the sandboxes that mount it. A copy is on the host of `from`.
    #[serde(default, skip_serializing_if = "Placement::is_empty")]
    pub placement: Placement,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Volume {
    /// Id.
    pub id: String,
    /// Name, unique in the organisation.
    pub name: String,
    /// Size in MiB.
    pub size_mb: u64,
    /// Bytes in use, measured by the host up to a minute ago.
    pub used_bytes: u64,
    /// It cannot be written to.
    pub read_only: bool,
    /// The volume that it is a copy of, which may be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Ids of the sandboxes that mount it, running or not; at most 100. Only where one volume is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<Vec<String>>,
}

/// A volume at a place in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Id or name; the id in answers.
    #[schemars(length(min = 1, max = cove_limits::REFERENCE_MAX))]
    pub volume: String,
    /// Absolute path; created if it is missing.
    #[schemars(length(min = 2, max = cove_limits::VOLUME_PATH_MAX))]
    pub path: String,
    /// Mount it read-only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

impl From<cove_model::VolumeMount> for Mount {
    fn from(mount: cove_model::VolumeMount) -> Self {
        Self {
            volume: mount.volume.into(),
            path: mount.path,
            read_only: mount.read_only,
        }
    }
}
