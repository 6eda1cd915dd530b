//! Approvals: requests with a secret that wait until a person agrees to them.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::id::{ApprovalId, SandboxId};
use crate::secret::SecretHost;
use crate::spec::SpecError;

pub use cove_limits::{
    APPROVAL_BODY_MAX, APPROVAL_FOR_MAX_S, APPROVAL_HOLD_DEFAULT_S, APPROVAL_HOLD_MAX_S,
    APPROVAL_KEPT_S, APPROVAL_METHOD_MAX, APPROVAL_PATH_MAX, APPROVALS_MAX, APPROVALS_PENDING_MAX,
    APPROVALS_WAITING_MAX,
};

/// One request that a sandbox asks to send with a secret, and what was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    pub id: ApprovalId,
    pub sandbox: SandboxId,
    /// The secret's name.
    pub secret: String,
    pub host: SecretHost,
    pub method: String,
    /// With the query.
    pub path: String,
    /// Absent where the request has no body that could be read to its end: then it cannot be approved once.
    pub body: Option<BodyDigest>,
    pub state: ApprovalState,
    /// Requests that are held for it now.
    pub waiting: u32,
    #[serde(with = "time::serde::rfc3339")]
    pub asked_at: OffsetDateTime,
    /// When it stops to be: nobody decided, or what was decided is over.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
}

/// A request's body, as the sandbox sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BodyDigest {
    pub sha256: [u8; 32],
    pub bytes: u32,
}

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    /// No decision yet.
    Pending,
    /// Exactly this request may be sent once.
    Once,
    /// All requests of the sandbox with the secret to the host may be sent until it expires.
    Timed,
    /// This request is refused until it expires.
    Denied,
}

impl ApprovalState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Once => "once",
            Self::Timed => "timed",
            Self::Denied => "denied",
        }
    }
}

/// What a person decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Once,
    /// For so many seconds.
    For(u32),
    Deny,
}

impl Decision {
    pub fn check(self) -> Result<(), SpecError> {
        match self {
            Self::For(seconds) if !(1..=APPROVAL_FOR_MAX_S).contains(&seconds) => {
                Err(SpecError::Field {
                    field: "for_seconds",
                    problem: format!("must be 1 to {APPROVAL_FOR_MAX_S}"),
                })
            }
            _ => Ok(()),
        }
    }
}
