//! Snapshots, forks, rollbacks and timelines on the wire.

use std::collections::BTreeMap;

pub use cove_model::{ObjectCopy, SnapshotKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lifecycle::LeaseRequest;
use crate::sandbox::{Sandbox, State};
use crate::{ErrorDetail, Timestamp};

/// Body of `POST …/snapshots`; optional.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TakeSnapshot {
    /// Unique among the organisation's snapshots: 1 to 63 lowercase letters, digits or dashes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: Option<String>,
    /// Include processes and memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Return only once object storage has it. Needs a server with object storage.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub durable: bool,
}

/// Body of `POST …/fork`; optional.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Fork {
    /// Number of copies; default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::FORKS_MAX))]
    pub count: Option<u32>,
    /// The copies continue the parent's processes; without, they boot from its disk.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Name of the copy; several are called `name-1`, `name-2` and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: Option<String>,
    /// Labels in addition to the parent's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = cove_limits::LABELS_MAX))]
    pub labels: BTreeMap<String, String>,
    /// Lease of each copy; absent: they have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseRequest>,
}

/// One copy of a fork, or why it could not be created.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Forked {
    /// A copy.
    Sandbox(Box<Sandbox>),
    /// Why the copy could not be created.
    Error(ErrorDetail),
}

/// Body of `POST …/rollback`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// Id or name.
    #[schemars(length(min = 1, max = cove_limits::REFERENCE_MAX))]
    pub snapshot: String,
    /// Restore its processes too; refused if it has no memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
}

/// Answer of a rollback.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RolledBack {
    /// The sandbox after the rollback.
    pub sandbox: Sandbox,
    /// Snapshot of the previous state; rolling back to it undoes the rollback.
    pub kept: Snapshot,
}

/// One state of a sandbox, with memory or without. It never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// Id.
    pub id: String,
    /// Name, unique in the organisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Id of its sandbox, which may be deleted; absent for an import.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The snapshot that the sandbox's state was based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Why it was taken.
    pub kind: SnapshotKind,
    /// It includes processes and memory.
    pub memory: bool,
    /// Id of its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Bytes that deleting it would free.
    pub exclusive_bytes: u64,
    /// Bytes that it shares with others.
    pub shared_bytes: u64,
    /// Bytes of its memory, part of `exclusive_bytes`.
    pub memory_bytes: u64,
    /// Microseconds for which the sandbox was suspended for it.
    pub stopped_us: u64,
    /// Why its memory cannot be restored on this host; absent if it can, or if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfit: Option<String>,
    /// For the state saved by a rollback: the snapshot that the sandbox was rolled back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back_to: Option<String>,
    /// Time of deletion; in timelines only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
    /// Volumes that its sandbox had. Their content is not in the snapshot; a fork mounts the same
    /// volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes_not_included: Vec<crate::volume::Mount>,
    /// Whether object storage has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_storage: Option<ObjectCopy>,
    /// Whether the host has it. If not, the next use fetches it from object storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_host: Option<bool>,
}

/// The tree of snapshots and forks of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Timeline {
    /// Id of the sandbox.
    pub sandbox: String,
    /// Name of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// State of the sandbox.
    pub state: State,
    /// Time of creation.
    pub created_at: Timestamp,
    /// The snapshot that it started from; absent if it started from an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<String>,
    /// The snapshot that its current state is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// Its snapshots and those that they are based on, oldest first; deleted ones too, while they
    /// are recorded.
    pub snapshots: Vec<Snapshot>,
    /// Sandboxes that started from one of its snapshots, oldest first.
    pub forks: Vec<TimelineFork>,
    /// There are more snapshots.
    pub truncated: bool,
}

/// A sandbox that was made from one of the snapshots.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct TimelineFork {
    /// Id of the sandbox.
    pub sandbox: String,
    /// Name of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// State of the sandbox.
    pub state: State,
    /// Id of the snapshot it was made from.
    pub from_snapshot: String,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// Query of `POST /v1/snapshots/import`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ImportSnapshot {
    /// Name, unique in the organisation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: Option<String>,
}

/// The result of an import.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Why the memory in the file was left out, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_refused: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_refused() {
        for body in [r#"{"mem":true}"#, r#"{"snapshot":"a","to":"b"}"#] {
            assert!(
                serde_json::from_str::<TakeSnapshot>(body).is_err(),
                "{body}"
            );
            assert!(serde_json::from_str::<Fork>(body).is_err(), "{body}");
            assert!(serde_json::from_str::<Rollback>(body).is_err(), "{body}");
        }
    }

    #[test]
    fn a_child_is_a_sandbox_or_an_error_by_name() {
        let error = Forked::Error(ErrorDetail {
            code: crate::ErrorCode::NoCapacity,
            message: "full".into(),
            hint: None,
            request_id: "req_1".into(),
            docs: String::new(),
        });
        let json = serde_json::to_value(error).unwrap();
        assert_eq!(json["error"]["code"], "no_capacity");
    }
}
