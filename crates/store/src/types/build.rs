//! Rows of builds.

use cove_model::{BuildId, BuildState, OrgId, TemplateId};
use time::OffsetDateTime;

/// A build of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRecord {
    pub id: BuildId,
    pub org: OrgId,
    /// Of the template.
    pub name: String,
    pub state: BuildState,
    /// Why it failed.
    pub error: Option<String>,
    /// What it made.
    pub template: Option<TemplateId>,
    /// Steps that change files.
    pub steps: u64,
    /// Those of them that an earlier build had made.
    pub cached: u64,
    pub created_at: OffsetDateTime,
    /// Present once it is over.
    pub finished_at: Option<OffsetDateTime>,
}
