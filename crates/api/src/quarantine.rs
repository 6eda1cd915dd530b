//! What a host keeps and nobody can use: sandboxes, snapshots and volumes that the database does not know, and those
//! whose record on the host is damaged.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Kind of a quarantined resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuarantinedKind {
    Sandbox,
    Snapshot,
    Volume,
}

/// One sandbox, snapshot or volume in quarantine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Quarantined {
    /// Id of the sandbox, snapshot or volume.
    pub id: String,
    /// Its kind.
    pub kind: QuarantinedKind,
    /// Why it is in quarantine.
    pub reason: String,
    /// The state of a sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Its name, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Id of the organisation that owns it, if the database knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// The sandbox that a snapshot was taken of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// New owner of a quarantined resource.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdoptQuarantined {
    /// Id of an organisation; default: the caller's own. A resource that has an owner goes back to
    /// its owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
}
