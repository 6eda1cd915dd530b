//! Secrets and their uses.

use cove_model::secret::SecretBinding;
use cove_model::{OrgId, SandboxId, SecretId};
use time::OffsetDateTime;

/// A secret: what it is bound to, and its value as nobody but its organisation's terminator can read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRecord {
    pub id: SecretId,
    pub org: OrgId,
    pub name: String,
    /// Raised by one whenever the secret is set.
    pub version: u64,
    pub binding: SecretBinding,
    pub sealed: String,
    pub created_at: OffsetDateTime,
    /// When this version was set.
    pub updated_at: OffsetDateTime,
    pub last_used_at: Option<OffsetDateTime>,
    pub uses: u64,
}

/// How often a sandbox used a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretUsage {
    /// Its name.
    pub secret: String,
    pub sandbox: SandboxId,
    pub count: u64,
    pub last_used_at: OffsetDateTime,
}
