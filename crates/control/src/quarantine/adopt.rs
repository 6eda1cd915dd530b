//! Giving what is in quarantine to an organisation.

use async_recursion::async_recursion as boxed;
use cove_model::{OrgId, Placement, SandboxId, SandboxSpec, SnapshotId, State, VolumeId};
use cove_runner_api::{Reinstate, SandboxOwner, SandboxView, SnapshotView};
use cove_store::{
    Created, Desired, HostFacts, SandboxChange, SandboxRecord, SnapshotFacts, SnapshotKind,
    SnapshotRecord, SnapshotState, StoreError, VolumeRecord, VolumeState,
};

use super::{QuarantinedId, is_known, not_here};
use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;
use crate::principal::Principal;
use crate::sandboxes::{holding, observed};

impl Control {
    /// Operators only. Gives it to an organisation (the operators' own where none is named), or puts one that
    /// has an owner back into service.
    #[boxed]
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
            let mut operation = Operation::new("quarantine.adopt", which);
            operation.detail = org.map(|org| format!("into {org}"));
            control.conclude(&principal, operation, outcome).await
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
            QuarantinedId::Volume(id) => self.adopt_volume(&id, org).await,
        }
    }

    async fn adopt_sandbox(&self, id: &SandboxId, org: OrgId) -> Result<(), ControlError> {
        let _turn = self.lock_sandbox(id).await?;
        let row = self.store().any_sandbox(id).await?;
        let on = row.as_ref().map(|row| &row.host);
        let found = self.find_on_hosts(
            |host| on.is_none_or(|on| on == host),
            |host| async move { host.runner().await?.get(id).await },
        );
        let Some((host, view)) = found.await? else {
            return Err(not_here(id.as_str()));
        };
        match row {
            Some(row) if row.deleted_at.is_some() => Err(not_here(id.as_str())),
            Some(_) if !view.set_aside => Err(is_known(id.as_str())),
            Some(row) => self.reinstate(&row).await,
            None => {
                let view = match view.set_aside {
                    true => {
                        let request = described(&view, self.owner_of(&org)?);
                        host.runner().await?.reinstate(request).await?
                    }
                    false => view,
                };
                self.insert_adopted(&host, &view, org).await?;
                self.adopt_snapshots_of(&host, id).await
            }
        }
    }

    /// Puts one with a row back into service.
    async fn reinstate(&self, row: &SandboxRecord) -> Result<(), ControlError> {
        let image = row.facts.image.clone().ok_or_else(|| {
            ControlError::new(
                ErrorCode::Conflict,
                "the database does not record the image of this sandbox",
            )
            .hint("delete it, or copy its disk from the storage pool by hand")
        })?;
        let request = Reinstate {
            id: row.id.clone(),
            owner: Some(self.owner_of(&row.org)?),
            spec: SandboxSpec {
                placement: Placement::default(),
                ..row.spec.clone()
            },
            image,
            parent: row.head.clone(),
            created_at: row.created_at,
        };
        let view = self.runner(&row.host).await?.reinstate(request).await?;
        self.write_observed(row, &view).await?;
        Ok(())
    }

    async fn insert_adopted(
        &self,
        host: &Host,
        view: &SandboxView,
        org: OrgId,
    ) -> Result<(), ControlError> {
        let now = self.now();
        let has_ended = matches!(view.state, State::Stopped | State::Failed);
        let record = SandboxRecord {
            id: view.id.clone(),
            org,
            host: host.id.clone(),
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
    async fn adopt_snapshots_of(
        &self,
        host: &Host,
        sandbox: &SandboxId,
    ) -> Result<(), ControlError> {
        let row = self.store().any_sandbox(sandbox).await?;
        let Some(row) = row else { return Ok(()) };
        let on_host = self.snapshots_on_host(host).await?;
        for id in self.unknown_snapshots(host, &on_host).await? {
            let Some(view) = on_host.get(&id) else {
                continue;
            };
            // One whose row names another host is that host's.
            let is_free = self.store().any_snapshot(&id).await?.is_none();
            if is_free && view.sandbox == *sandbox && view.set_aside.is_none() {
                self.insert_snapshot(host, view, row.org.clone()).await?;
            }
        }
        Ok(())
    }

    /// Under a name made of its id; what it was called is not known.
    async fn adopt_volume(&self, id: &VolumeId, org: OrgId) -> Result<(), ControlError> {
        let host = self.host_of_stray_volume(id).await?;
        if self.store().any_volume(id).await?.is_some() {
            return Err(is_known(id.as_str()));
        }
        let runner = host.runner().await?;
        let view = runner.adopt_volume(id, org.as_str()).await?;
        let record = VolumeRecord {
            id: id.clone(),
            org,
            host: host.id.clone(),
            name: id.as_str().replace('_', "-"),
            state: VolumeState::Ready,
            size_mb: view.size_mb,
            read_only: view.read_only,
            origin: None,
            used_bytes: view.used_bytes.unwrap_or(0),
            created_at: view.created_at,
            created_steady: self.steady(),
            deleted_at: None,
        };
        self.store().create_volume(&record, None).await?;
        tracing::info!(volume = %record.id, org = %record.org, "adopted from quarantine");
        Ok(())
    }

    async fn adopt_snapshot(&self, id: &SnapshotId, org: OrgId) -> Result<(), ControlError> {
        let found = self.find_on_hosts(
            |_| true,
            |host| async move { host.runner().await?.get_snapshot(id).await },
        );
        let Some((host, view)) = found.await? else {
            return Err(not_here(id.as_str()));
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
        self.insert_snapshot(&host, &view, org).await
    }

    async fn insert_snapshot(
        &self,
        host: &Host,
        view: &SnapshotView,
        org: OrgId,
    ) -> Result<(), ControlError> {
        let held_bytes = view.exclusive_bytes.saturating_add(view.counted_bytes);
        let row = SnapshotRecord {
            id: view.id.clone(),
            org,
            host: host.id.clone(),
            name: None,
            sandbox: Some(view.sandbox.clone()),
            parent: view.parent.clone(),
            kind: SnapshotKind::Manual,
            state: SnapshotState::Ready,
            memory: view.memory,
            spec: view.spec.clone(),
            rolled_back_to: None,
            object_copy: cove_store::ObjectCopy::None,
            on_host: true,
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
}

/// Without an idempotency key a row is made or an error returned.
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
