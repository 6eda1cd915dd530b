//! Rows of object storage: what of which snapshot is in the bucket, and what is to be deleted there.

use cove_model::{OrgId, SnapshotId};
use time::OffsetDateTime;

/// One try to bring a snapshot into object storage. A later one of the same snapshot takes over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadKey {
    pub snapshot: SnapshotId,
    pub org: OrgId,
    /// Random, of this try alone.
    pub token: String,
}

/// A chunk that an upload refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkWanted {
    pub digest: String,
    /// The end of its name, for one that nobody has registered yet.
    pub suffix: String,
    /// At most so many bytes in the bucket.
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkClaimed {
    pub suffix: String,
    pub stored: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkStored {
    pub digest: String,
    /// In the bucket.
    pub bytes: u64,
}

/// A snapshot in object storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRecord {
    pub snapshot: SnapshotId,
    pub org: OrgId,
    /// Name of the manifest in the bucket; none before all of it is there.
    pub manifest: Option<String>,
    /// Of the snapshot.
    pub bytes: u64,
    /// Written to the bucket for it: what was not there already.
    pub sent_bytes: u64,
    pub stored_at: Option<OffsetDateTime>,
}

/// How an upload ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectOutcome {
    pub manifest: String,
    pub manifest_bytes: u64,
    pub bytes: u64,
    pub sent_bytes: u64,
}

/// What object storage has, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObjectTotals {
    /// Snapshots.
    pub stored: u64,
    pub uploading: u64,
    /// In the bucket and used.
    pub bytes: u64,
    /// Names that are to be deleted from the bucket.
    pub condemned: u64,
}
