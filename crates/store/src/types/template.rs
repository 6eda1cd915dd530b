//! Rows of templates: named, versioned starting points of sandboxes.

use cove_model::{OrgId, SandboxSpec, SnapshotId, Steady, TemplateId};
use time::OffsetDateTime;

use super::Inserted;

/// One version. Nothing of it changes but its tags.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateRecord {
    pub id: TemplateId,
    pub org: OrgId,
    pub name: String,
    /// Counts from 1 for each name.
    pub version: u64,
    /// What sandboxes begin from. It cannot be deleted while this row is there.
    pub snapshot: SnapshotId,
    /// Go on with the snapshot's processes.
    pub memory: bool,
    /// What a sandbox is like where its maker does not say.
    pub spec: SandboxSpec,
    /// In the order of the alphabet.
    pub tags: Vec<String>,
    pub created_at: OffsetDateTime,
    /// Its snapshot is gone although nobody deleted it: the host has lost it.
    pub lost: bool,
    /// What an image that was built says of itself, as JSON.
    pub config: Option<String>,
}

/// What a new version is made of; its number comes from the database.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTemplate {
    pub id: TemplateId,
    pub org: OrgId,
    pub name: String,
    pub snapshot: SnapshotId,
    pub memory: bool,
    pub spec: SandboxSpec,
    pub tags: Vec<String>,
    pub config: Option<String>,
    pub created_at: OffsetDateTime,
    pub created_steady: Steady,
}

pub type TemplateCreated = Inserted<TemplateId>;

/// Which versions to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatesDoomed {
    Version(TemplateId),
    /// The only version of a name.
    Only(String),
    /// All versions of a name.
    All(String),
}

/// What there is of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateHint {
    pub newest: u64,
    /// Some of them, in the order of the alphabet.
    pub tags: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateKey {
    Id(TemplateId),
    Version(String, u64),
    Tag(String, String),
}
