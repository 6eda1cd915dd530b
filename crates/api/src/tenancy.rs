//! Keys, organisations, usage and the audit trail on the wire.

use std::collections::{BTreeMap, BTreeSet};

pub use cove_model::Scope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Body of `POST /v1/keys`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// Name of the key.
    #[schemars(length(min = 1, max = cove_limits::TITLE_MAX))]
    pub name: String,
    /// Permissions of the key.
    #[schemars(length(min = 1, max = cove_limits::SCOPES_MAX))]
    pub scopes: Vec<Scope>,
    /// Seconds until it expires; absent: when it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub expires_in_s: Option<u64>,
    /// Organisation of the key, if it is another one; needs the scope `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::ID_OR_NAME_MAX))]
    pub org: Option<String>,
    /// Binds the key to this sandbox, by id or name: nothing else exists for it. Not with the scope `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::ID_OR_NAME_MAX))]
    pub sandbox: Option<String>,
}

/// An API key, without its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Key {
    /// Id.
    pub id: String,
    /// Id of the organisation.
    pub org: String,
    /// Name.
    pub name: String,
    /// Permissions of the key.
    pub scopes: Vec<Scope>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time when it expires; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Time when it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// Time of the last use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
    /// Whether it is the first key of the server.
    pub root: bool,
    /// Id of the sandbox that the key is bound to; absent: valid for the whole organisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
}

/// A new key. The token is shown only once; the server stores a hash of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewKey {
    #[serde(flatten)]
    pub key: Key,
    /// The token to authenticate with.
    pub token: String,
}

/// Limits of an organisation; absent fields have their default, or stay.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaRequest {
    /// Maximum number of sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = cove_limits::QUOTA_SANDBOXES_MAX))]
    pub sandboxes: Option<u64>,
    /// Maximum number of CPUs of all sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = cove_limits::QUOTA_CPU_MAX))]
    pub cpu: Option<f64>,
    /// Maximum memory of all sandboxes, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = cove_limits::QUOTA_MB_MAX))]
    pub memory_mb: Option<u64>,
    /// Maximum disk of all sandboxes, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = cove_limits::QUOTA_MB_MAX))]
    pub disk_mb: Option<u64>,
}

/// Amounts of the resources that a quota limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Amount {
    /// Number of sandboxes.
    pub sandboxes: u64,
    /// CPUs.
    pub cpu: f64,
    /// Memory in MiB.
    pub memory_mb: u64,
    /// Disk in MiB.
    pub disk_mb: u64,
}

/// Body of `POST /v1/orgs`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateOrg {
    /// Name, unique on the server.
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: String,
    /// Quota; absent fields have the server's default: of what the hosts can promise, half at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaRequest>,
}

/// Body of `PATCH /v1/orgs/{org}`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchOrg {
    /// New quota; absent fields stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaRequest>,
    /// Taints of nodes that its sandboxes may tolerate (`true`) or not any more (`false`). Others stay. Not together
    /// with `quota`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 2 * cove_limits::ORG_TOLERATIONS_MAX))]
    pub tolerations: BTreeMap<String, bool>,
}

/// An organisation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Org {
    /// Id.
    pub id: String,
    /// Name, unique on the server.
    pub name: String,
    /// Its quota.
    pub quota: Amount,
    /// Its current usage.
    pub used: Amount,
    /// Taints of nodes that its sandboxes may tolerate.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub tolerations: BTreeSet<String>,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// Query of `GET /v1/usage`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UsageQuery {
    /// Maximum number of items; default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::PAGE_MAX))]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::CURSOR_MAX))]
    pub cursor: Option<String>,
    /// Only this sandbox, over its whole life.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::ID_OR_NAME_MAX))]
    pub sandbox: Option<String>,
    /// Start of the period, in whole hours; absent: the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// End of the period (exclusive), in whole hours; absent: now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
}

/// Usage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsageFigures {
    /// CPU time in seconds.
    pub cpu_seconds: f64,
    /// Memory in GB times seconds.
    pub memory_gb_seconds: f64,
    /// Disk in GB times hours.
    pub disk_gb_hours: f64,
    /// Bytes sent over the network.
    pub egress_bytes: u64,
    /// Part of the time that is estimated from dates because the host was restarted. The rest is
    /// measured.
    #[serde(default)]
    pub estimated_seconds: f64,
}

/// Usage of one sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxUsage {
    /// Id of the sandbox.
    pub sandbox: String,
    #[serde(flatten)]
    pub figures: UsageFigures,
}

/// Answer of `GET /v1/usage`: the organisation's total, which includes the disk of its snapshots, and a
/// page of its sandboxes, deleted ones too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Usage of the organisation.
    pub total: UsageFigures,
    /// Usage of each sandbox.
    pub items: Vec<SandboxUsage>,
    /// Cursor of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One call that changes something: who, what, from where, and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditRecord {
    /// Number of the record in its chain.
    pub id: u64,
    /// Time of the call.
    pub at: Timestamp,
    /// Id of the key; absent when the system itself acted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Name of the operation, like `sandbox.create`.
    pub action: String,
    /// What the operation was applied to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Address that the call came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// `ok` or the code of the error; for calls into a sandbox also `pending`, `not_done` or
    /// `unknown`.
    pub result: String,
    /// Id of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// More about the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// SHA-256 of the previous record's hash and its own fields; absent in records that are older
    /// than the chain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
}

/// An organisation's chain of audit records: its beginning, its end, and whether it is intact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditChain {
    /// Id of the organisation.
    pub org: String,
    /// The id of the last record.
    pub sequence: u64,
    /// The hash of the last record. Store it elsewhere to detect that the whole chain was
    /// rewritten.
    pub hash: String,
    /// The id of the last record that retention has removed, or 0.
    pub anchor_sequence: u64,
    /// The hash of that record.
    pub anchor_hash: String,
    /// Records up to this id are older than the chain and have no hash.
    pub unchained: u64,
    /// Number of verified records; absent if the chain was not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<u64>,
    /// The first record that is missing or does not match the previous one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken_at: Option<u64>,
    /// The problem with that record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// One line of an export (`Accept: application/x-ndjson`): the chain, then its records, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AuditLine {
    /// The chain: the first line.
    Chain(AuditChain),
    /// A record.
    Record(AuditRecord),
}
