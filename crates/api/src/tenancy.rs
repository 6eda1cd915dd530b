//! Keys, organisations, usage and the audit trail on the wire.

pub use cove_model::Scope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Body of `POST /v1/keys`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    #[schemars(length(min = 1, max = cove_limits::TITLE_MAX))]
    pub name: String,
    #[schemars(length(min = 1, max = cove_limits::SCOPES_MAX))]
    pub scopes: Vec<Scope>,
    /// Absent: until revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub expires_in_s: Option<u64>,
    /// For another organisation; needs the scope `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::ID_OR_NAME_MAX))]
    pub org: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Key {
    pub id: String,
    pub org: String,
    pub name: String,
    pub scopes: Vec<Scope>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
    /// The key made at first start.
    pub root: bool,
}

/// A new key. The token is shown this once and kept only as a hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewKey {
    #[serde(flatten)]
    pub key: Key,
    pub token: String,
}

/// The most an organisation may hold at once; what is absent has its default, or stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = cove_limits::QUOTA_SANDBOXES_MAX))]
    pub sandboxes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = cove_limits::QUOTA_CPU_MAX))]
    pub cpu: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = cove_limits::QUOTA_MB_MAX))]
    pub memory_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = cove_limits::QUOTA_MB_MAX))]
    pub disk_mb: Option<u64>,
}

/// An amount of what a quota counts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Amount {
    pub sandboxes: u64,
    pub cpu: f64,
    pub memory_mb: u64,
    pub disk_mb: u64,
}

/// Body of `POST /v1/orgs`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateOrg {
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaRequest>,
}

/// Body of `PATCH /v1/orgs/{org}`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchOrg {
    pub quota: QuotaRequest,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Org {
    pub id: String,
    pub name: String,
    pub quota: Amount,
    pub used: Amount,
    pub created_at: Timestamp,
}

/// Query of `GET /v1/usage`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UsageQuery {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::PAGE_MAX))]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::CURSOR_MAX))]
    pub cursor: Option<String>,
    /// Only this sandbox, over its whole life.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::ID_OR_NAME_MAX))]
    pub sandbox: Option<String>,
    /// Begin of the period, to the hour; absent: the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// End of the period, to the hour, itself not in it; absent: now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
}

/// What was used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsageFigures {
    pub cpu_seconds: f64,
    pub memory_gb_seconds: f64,
    pub disk_gb_hours: f64,
    pub egress_bytes: u64,
    /// Time that was charged by the difference of dates, because the host was restarted meanwhile. The rest
    /// is measured.
    #[serde(default)]
    pub estimated_seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxUsage {
    pub sandbox: String,
    #[serde(flatten)]
    pub figures: UsageFigures,
}

/// Answer of `GET /v1/usage`: the organisation's total, which includes the disk of its snapshots, and a
/// page of its sandboxes, deleted ones too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    pub total: UsageFigures,
    pub items: Vec<SandboxUsage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One mutating call: who, what, from where, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditRecord {
    pub id: u64,
    pub at: Timestamp,
    /// Id of the key; absent when the system itself acted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub action: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// `ok` or the code of the error; of calls into a sandbox also `pending`, `not_done` or `unknown`.
    pub result: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// SHA-256 over the hash of the record before it and its own fields; absent in records from before
    /// there were chains.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
}

/// An organisation's chain of audit records: where it begins, where it ends, and whether it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditChain {
    pub org: String,
    /// The id of the last record.
    pub sequence: u64,
    /// The hash of the last record. Keep it elsewhere to notice when the whole chain is written anew.
    pub hash: String,
    /// The id of the last record that retention has removed, or 0.
    pub anchor_sequence: u64,
    pub anchor_hash: String,
    /// Records up to this id are from before there were chains and have no hash.
    pub unchained: u64,
    /// Records that hold together; absent where nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<u64>,
    /// The first record that is missing or does not follow from the one before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken_at: Option<u64>,
    /// What is wrong there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// One line of an export (`Accept: application/x-ndjson`): the chain, then its records, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AuditLine {
    Chain(AuditChain),
    Record(AuditRecord),
}
