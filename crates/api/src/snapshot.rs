//! Snapshots, forks, rollbacks and timelines on the wire.

use std::collections::BTreeMap;

pub use cove_model::{ObjectCopy, SnapshotKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lifecycle::LeaseRequest;
use crate::sandbox::{Sandbox, State};
use crate::{ErrorDetail, Timestamp};

/// Body of `POST …/snapshots`; may be left out.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TakeSnapshot {
    /// Unique among the organisation's snapshots: 1 to 63 lowercase letters, digits or dashes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: Option<String>,
    /// Processes and memory too, not only the disk.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Answer only once object storage has it. Needs a server with object storage.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub durable: bool,
}

/// Body of `POST …/fork`; may be left out.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Fork {
    /// Children; default: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::FORKS_MAX))]
    pub count: Option<u32>,
    /// The children go on with the parent's processes; without, they boot from its disk.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Of the only child; several are called `name-1`, `name-2` and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: Option<String>,
    /// Added to the parent's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = cove_limits::LABELS_MAX))]
    pub labels: BTreeMap<String, String>,
    /// Lease of each child; absent: they have none, whatever the parent has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseRequest>,
}

/// One child of a fork, or why there is none.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Forked {
    /// A copy.
    Sandbox(Box<Sandbox>),
    /// Why a copy could not be made.
    Error(ErrorDetail),
}

/// Body of `POST …/rollback`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// Id or name.
    #[schemars(length(min = 1, max = cove_limits::REFERENCE_MAX))]
    pub snapshot: String,
    /// Bring its processes back too; refused when it has no memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
}

/// Answer of a rollback.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RolledBack {
    /// The sandbox after the rollback.
    pub sandbox: Sandbox,
    /// What it was before; rolling back to this undoes the rollback.
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
    /// Where it was taken; absent for an import. That sandbox may be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The snapshot the sandbox's state had grown from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Why it was taken.
    pub kind: SnapshotKind,
    /// It includes processes and memory.
    pub memory: bool,
    /// The image below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// What deleting it would free.
    pub exclusive_bytes: u64,
    /// What it shares with others.
    pub shared_bytes: u64,
    /// Of its memory, part of `exclusive_bytes`.
    pub memory_bytes: u64,
    /// How long the sandbox stood still for it.
    pub stopped_us: u64,
    /// Why its memory cannot be restored on this host, when it has some and it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfit: Option<String>,
    /// Where the sandbox went instead, for what a rollback kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back_to: Option<String>,
    /// In timelines only: it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
    /// Volumes that its sandbox had. What is in them is not in the snapshot; a fork mounts the same volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes_not_included: Vec<crate::volume::Mount>,
    /// Whether object storage has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_storage: Option<ObjectCopy>,
    /// The host has it. If not, the next use fetches it from object storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_host: Option<bool>,
}

/// The tree a sandbox is part of.
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
    /// The snapshot it began from, when it did not begin from an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<String>,
    /// The snapshot its present state grew from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// Its own and those it grew from, oldest first; those that are gone too, as long as they are
    /// remembered.
    pub snapshots: Vec<Snapshot>,
    /// Sandboxes that began from one of its snapshots, oldest first.
    pub forks: Vec<TimelineFork>,
    /// There are more snapshots than these.
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

/// What came of an import.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Why the memory in the file was left out, when it was.
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
