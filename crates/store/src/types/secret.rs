//! Secrets and their uses.

use cove_model::secret::{BudgetScope, BudgetUnit, SecretBinding, SecretLimit};
use cove_model::{HostId, OrgId, SandboxId, SecretId};
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

/// What a host needs of a secret's budget.
#[derive(Debug, Clone)]
pub struct BudgetTaken {
    pub org: OrgId,
    pub secret: SecretId,
    pub host: HostId,
    pub of: BudgetUnit,
    /// For what this sandbox may use by itself; absent: for what sandboxes share.
    pub sandbox: Option<SandboxId>,
    /// Days since 1970.
    pub day: u32,
    pub need: u64,
    /// What it could use besides, ahead of need.
    pub more: u64,
    pub limits: Vec<SecretLimit>,
}

/// What a host may use from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetGiven {
    pub given: u64,
    /// Afterwards, of the limit that is the nearest.
    pub left: u64,
    /// That limit is one that renews with the day.
    pub renews: bool,
}

/// What a host was given and nobody used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetReturned {
    pub org: OrgId,
    /// The secret's name.
    pub secret: String,
    pub of: BudgetUnit,
    pub sandbox: Option<SandboxId>,
    /// When it was taken, days since 1970.
    pub day: u32,
    pub amount: u64,
}

/// What was used of a budget, with what hosts hold ahead of use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetSpent {
    pub secret: SecretId,
    pub of: BudgetUnit,
    pub per: BudgetScope,
    pub sandbox: Option<SandboxId>,
    pub used: u64,
}
