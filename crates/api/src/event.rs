//! Events on the wire, one per server-sent message; its `id` is where to resume.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::sandbox::SandboxState;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Grows; pass the last one seen as `Last-Event-ID` to go on after it.
    pub id: u64,
    pub at: Timestamp,
    pub sandbox: String,
    #[serde(flatten)]
    pub kind: EventKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventKind {
    /// The lifecycle moved.
    State {
        state: SandboxState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The kernel killed for memory.
    Oom {
        kills: u64,
        limit_mb: u64,
        peak_mb: u64,
    },
    MemoryGrown {
        from_mb: u64,
        to_mb: u64,
    },
    /// The host's disk is nearly full: until there is room again only `limit_mb` may be used.
    DiskHeld {
        limit_mb: u64,
    },
    /// There is room again, and the whole disk may be used.
    DiskReleased,
    /// The network policy was changed by the owner.
    NetworkChanged,
    Resized,
    /// Found running after a restart, and taken over.
    Adopted,
    /// A snapshot of it is on disk.
    Snapshotted {
        snapshot: String,
        memory: bool,
    },
    /// Its memory could not be captured; it went on as it was.
    CaptureFailed {
        reason: String,
    },
    /// It was put back to `to`; what it was before is kept as `kept`.
    RolledBack {
        to: String,
        kept: String,
    },
}

/// Query of the event streams.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EventsQuery {
    /// Begin after this event; the header `Last-Event-ID` does the same and wins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Wait for more. Without it, what is there now as one list.
    pub follow: bool,
}
