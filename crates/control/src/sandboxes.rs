//! Creating, finding, changing and deleting sandboxes.
//!
//! What the owner wants is written down first, then the host is asked, then what it answered is
//! written down. Each sandbox has one change at a time in this process.

use std::collections::BTreeMap;

use cove_model::{
    IdlePolicy, ImageId, OrgId, Resources, ResourcesPatch, SandboxId, SandboxSpec, State,
};
use cove_store::{Page, PageRequest, SandboxFilter};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::error::ControlError;
use crate::principal::Principal;
use crate::{Control, Sample};

/// A sandbox as its owner sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sandbox {
    pub id: SandboxId,
    pub org: OrgId,
    pub state: State,
    /// Why it is in this state, when that is not plain.
    pub reason: Option<String>,
    /// As asked for, with later changes; name and labels in it are the current ones.
    pub spec: SandboxSpec,
    /// In force now; elastic memory may have grown above the spec's.
    pub limits: Resources,
    /// Absent until the host has looked it up.
    pub image: Option<ImageId>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub last_active_at: OffsetDateTime,
    pub generation: u64,
}

#[derive(Debug, Clone, Default)]
pub struct CreateSandbox {
    pub spec: SandboxSpec,
    /// Two creates with the same key within a day are one.
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Created {
    pub sandbox: Sandbox,
    /// An earlier request with the same idempotency key made it.
    pub replayed: bool,
}

/// A change; what is absent stays.
#[derive(Debug, Clone, Default)]
pub struct SandboxPatch {
    /// `Some(None)` takes the name away.
    pub name: Option<Option<String>>,
    /// Replaces all labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Replaces the whole policy.
    pub lifecycle: Option<IdlePolicy>,
    pub resources: Option<ResourcesPatch>,
    /// Refuse with `stale` when the sandbox has changed since this generation.
    pub expected_generation: Option<u64>,
}

impl Control {
    /// Needs `manage`. Answers when PID 1 does.
    pub async fn create_sandbox(
        &self,
        principal: &Principal,
        request: CreateSandbox,
    ) -> Result<Created, ControlError> {
        let _ = (principal, request);
        todo!()
    }

    /// Needs `read`. By id or by name, as everywhere below.
    pub async fn get_sandbox(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Sandbox, ControlError> {
        let _ = (principal, which);
        todo!()
    }

    /// Needs `read`. Newest first.
    pub async fn list_sandboxes(
        &self,
        principal: &Principal,
        filter: &SandboxFilter,
        page: &PageRequest,
    ) -> Result<Page<Sandbox>, ControlError> {
        let _ = (principal, filter, page);
        todo!()
    }

    /// Needs `manage`.
    pub async fn update_sandbox(
        &self,
        principal: &Principal,
        which: &str,
        patch: SandboxPatch,
    ) -> Result<Sandbox, ControlError> {
        let _ = (principal, which, patch);
        todo!()
    }

    /// Needs `manage`. Returns when nothing of it is left on the host.
    pub async fn delete_sandbox(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        let _ = (principal, which);
        todo!()
    }

    /// Needs `use`. Starting one that runs is done already.
    pub async fn start_sandbox(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Sandbox, ControlError> {
        let _ = (principal, which);
        todo!()
    }

    /// Needs `manage`. `grace_ms` absent: the configured one. Stopping one that is stopped is done
    /// already.
    pub async fn stop_sandbox(
        &self,
        principal: &Principal,
        which: &str,
        grace_ms: Option<u64>,
    ) -> Result<Sandbox, ControlError> {
        let _ = (principal, which, grace_ms);
        todo!()
    }

    /// Needs `read`. Figures from the host's own books, now.
    pub async fn sample_sandbox(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Sample, ControlError> {
        let _ = (principal, which);
        todo!()
    }
}
