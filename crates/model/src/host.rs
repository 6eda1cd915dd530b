//! What a host reports of its work and of itself.

use serde::{Deserialize, Serialize};

/// How far an image on its way is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Running,
    Done,
    Failed,
}

/// How much a finding of `cove doctor` matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Ok,
    /// Works, with less.
    Warning,
    /// Sandboxes cannot run.
    Error,
}
