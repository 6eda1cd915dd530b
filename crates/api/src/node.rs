//! Nodes of a fleet: further hosts, whose sandboxes this server controls.

use std::collections::{BTreeMap, BTreeSet};

use cove_model::TraitsChange;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Whether a node answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It joined and has not answered yet.
    Joining,
    Ready,
    /// It does not answer.
    Away,
}

/// Capacity of a node and its commitments to sandboxes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCapacity {
    /// CPUs that may be promised, overcommitment included.
    pub cpu: f64,
    /// CPUs that are promised.
    pub promised_cpu: f64,
    /// Memory that may be promised, overcommitment included.
    pub memory_bytes: u64,
    /// Memory that is promised.
    pub promised_memory_bytes: u64,
    /// Disk that may be promised, overcommitment included.
    pub disk_bytes: u64,
    /// Disk that is promised.
    pub promised_disk_bytes: u64,
    /// Sandboxes on the node.
    pub sandboxes: u64,
    /// Running sandboxes.
    pub running: u64,
    /// Isolation tiers that can be used there.
    pub tiers: Vec<String>,
}

/// A node: a further host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Id of the host.
    pub id: String,
    /// Name of the node.
    pub name: String,
    /// Address at which the server reaches it.
    pub address: String,
    /// Whether it answers.
    pub state: NodeState,
    /// Why it does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Takes no new sandboxes.
    pub cordoned: bool,
    /// Failure domain that it is in; absent: none was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Labels that sandboxes can ask for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints: only sandboxes that tolerate all of them are placed there.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub taints: BTreeSet<String>,
    /// Time of the join.
    pub joined_at: Timestamp,
    /// Time when its certificate expires. The server renews it before that.
    pub certificate_expires_at: Timestamp,
    /// Time when it last answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
    /// Version of Cove on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Clock of the node minus clock of the server, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew_ms: Option<i64>,
    /// Capacity and commitments, as it last reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<NodeCapacity>,
}

/// Settings of a join token.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateJoinToken {
    /// Seconds until it expires; default: one hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_s: Option<u64>,
}

/// A token with which one host joins. Shown once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JoinToken {
    /// The token, for `cove node join`.
    pub token: String,
    /// Time when it expires.
    pub expires_at: Timestamp,
}

/// The request of `cove node join`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinNode {
    /// Id of the token.
    pub token: String,
    /// Id of the host.
    pub host: String,
    /// Name of the node.
    pub name: String,
    /// Host and port at which the server reaches the node.
    pub address: String,
    /// Public key of the node, hexadecimal.
    pub public_key: String,
    /// Failure domain that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::PLACEMENT_WORD_MAX))]
    pub zone: Option<String>,
    /// Labels that sandboxes can ask for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = cove_limits::HOST_LABELS_MAX))]
    pub labels: BTreeMap<String, String>,
    /// Taints: only sandboxes that tolerate all of them are placed there.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(length(max = cove_limits::HOST_TAINTS_MAX))]
    pub taints: BTreeSet<String>,
    /// Proof that the host has the token.
    pub proof: String,
}

/// Answer to a host that joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JoinedNode {
    /// Id of the fleet.
    pub fleet: String,
    /// Certificate of the fleet's authority, PEM.
    pub authority: String,
    /// Certificate of the node, PEM.
    pub certificate: String,
    /// Proof that the server made the token.
    pub proof: String,
}

/// Changes of a node; what is absent stays. `cordoned` is changed in a request of its own.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PatchNode {
    /// Whether it takes no new sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cordoned: Option<bool>,
    /// New zone; an empty text removes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = cove_limits::PLACEMENT_WORD_MAX))]
    pub zone: Option<String>,
    /// Labels to set; `null` removes one. Others stay.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 2 * cove_limits::HOST_LABELS_MAX))]
    pub labels: BTreeMap<String, Option<String>>,
    /// Taints to set (`true`) or to remove (`false`). Others stay. Sandboxes that are there stay too.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 2 * cove_limits::HOST_TAINTS_MAX))]
    pub taints: BTreeMap<String, bool>,
}

impl PatchNode {
    pub fn traits(&self) -> TraitsChange {
        TraitsChange {
            zone: self.zone.clone(),
            labels: self.labels.clone(),
            taints: self.taints.clone(),
        }
    }
}

/// Query of `DELETE /v1/nodes/{node}`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeleteNode {
    /// The node does not answer and never will: its sandboxes, volumes, and snapshots that are not durable are given
    /// up. Durable snapshots go to another host.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
}
