//! Rows of volumes: directories of an organisation that outlive sandboxes.

use cove_model::{HostId, OrgId, SandboxId, Steady, VolumeId};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::{Inserted, Moment};

/// How far a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// The host was asked, or is about to be.
    Making,
    /// On the host's disk.
    Ready,
    /// Somebody asked for its end.
    Deleting,
}

impl VolumeState {
    pub const ALL: [VolumeState; 3] = [Self::Making, Self::Ready, Self::Deleting];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Making => "making",
            Self::Ready => "ready",
            Self::Deleting => "deleting",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct VolumeRecord {
    pub id: VolumeId,
    pub org: OrgId,
    /// Whose pool has it.
    pub host: HostId,
    /// Unique among the organisation's volumes.
    pub name: String,
    pub state: VolumeState,
    /// Of the organisation's disk quota, whatever is in it.
    pub size_mb: u64,
    pub read_only: bool,
    /// The volume it began as a copy of; it may be gone by now.
    pub origin: Option<VolumeId>,
    /// As of the last look at the host.
    pub used_bytes: u64,
    pub created_at: OffsetDateTime,
    pub created_steady: Steady,
    /// The row stays for a while: what the host has of it is deleted only because of that.
    pub deleted_at: Option<OffsetDateTime>,
}

pub type VolumeCreated = Inserted<VolumeId>;

/// What became of a request to delete a volume.
#[derive(Debug, Clone, PartialEq)]
pub enum VolumeDoomed {
    Marked(VolumeRecord),
    InUse(Vec<VolumeUser>),
}

/// A sandbox that mounts a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeUser {
    pub id: SandboxId,
    pub name: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeRef<'a> {
    Id(&'a VolumeId),
    Name(&'a str),
}

/// What a volume takes on a disk at a moment; `None`: it is gone.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeSample {
    pub volume: VolumeId,
    pub org: OrgId,
    pub at: Moment,
    /// Before this, how much time passed is known from dates alone.
    pub exact_since: Steady,
    pub disk_bytes: Option<u64>,
}
