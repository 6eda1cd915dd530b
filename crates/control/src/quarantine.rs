//! What the host has and the database does not know, and what the host cannot use.
//!
//! Absence of a row never deletes: the database may be an older copy of itself, or another one. A sandbox
//! without a row is frozen, a snapshot without one is left alone, and both wait for an operator to adopt
//! them into an organisation or to delete them. Deletion by reconcile needs a tombstone, the row of
//! something that somebody deleted. What the host has set aside (a damaged record) is listed too; one that
//! has a row is put back into service with what the row says.

use std::collections::HashSet;

use cove_model::{OrgId, SandboxId, SandboxSpec, SnapshotId, State};
use cove_runner::{
    Finding, Level, Reinstate, RunnerError, SandboxOwner, SandboxView, SnapshotView,
};
use cove_store::{
    Created, Desired, HostFacts, PAGE_MAX, PageRequest, SandboxChange, SandboxRecord,
    SnapshotFacts, SnapshotKind, SnapshotRecord, SnapshotState, StoreError,
};
use time::OffsetDateTime;

use crate::Control;
use crate::audit::Deed;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;
use crate::sandboxes::{holding, observed};

/// Entries that `cove doctor` names.
const FINDING_MAX: usize = 5;
/// Milliseconds an unknown sandbox gets to stop where it cannot be frozen.
const STOP_GRACE_MS: u64 = cove_limits::STOP_GRACE_DEFAULT_MS;

/// Something that is kept and that nobody can use.
#[derive(Debug, Clone, PartialEq)]
pub struct Quarantined {
    pub id: QuarantinedId,
    /// Whose it is, when there is a row.
    pub org: Option<OrgId>,
    /// Of a sandbox.
    pub state: Option<State>,
    /// The sandbox a snapshot was taken of.
    pub of: Option<SandboxId>,
    pub name: Option<String>,
    pub reason: String,
    pub created_at: OffsetDateTime,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuarantinedId {
    Sandbox(SandboxId),
    Snapshot(SnapshotId),
}

impl QuarantinedId {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Sandbox(id) => id.as_str(),
            Self::Snapshot(id) => id.as_str(),
        }
    }

    fn parse(text: &str) -> Result<Self, ControlError> {
        let sandbox = text.parse().map(Self::Sandbox).ok();
        sandbox
            .or_else(|| text.parse().map(Self::Snapshot).ok())
            .ok_or_else(|| not_here(text))
    }
}

const UNKNOWN: &str = "the database does not know it";

fn not_here(which: &str) -> ControlError {
    ControlError::not_found("quarantined sandbox or snapshot", which)
        .hint("see `cove quarantine ls`")
}

fn is_known(which: &str) -> ControlError {
    ControlError::new(
        ErrorCode::Conflict,
        format!("'{which}' is not in quarantine: it belongs to an organisation"),
    )
}

impl Control {
    /// Stops a sandbox nobody has a row for where it is, and keeps it.
    pub(crate) async fn quarantine(&self, id: &SandboxId) -> Result<(), ControlError> {
        let view = match self.runner().get(id).await {
            Ok(view) => view,
            Err(RunnerError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if view.state != State::Running {
            return Ok(());
        }
        tracing::warn!(sandbox = %id, "the database does not know this sandbox; it is frozen and kept");
        let held = match self.runner().freeze(id).await {
            Err(RunnerError::Unsupported { .. }) => self.runner().stop(id, STOP_GRACE_MS).await,
            held => held,
        };
        match held {
            // It ended by itself meanwhile, or is being made to.
            Ok(_) | Err(RunnerError::NotFound { .. } | RunnerError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Operators only.
    pub async fn list_quarantine(
        &self,
        principal: &Principal,
    ) -> Result<Vec<Quarantined>, ControlError> {
        principal.require_operator()?;
        self.quarantined().await
    }

    pub(crate) async fn quarantined(&self) -> Result<Vec<Quarantined>, ControlError> {
        // The host first, as in a reconcile.
        let views = self.runner().list().await?;
        let snapshots = self.snapshots_on_host().await?;
        let mut found = Vec::new();
        if !views.is_empty() {
            let known = self.known_sandboxes().await?;
            for view in views {
                let is_known = known.contains(&view.id);
                if is_known && !view.set_aside {
                    continue;
                }
                let row = self.store().any_sandbox(&view.id).await?;
                // A tombstone: the host is about to be told.
                if row.as_ref().is_some_and(|row| row.deleted_at.is_some()) {
                    continue;
                }
                found.push(sandbox_entry(view, row));
            }
        }
        let unknown = self.unknown_snapshots(&snapshots).await?;
        for (id, view) in snapshots {
            let is_unknown = unknown.contains(&id);
            if !is_unknown && view.set_aside.is_none() {
                continue;
            }
            let row = self.store().any_snapshot(&id).await?;
            if row.as_ref().is_some_and(|row| row.deleted_at.is_some()) {
                continue;
            }
            found.push(snapshot_entry(view, row));
        }
        found.sort_by(|a, b| (a.created_at, a.id.as_str()).cmp(&(b.created_at, b.id.as_str())));
        Ok(found)
    }

    /// What `cove doctor` says about it.
    pub(crate) async fn quarantine_finding(&self) -> Finding {
        let (level, message, fix) = match self.quarantined().await {
            Ok(found) if found.is_empty() => (Level::Ok, "nothing is in quarantine".into(), None),
            Ok(found) => {
                let mut shown: Vec<_> = found
                    .iter()
                    .take(FINDING_MAX)
                    .map(|entry| format!("{} ({})", entry.id.as_str(), entry.reason))
                    .collect();
                if found.len() > FINDING_MAX {
                    shown.push(format!("and {} more", found.len() - FINDING_MAX));
                }
                let fix = "`cove quarantine ls` lists all; `cove quarantine adopt` and `cove quarantine rm` resolve them";
                (Level::Warning, shown.join(", "), Some(fix.to_owned()))
            }
            Err(error) => (
                Level::Warning,
                format!("what is in quarantine cannot be told: {error}"),
                Some("see the server's log".to_owned()),
            ),
        };
        Finding {
            name: "quarantine".into(),
            level,
            message,
            fix,
        }
    }

    async fn known_sandboxes(&self) -> Result<HashSet<SandboxId>, ControlError> {
        let mut known = HashSet::new();
        let mut page = PageRequest {
            limit: PAGE_MAX,
            cursor: None,
        };
        loop {
            let found = self.store().all_sandboxes(&page).await?;
            known.extend(found.items.into_iter().map(|record| record.id));
            match found.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => return Ok(known),
            }
        }
    }

    /// Operators only. Gives it to an organisation (the operators' own where none is named), or puts one that
    /// has an owner back into service.
    pub async fn adopt_quarantined(
        &self,
        principal: &Principal,
        which: &str,
        org: Option<&OrgId>,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let (which, org) = (which.to_owned(), org.cloned());
        self.to_the_end(async move {
            let outcome = control.adopt(&principal, &which, org.as_ref()).await;
            let mut deed = Deed::new("quarantine.adopt", which);
            deed.detail = org.map(|org| format!("into {org}"));
            control.conclude(&principal, deed, outcome).await
        })
        .await
    }

    async fn adopt(
        &self,
        principal: &Principal,
        which: &str,
        org: Option<&OrgId>,
    ) -> Result<(), ControlError> {
        principal.require_operator()?;
        let org = match org {
            Some(org) => self.organisation(principal, Some(org)).await?.id,
            None => principal.org.clone(),
        };
        match QuarantinedId::parse(which)? {
            QuarantinedId::Sandbox(id) => self.adopt_sandbox(&id, org).await,
            QuarantinedId::Snapshot(id) => self.adopt_snapshot(&id, org).await,
        }
    }

    async fn adopt_sandbox(&self, id: &SandboxId, org: OrgId) -> Result<(), ControlError> {
        let _turn = self.0.locks.lock(id).await;
        let view = match self.runner().get(id).await {
            Err(RunnerError::NotFound { .. }) => return Err(not_here(id.as_str())),
            view => view?,
        };
        match self.store().any_sandbox(id).await? {
            Some(row) if row.deleted_at.is_some() => Err(not_here(id.as_str())),
            Some(_) if !view.set_aside => Err(is_known(id.as_str())),
            Some(row) => self.reinstate(&row).await,
            None => {
                let view = match view.set_aside {
                    true => {
                        self.runner()
                            .reinstate(described(&view, self.owner_of(&org)?))
                            .await?
                    }
                    false => view,
                };
                self.insert_adopted(&view, org).await?;
                self.adopt_snapshots_of(id).await
            }
        }
    }

    /// Puts one with a row back into service.
    async fn reinstate(&self, row: &SandboxRecord) -> Result<(), ControlError> {
        let image = row.facts.image.clone().ok_or_else(|| {
            ControlError::new(
                ErrorCode::Conflict,
                "the database does not say which image this sandbox began from",
            )
            .hint("delete it, or copy its disk from the storage pool by hand")
        })?;
        let request = Reinstate {
            id: row.id.clone(),
            owner: Some(self.owner_of(&row.org)?),
            spec: row.spec.clone(),
            image,
            parent: row.head.clone(),
            created_at: row.created_at,
        };
        let view = self.runner().reinstate(request).await?;
        self.write_observed(row, &view).await?;
        Ok(())
    }

    async fn insert_adopted(&self, view: &SandboxView, org: OrgId) -> Result<(), ControlError> {
        let now = self.now();
        let has_ended = matches!(view.state, State::Stopped | State::Failed);
        let record = SandboxRecord {
            id: view.id.clone(),
            org,
            spec: view.spec.clone(),
            desired: match has_ended {
                true => Desired::Stopped,
                false => Desired::Running,
            },
            state: view.state,
            reason: view.reason.clone(),
            generation: 1,
            facts: HostFacts::default(),
            holds: holding(view.state, &view.spec.resources),
            created_at: view.created_at,
            // Its time counts from its adoption: the axis of an older database may have no place for it.
            created_steady: self.steady(),
            active_steady: self.steady(),
            updated_at: now,
            started_at: view.started_at,
            stopped_at: has_ended.then_some(now),
            last_active_at: now,
            deleted_at: None,
            origin: None,
            head: None,
        };
        let record = match self.store().create_sandbox(&record, None).await {
            // Another sandbox has its name since; it can be given a new one.
            Err(StoreError::Exists { .. }) if record.spec.name.is_some() => {
                let mut unnamed = record;
                unnamed.spec.name = None;
                made(self.store().create_sandbox(&unnamed, None).await?)?;
                unnamed
            }
            created => {
                made(created?)?;
                record
            }
        };
        let change: SandboxChange = observed(view, &record);
        self.store()
            .change_sandbox(&record.id, &change, now)
            .await?;
        tracing::info!(sandbox = %record.id, org = %record.org, "adopted from quarantine");
        Ok(())
    }

    /// What was taken of a sandbox comes along with it.
    async fn adopt_snapshots_of(&self, sandbox: &SandboxId) -> Result<(), ControlError> {
        let row = self.store().any_sandbox(sandbox).await?;
        let Some(row) = row else { return Ok(()) };
        let host = self.snapshots_on_host().await?;
        for id in self.unknown_snapshots(&host).await? {
            let Some(view) = host.get(&id) else { continue };
            if view.sandbox == *sandbox && view.set_aside.is_none() {
                self.insert_snapshot(view, row.org.clone()).await?;
            }
        }
        Ok(())
    }

    async fn adopt_snapshot(&self, id: &SnapshotId, org: OrgId) -> Result<(), ControlError> {
        let view = match self.runner().get_snapshot(id).await {
            Err(RunnerError::NotFound { .. }) => return Err(not_here(id.as_str())),
            view => view?,
        };
        if self.store().any_snapshot(id).await?.is_some() {
            return Err(is_known(id.as_str()));
        }
        if let Some(reason) = view.set_aside {
            return Err(ControlError::new(
                ErrorCode::Conflict,
                format!("snapshot {id} cannot be adopted: {reason}"),
            )
            .hint("its disk is in the storage pool; delete it with `cove quarantine rm`"));
        }
        self.insert_snapshot(&view, org).await
    }

    async fn insert_snapshot(&self, view: &SnapshotView, org: OrgId) -> Result<(), ControlError> {
        let held_bytes = view.exclusive_bytes.saturating_add(view.counted_bytes);
        let row = SnapshotRecord {
            id: view.id.clone(),
            org,
            name: None,
            sandbox: Some(view.sandbox.clone()),
            parent: view.parent.clone(),
            kind: SnapshotKind::Manual,
            state: SnapshotState::Ready,
            memory: view.memory,
            spec: view.spec.clone(),
            rolled_back_to: None,
            facts: SnapshotFacts {
                image: Some(view.image.clone()),
                exclusive_bytes: view.exclusive_bytes,
                shared_bytes: view.shared_bytes,
                memory_bytes: view.memory_bytes,
                stopped_us: view.stopped_us,
                unfit: view.unfit.clone(),
            },
            held_disk_mb: held_bytes.div_ceil(1 << 20),
            created_at: view.created_at,
            created_steady: self.steady(),
            deleted_at: None,
        };
        self.store().create_snapshot(&row, None).await?;
        tracing::info!(snapshot = %row.id, org = %row.org, "adopted from quarantine");
        Ok(())
    }

    /// Operators only. Deletes what no organisation owns, and all that is in it.
    pub async fn delete_quarantined(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = control.remove_quarantined(&principal, &which).await;
            let deed = Deed::new("quarantine.delete", which);
            control.conclude(&principal, deed, outcome).await
        })
        .await
    }

    async fn remove_quarantined(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        principal.require_operator()?;
        match QuarantinedId::parse(which)? {
            QuarantinedId::Sandbox(id) => {
                let _turn = self.0.locks.lock(&id).await;
                match self.store().any_sandbox(&id).await? {
                    Some(row) if row.deleted_at.is_none() => {
                        return Err(is_known(which).hint("delete it with `cove rm`"));
                    }
                    _ => {}
                }
                match self.runner().get(&id).await {
                    Err(RunnerError::NotFound { .. }) => return Err(not_here(which)),
                    view => view?,
                };
                self.runner().delete(&id).await?;
            }
            QuarantinedId::Snapshot(id) => {
                match self.store().any_snapshot(&id).await? {
                    Some(row) if row.deleted_at.is_none() => {
                        return Err(is_known(which).hint("delete it with `cove snapshot rm`"));
                    }
                    _ => {}
                }
                match self.runner().get_snapshot(&id).await {
                    Err(RunnerError::NotFound { .. }) => return Err(not_here(which)),
                    view => view?,
                };
                self.runner().delete_snapshot(&id).await?;
            }
        }
        Ok(())
    }
}

/// Without an idempotency key a row is made or an error told.
fn made(created: Created) -> Result<(), ControlError> {
    match created {
        Created::New => Ok(()),
        _ => Err(ControlError::internal("a row was made twice")),
    }
}

/// By what the host itself says; its own record counts where that can be read.
fn described(view: &SandboxView, owner: SandboxOwner) -> Reinstate {
    Reinstate {
        id: view.id.clone(),
        owner: Some(owner),
        spec: view.spec.clone(),
        image: view.image.clone(),
        parent: None,
        created_at: view.created_at,
    }
}

fn sandbox_entry(view: SandboxView, row: Option<SandboxRecord>) -> Quarantined {
    let spec: &SandboxSpec = row.as_ref().map_or(&view.spec, |row| &row.spec);
    let reason = match (&view.reason, view.set_aside) {
        (Some(reason), true) => reason.clone(),
        _ => UNKNOWN.to_owned(),
    };
    Quarantined {
        name: spec.name.clone(),
        org: row.as_ref().map(|row| row.org.clone()),
        state: Some(view.state),
        of: None,
        reason,
        created_at: row.map_or(view.created_at, |row| row.created_at),
        id: QuarantinedId::Sandbox(view.id),
    }
}

fn snapshot_entry(view: SnapshotView, row: Option<SnapshotRecord>) -> Quarantined {
    let is_aside = view.set_aside.is_some();
    Quarantined {
        name: row.as_ref().and_then(|row| row.name.clone()),
        of: match &row {
            Some(row) => row.sandbox.clone(),
            None => (!is_aside).then_some(view.sandbox),
        },
        org: row.as_ref().map(|row| row.org.clone()),
        state: None,
        reason: view.set_aside.unwrap_or_else(|| UNKNOWN.to_owned()),
        created_at: row.map_or(view.created_at, |row| row.created_at),
        id: QuarantinedId::Snapshot(view.id),
    }
}
