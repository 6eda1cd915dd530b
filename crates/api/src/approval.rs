//! Approvals: requests with a secret that wait until a person agrees to them.

pub use cove_model::approval::ApprovalState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// A request that a sandbox asks to send with a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Approval {
    /// Id.
    pub id: String,
    /// Id of the sandbox.
    pub sandbox: String,
    /// Name of the secret.
    pub secret: String,
    /// Host, with its port if that is not 443.
    pub host: String,
    /// Method of the request.
    pub method: String,
    /// Path of the request, with the query.
    pub path: String,
    /// SHA-256 of the body, in hexadecimal digits. Absent if the body was not read: then the request cannot be approved once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_sha256: Option<String>,
    /// Bytes of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<u32>,
    /// The decision.
    pub state: ApprovalState,
    /// Requests that are held for it now.
    pub waiting: u32,
    /// Time of the first such request.
    pub asked_at: Timestamp,
    /// Time at which it is removed, with its decision.
    pub expires_at: Timestamp,
}

/// Body of `POST /v1/approvals/{approval}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideApproval {
    /// The decision.
    pub decision: ApprovalDecision,
    /// Approve all requests of the sandbox with the secret to the host for so many seconds. Default: exactly this request, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::APPROVAL_FOR_MAX_S))]
    pub for_seconds: Option<u32>,
}

/// A decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalDecision {
    /// The request may be sent.
    Approve,
    /// The request is refused; an earlier approval is revoked.
    Deny,
}
