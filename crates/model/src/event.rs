//! What happened to a sandbox, in the order it happened.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::approval::ApprovalState;
use crate::clock::BootTime;
use crate::id::{ApprovalId, SandboxId, SnapshotId};
use crate::lifecycle::State;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Grows with each event of a host, over restarts of everything; readers resume from it.
    pub sequence: u64,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The same moment by the clock that nobody sets.
    #[serde(default)]
    pub boot_time: Option<BootTime>,
    pub sandbox: SandboxId,
    #[serde(flatten)]
    pub kind: EventKind,
    /// How a sandbox is, reported once more because earlier events may have been lost with the engine that
    /// had them. A reader that knows it already passes over this.
    #[serde(default)]
    pub restated: Option<Restated>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restated {
    /// The start it is running since; the event that reported it has this moment.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
}

/// The kind of the change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventKind {
    /// The state changed.
    State {
        /// The new state.
        state: State,
        /// Why, if it is not obvious.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The kernel killed processes because memory was exhausted.
    Oom {
        /// Number of processes that were killed.
        kills: u64,
        /// The limit in MiB.
        limit_mb: u64,
        /// The most memory in use, in MiB.
        peak_mb: u64,
    },
    /// Elastic memory grew.
    MemoryGrown {
        /// The limit before, in MiB.
        from_mb: u64,
        /// The limit now, in MiB.
        to_mb: u64,
    },
    /// The host's disk is nearly full: until there is room again, the disk limit is `limit_mb`.
    DiskHeld {
        /// The limit in MiB.
        limit_mb: u64,
    },
    /// There is room again, and the whole disk may be used.
    DiskReleased,
    /// Limits were changed by the owner.
    Resized,
    /// The network policy was changed by the owner.
    NetworkChanged,
    /// A running sandbox was taken over after the engine restarted.
    Adopted,
    /// A snapshot of it is on disk.
    Snapshotted {
        /// Id of the snapshot.
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        snapshot: SnapshotId,
        /// It includes processes and memory.
        memory: bool,
    },
    /// Its memory could not be captured; it kept running.
    CaptureFailed {
        /// Why.
        reason: String,
    },
    /// It was rolled back to `to`; the previous state is the snapshot `kept`.
    RolledBack {
        /// Id of the snapshot that it was rolled back to.
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        to: SnapshotId,
        /// Id of the snapshot of its state before.
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        kept: SnapshotId,
    },
    /// It sent a request with a secret that needs an approval.
    ApprovalRequested {
        /// Id of the approval.
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        approval: ApprovalId,
        /// Name of the secret.
        secret: String,
        /// Host, with its port if that is not 443.
        host: String,
        /// Method of the request.
        method: String,
        /// Path of the request, with the query.
        path: String,
    },
    /// A request with a secret was approved or denied.
    ApprovalDecided {
        /// Id of the approval.
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        approval: ApprovalId,
        /// The decision.
        decision: ApprovalState,
    },
}
