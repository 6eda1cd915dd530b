//! Events on the wire, one per server-sent message; its `id` is where to resume.

pub use cove_model::EventKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// An event of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Increases; pass the last one as `Last-Event-ID` to continue after it.
    pub id: u64,
    /// Time of the event.
    pub at: Timestamp,
    /// Id of the sandbox.
    pub sandbox: String,
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Query of the event streams.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EventsQuery {
    /// Start after this event; the header `Last-Event-ID` does the same and has precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Wait for new events. Without it, the answer is a list of the kept events.
    pub follow: bool,
}
