//! Creating, finding, changing and deleting sandboxes.
//!
//! What the owner wants is written down first, then the host is asked, then what it answered is
//! written down. Each sandbox has one change at a time in this process.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use cove_model::{
    HostId, IdlePolicy, ImageId, NetworkPolicy, OrgId, Resources, ResourcesPatch, SandboxId,
    SandboxSpec, SnapshotId, State, Steady,
};
use cove_runner_api::FromSnapshot;
use cove_runner_api::SandboxView;
use cove_store::{
    Desired, Holding, HostFacts, Page, PageRequest, SandboxChange, SandboxFilter, SandboxRecord,
    SandboxRef, Scope,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;
use crate::{Control, Sample};

mod create;
mod delete;
mod rest;
mod turn;
mod update;

pub(crate) use create::RETRACTED;
pub(crate) use create::{claim, key_reused};
pub(crate) use rest::{Wakes, require_auto_resume};
pub(crate) use turn::{LOOK_EVERY, still_busy};
pub(crate) use update::LOST;

/// A sandbox as its owner sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sandbox {
    pub id: SandboxId,
    pub org: OrgId,
    /// Where it is.
    pub host: HostId,
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
    /// Absent unless it is stopped or has failed.
    #[serde(with = "time::serde::rfc3339::option")]
    pub stopped_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub last_active_at: OffsetDateTime,
    /// Creation and last use on the axis of time that passed.
    pub created_steady: Steady,
    pub active_steady: Steady,
    pub generation: u64,
    /// The snapshot it began from, when it did not begin from an image.
    pub origin: Option<SnapshotId>,
    /// The snapshot its present state grew from.
    pub head: Option<SnapshotId>,
}

impl From<SandboxRecord> for Sandbox {
    fn from(record: SandboxRecord) -> Self {
        Self {
            limits: record
                .facts
                .limits
                .unwrap_or_else(|| record.spec.resources.clone()),
            id: record.id,
            org: record.org,
            host: record.host,
            state: record.state,
            reason: record.reason,
            spec: record.spec,
            image: record.facts.image,
            created_at: record.created_at,
            updated_at: record.updated_at,
            started_at: record.started_at,
            stopped_at: record.stopped_at,
            last_active_at: record.last_active_at,
            created_steady: record.created_steady,
            active_steady: record.active_steady,
            generation: record.generation,
            origin: record.origin,
            head: record.head,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct CreateSandbox {
    pub spec: SandboxSpec,
    /// Two creates with the same key within a day are one.
    pub idempotency_key: Option<String>,
    /// The request as its caller wrote it, where that names what may mean something else later, such as a template
    /// by a tag. A repeat is known by it then, and not by what the names stand for now.
    pub asked: Option<String>,
    /// Begin from this instead of the image, which is then not looked at. See [`Control::base`].
    pub from: Option<FromSnapshot>,
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
    /// Replaces the whole policy.
    pub network: Option<NetworkPolicy>,
    /// Replaces all variables that were given to it. Processes that run keep theirs.
    pub env: Option<BTreeMap<String, String>>,
    /// Refuse with `stale` when the sandbox has changed since this generation.
    pub expected_generation: Option<u64>,
}

fn facts(view: &SandboxView, wanted: &Resources) -> HostFacts {
    HostFacts {
        image: Some(view.image.clone()),
        image_env: view.image_env.clone(),
        image_user: view.image_user.clone(),
        image_workdir: view.image_workdir.clone(),
        limits: (view.limits != *wanted).then(|| view.limits.clone()),
        placeholders: view.placeholders.clone(),
    }
}

/// What a sandbox in this state holds of its organisation's quota.
pub(crate) fn holding(state: State, resources: &Resources) -> Holding {
    match state {
        State::Creating
        | State::Running
        | State::Frozen
        | State::Pausing
        | State::Resuming
        | State::Restoring
        | State::Stopping
        | State::Deleting => Holding::running(resources),
        State::Paused | State::Stopped | State::Failed => Holding::stopped(resources),
        State::Gone => Holding::nothing(),
    }
}

/// The row after the host said how it is.
pub(crate) fn observed(view: &SandboxView, record: &SandboxRecord) -> SandboxChange {
    SandboxChange {
        state: Some(view.state),
        reason: Some(view.reason.clone()),
        facts: Some(facts(view, &record.spec.resources)),
        holds: Some(holding(view.state, &record.spec.resources)),
        started_at: Some(view.started_at),
        ..SandboxChange::default()
    }
}

impl Control {
    /// The caller's own sandbox, by id or name. Another organisation's gives the same answer after
    /// the same work as one that never was.
    pub(crate) async fn find(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<SandboxRecord, ControlError> {
        let id: Option<SandboxId> = which.parse().ok();
        let reference = id.as_ref().map_or(SandboxRef::Name(which), SandboxRef::Id);
        let found = self.store().sandbox(&principal.org, reference).await?;
        let found = found.filter(|record| principal.sees(&record.id));
        found.ok_or_else(|| ControlError::not_found("sandbox", which))
    }

    /// The row as it is now, for whoever holds its lock.
    async fn reread(
        &self,
        old: &SandboxRecord,
        which: &str,
    ) -> Result<SandboxRecord, ControlError> {
        let found = self
            .store()
            .sandbox(&old.org, SandboxRef::Id(&old.id))
            .await?;
        found.ok_or_else(|| ControlError::not_found("sandbox", which))
    }

    /// Needs `manage`. Answers when PID 1 does.
    #[boxed]
    pub async fn create_sandbox(
        &self,
        principal: &Principal,
        request: CreateSandbox,
    ) -> Result<Created, ControlError> {
        self.create_sandbox_as(principal, SandboxId::random(), request)
            .await
    }

    /// Needs `manage`. The same under an id that its caller knows already; nobody may have had it before.
    #[boxed]
    pub async fn create_sandbox_as(
        &self,
        principal: &Principal,
        id: SandboxId,
        request: CreateSandbox,
    ) -> Result<Created, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let created = control.create_audited(&principal, id, request).await?;
            control.expect_end_of(&created.sandbox);
            control.expect_rest_of_shown(&created.sandbox);
            Ok(created)
        })
        .await
    }

    /// Needs `read`. By id or by name, as everywhere below.
    #[boxed]
    pub async fn get_sandbox(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Sandbox, ControlError> {
        principal.require(Scope::Read)?;
        Ok(self.shown(self.find(principal, which).await?))
    }

    /// A sandbox whose node does not answer says so.
    fn shown(&self, record: SandboxRecord) -> Sandbox {
        let mut sandbox = Sandbox::from(record);
        let host = self.0.hosts.get(&sandbox.host);
        if let Some(away) = host.and_then(|host| host.away()) {
            sandbox.reason = Some(away);
        }
        sandbox
    }

    /// Needs `read`. Newest first.
    #[boxed]
    pub async fn list_sandboxes(
        &self,
        principal: &Principal,
        filter: &SandboxFilter,
        page: &PageRequest,
    ) -> Result<Page<Sandbox>, ControlError> {
        principal.require(Scope::Read)?;
        if let Some(bound) = &principal.sandbox {
            return self.list_bound(principal, bound, filter, page).await;
        }
        let found = self.store().sandboxes(&principal.org, filter, page).await?;
        Ok(found.map(|record| self.shown(record)))
    }

    /// The list for a key that is bound to one sandbox.
    async fn list_bound(
        &self,
        principal: &Principal,
        bound: &SandboxId,
        filter: &SandboxFilter,
        page: &PageRequest,
    ) -> Result<Page<Sandbox>, ControlError> {
        let found = self
            .store()
            .sandbox(&principal.org, SandboxRef::Id(bound))
            .await?;
        let fits = |record: &SandboxRecord| {
            let labels = &record.spec.labels;
            (filter.states.is_empty() || filter.states.contains(&record.state))
                && filter
                    .name
                    .as_ref()
                    .is_none_or(|name| record.spec.name.as_ref() == Some(name))
                && filter
                    .labels
                    .iter()
                    .all(|(label, value)| labels.get(label) == Some(value))
        };
        // One page holds all there is, so no cursor is ever given out.
        let found = found.filter(|record| page.cursor.is_none() && fits(record));
        Ok(Page {
            items: found.into_iter().map(Into::into).collect(),
            next_cursor: None,
        })
    }

    /// Needs `manage`.
    #[boxed]
    pub async fn update_sandbox(
        &self,
        principal: &Principal,
        which: &str,
        patch: SandboxPatch,
    ) -> Result<Sandbox, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = control.update(&principal, &which, patch).await;
            if let Ok(sandbox) = &outcome {
                control.expect_end_of(sandbox);
                control.expect_rest_of_shown(sandbox);
            }
            let operation = Operation::new("sandbox.update", named(&which, &outcome));
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `manage`. Returns when nothing of it is left on the host.
    #[boxed]
    pub async fn delete_sandbox(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move { control.delete_audited(&principal, &which, None).await })
            .await
    }

    /// Needs `manage`. The same, only if this holder has its lease.
    #[boxed]
    pub async fn delete_held(
        &self,
        principal: &Principal,
        which: &str,
        holder: String,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let holder = Some(holder.as_str());
            control.delete_audited(&principal, &which, holder).await
        })
        .await
    }

    /// Needs `use`. Starting one that runs is done already; one that is frozen or paused is resumed.
    #[boxed]
    pub async fn start_sandbox(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Sandbox, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = control.start(&principal, &which).await;
            let operation = Operation::new("sandbox.start", named(&which, &outcome));
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `manage`. `grace_ms` absent: the configured one. Stopping one that is stopped is done
    /// already.
    #[boxed]
    pub async fn stop_sandbox(
        &self,
        principal: &Principal,
        which: &str,
        grace_ms: Option<u64>,
    ) -> Result<Sandbox, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = control.stop(&principal, &which, grace_ms).await;
            let operation = Operation::new("sandbox.stop", named(&which, &outcome));
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `read`. Figures from the host itself, now.
    #[boxed]
    pub async fn sample_sandbox(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Sample, ControlError> {
        principal.require(Scope::Read)?;
        let record = self.find(principal, which).await?;
        Ok(self.runner(&record.host).await?.sample(&record.id).await?)
    }
}

/// The id where it is known, else what the caller said.
fn named(which: &str, outcome: &Result<Sandbox, ControlError>) -> String {
    match outcome {
        Ok(sandbox) => sandbox.id.to_string(),
        Err(_) => which.to_owned(),
    }
}

pub(crate) fn being_deleted() -> ControlError {
    ControlError::new(ErrorCode::Conflict, "the sandbox is being deleted")
}

/// Whether the owner has asked for its end.
pub(crate) fn is_doomed(record: &SandboxRecord) -> bool {
    record.desired == Desired::Deleted
}
