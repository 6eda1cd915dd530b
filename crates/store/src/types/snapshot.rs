//! Rows of snapshots: what was kept of which sandbox, and what it grew from.

use cove_model::{
    HostId, ImageId, ObjectCopy, OrgId, SandboxId, SandboxSpec, SnapshotId, SnapshotKind, Steady,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::Inserted;

/// Snapshots of one host, which its engine does not exceed, and those that every organisation may have of them.
pub const SNAPSHOTS_OF_HOST: u64 = 100_000;
pub const SNAPSHOTS_ALWAYS: u64 = 1_000;

/// How far a snapshot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotState {
    /// The host was asked, or is about to be.
    Making,
    /// On the host's disk.
    Ready,
    /// Somebody asked for its end.
    Deleting,
}

impl SnapshotState {
    pub const ALL: [SnapshotState; 3] = [Self::Making, Self::Ready, Self::Deleting];

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
pub struct SnapshotRecord {
    pub id: SnapshotId,
    pub org: OrgId,
    /// Whose pool has it.
    pub host: HostId,
    /// Unique among the organisation's snapshots.
    pub name: Option<String>,
    /// Where it was taken; absent for what was imported.
    pub sandbox: Option<SandboxId>,
    /// What the sandbox's state had grown from; it may be gone by now.
    pub parent: Option<SnapshotId>,
    pub kind: SnapshotKind,
    pub state: SnapshotState,
    pub memory: bool,
    /// The settings when it was taken.
    pub spec: SandboxSpec,
    /// Where the sandbox went instead, for what a rollback kept.
    pub rolled_back_to: Option<SnapshotId>,
    pub facts: SnapshotFacts,
    /// MiB of the organisation's disk quota.
    pub held_disk_mb: u64,
    pub created_at: OffsetDateTime,
    pub created_steady: Steady,
    /// The row stays for a while, so that the tree it was part of keeps its shape.
    pub deleted_at: Option<OffsetDateTime>,
    pub object_copy: ObjectCopy,
    /// The host has it; false only for one that object storage has.
    pub on_host: bool,
}

/// What the host reported of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SnapshotFacts {
    pub image: Option<ImageId>,
    pub exclusive_bytes: u64,
    pub shared_bytes: u64,
    pub memory_bytes: u64,
    pub stopped_us: u64,
    /// Why its memory cannot be restored on this host, when it has some and it cannot.
    pub unfit: Option<String>,
}

/// A change of a snapshot's row; what is absent stays.
#[derive(Debug, Clone, Default)]
pub struct SnapshotChange {
    /// Applied only while the row names this host; refused with [`StoreError::Stale`](crate::StoreError::Stale)
    /// otherwise.
    pub only_on: Option<HostId>,
    /// Applied only while object storage has so much of it; refused likewise.
    pub only_copy: Option<ObjectCopy>,
    /// This host fetches it from object storage when it is used next. Refused with
    /// [`StoreError::Stale`](crate::StoreError::Stale) for one that object storage does not have.
    pub host: Option<HostId>,
    pub state: Option<SnapshotState>,
    pub parent: Option<Option<SnapshotId>>,
    pub memory: Option<bool>,
    pub spec: Option<SandboxSpec>,
    pub rolled_back_to: Option<Option<SnapshotId>>,
    pub facts: Option<SnapshotFacts>,
    /// What is on a disk is there, so this is written down also above the quota.
    pub held_disk_mb: Option<u64>,
    pub on_host: Option<bool>,
    /// The row becomes a tombstone: its name is free again and no list shows it.
    pub deleted_at: Option<OffsetDateTime>,
}

pub type SnapshotCreated = Inserted<SnapshotId>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotRef<'a> {
    Id(&'a SnapshotId),
    Name(&'a str),
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct SnapshotFilter {
    /// Taken of this one.
    pub sandbox: Option<SandboxId>,
    /// Of any of these kinds; empty: of all.
    pub kinds: Vec<SnapshotKind>,
    /// Also those that are gone, as far as they are remembered.
    pub gone_too: bool,
}
