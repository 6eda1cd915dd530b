//! The engine as a runner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cove_model::approval::{Approval, Decision};
use cove_model::secret::{OrgKeys, OrgSecrets};
use cove_model::{
    ApprovalId, ImageId, NetworkPolicy, OrgId, ResourcesPatch, SandboxId, SnapshotId, State,
    VolumeId,
};
use cove_runner_api::{
    BudgetGrant, BudgetsWanted, CreateRequest, EgressBatch, EgressQuery, EventBatch, GuestStream,
    HostIdentity, HostInventory, HostReport, ImageJob, ImageOwner, ImageSource, ImageView,
    Imported, Refusals, Reinstate, RollbackRequest, RolledBack, RunnerApi, RunnerError, Sample,
    SandboxView, SecretUses, SnapshotRequest, SnapshotView, TierReport, VolumeRequest, VolumeView,
};
use tokio::task::spawn_blocking;

use crate::engine::Engine;
use crate::error::{chain, internal};
use crate::{doctor, images};

/// The longest a caller may wait for events in one call.
const EVENTS_WAIT_MAX: Duration = Duration::from_secs(60);

#[async_trait]
impl RunnerApi for Engine {
    async fn create(&self, request: CreateRequest) -> Result<SandboxView, RunnerError> {
        self.create_sandbox(request).await
    }

    async fn get(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        match self.inner.aside.view(id) {
            Some(view) => Ok(view),
            None => Ok(self.inner.find(id)?.view()),
        }
    }

    async fn list(&self) -> Result<Vec<SandboxView>, RunnerError> {
        let mut views = self.inner.aside.views();
        views.extend(self.inner.all().iter().map(|sandbox| sandbox.view()));
        Ok(views)
    }

    async fn start(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.start_sandbox(id).await
    }

    async fn stop(&self, id: &SandboxId, grace_ms: u64) -> Result<SandboxView, RunnerError> {
        self.stop_sandbox(id, grace_ms).await
    }

    async fn delete(&self, id: &SandboxId) -> Result<(), RunnerError> {
        self.delete_sandbox(id).await
    }

    async fn reinstate(&self, request: Reinstate) -> Result<SandboxView, RunnerError> {
        self.reinstate_sandbox(request).await
    }

    async fn resize(
        &self,
        id: &SandboxId,
        patch: ResourcesPatch,
    ) -> Result<SandboxView, RunnerError> {
        self.resize_sandbox(id, patch).await
    }

    async fn sample(&self, id: &SandboxId) -> Result<Sample, RunnerError> {
        self.sample_sandbox(self.inner.find(id)?).await
    }

    async fn samples(&self) -> Result<Vec<(SandboxId, Sample)>, RunnerError> {
        self.sample_all().await
    }

    async fn connect(&self, id: &SandboxId) -> Result<GuestStream, RunnerError> {
        let sandbox = self.inner.find(id)?;
        // What is frozen accepts nothing; the caller would wait for an answer that cannot come.
        let machine = sandbox
            .machine()
            .filter(|_| sandbox.state() != State::Frozen)
            .ok_or_else(|| RunnerError::Conflict {
                request: "connect to".into(),
                state: sandbox.state(),
            })?;
        let connected = machine.connect().await;
        connected.map_err(|error| RunnerError::GuestUnreachable {
            message: error.to_string(),
        })
    }

    async fn visitors(&self, wait_ms: u64) -> Result<Vec<SandboxId>, RunnerError> {
        let wait = Duration::from_millis(wait_ms);
        Ok(self.inner.visitors.wait(wait).await)
    }

    async fn visitor(&self, id: &SandboxId) -> Result<GuestStream, RunnerError> {
        self.inner.visitors.take(id)
    }

    async fn events(&self, after: u64, wait_ms: u64) -> Result<EventBatch, RunnerError> {
        let wait = Duration::from_millis(wait_ms).min(EVENTS_WAIT_MAX);
        let batch = self.inner.events.after(after, wait).await;
        if !batch.lost || !self.inner.events.has_dropped() {
            return Ok(batch);
        }
        // What was dropped unread is made up for by how everything is now.
        self.inner.restate_all();
        let again = self.inner.events.after(after, Duration::ZERO).await;
        Ok(EventBatch {
            lost: true,
            ..again
        })
    }

    async fn freeze(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.freeze_sandbox(id).await
    }

    async fn pause(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.pause_sandbox(id).await
    }

    async fn resume(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.resume_sandbox(id).await
    }

    async fn snapshot(&self, request: SnapshotRequest) -> Result<SnapshotView, RunnerError> {
        self.take_snapshot(request).await
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotView>, RunnerError> {
        self.list_snapshots().await
    }

    async fn get_snapshot(&self, id: &SnapshotId) -> Result<SnapshotView, RunnerError> {
        self.show_snapshot(id).await
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), RunnerError> {
        self.remove_snapshot(id).await
    }

    async fn rollback(&self, request: RollbackRequest) -> Result<RolledBack, RunnerError> {
        self.roll_back(request).await
    }

    async fn set_network(
        &self,
        id: &SandboxId,
        policy: NetworkPolicy,
    ) -> Result<SandboxView, RunnerError> {
        self.set_sandbox_network(id, policy).await
    }

    async fn egress(&self, query: EgressQuery) -> Result<EgressBatch, RunnerError> {
        self.egress_of(query).await
    }

    async fn log_refusals(&self, id: &SandboxId, refusals: Refusals) -> Result<(), RunnerError> {
        self.log_refusals_of(id, refusals).await
    }

    async fn export_snapshot(
        &self,
        id: &SnapshotId,
        plain: bool,
    ) -> Result<GuestStream, RunnerError> {
        self.write_out(id, plain).await
    }

    async fn import_snapshot(
        &self,
        id: SnapshotId,
        file: GuestStream,
    ) -> Result<Imported, RunnerError> {
        self.take_in(id, file).await
    }

    async fn image_from_snapshot(
        &self,
        id: &SnapshotId,
        name: &str,
        owner: ImageOwner,
    ) -> Result<ImageJob, RunnerError> {
        self.make_template(id, name, owner).await
    }

    async fn create_volume(&self, request: VolumeRequest) -> Result<VolumeView, RunnerError> {
        self.make_volume(request).await
    }

    async fn volumes(&self) -> Result<Vec<VolumeView>, RunnerError> {
        self.list_volumes().await
    }

    async fn adopt_volume(&self, id: &VolumeId, owner: &str) -> Result<VolumeView, RunnerError> {
        self.adopt_into(id, owner.to_owned()).await
    }

    async fn delete_volume(&self, id: &VolumeId) -> Result<(), RunnerError> {
        self.remove_volume(id).await
    }

    async fn connect_volume(&self, id: &VolumeId) -> Result<GuestStream, RunnerError> {
        self.reach_volume(id).await
    }

    async fn images(&self) -> Result<Vec<ImageView>, RunnerError> {
        let sandboxes = self.inner.all();
        let snapshots = self.inner.snapshots.all();
        let users = |id: &ImageId| {
            let sandboxes = sandboxes
                .iter()
                .filter(|sandbox| sandbox.record().image == *id);
            let snapshots = snapshots.iter().filter(|snapshot| {
                snapshot.record.image == *id && snapshot.record.template_of.is_none()
            });
            (sandboxes.count() + snapshots.count()) as u64
        };
        Ok(self
            .inner
            .images
            .store
            .list()
            .iter()
            .map(|image| {
                let mut view = images::view(image, users(&image.id));
                let template = self.inner.snapshots.template_of(&image.id);
                let memory = template.and_then(|one| one.record.memory.clone());
                view.size_bytes += memory.map_or(0, |memory| memory.bytes);
                view
            })
            .collect())
    }

    async fn add_image(
        &self,
        source: ImageSource,
        owner: ImageOwner,
    ) -> Result<ImageJob, RunnerError> {
        self.inner.images.add(source, owner)
    }

    async fn image_job(&self, id: &str) -> Result<ImageJob, RunnerError> {
        self.inner.images.job(id)
    }

    async fn remove_image(&self, id: &str) -> Result<(), RunnerError> {
        let store = &self.inner.images.store;
        let image = store.resolve(id).ok_or_else(|| RunnerError::NotFound {
            what: "image".into(),
            id: id.to_owned(),
        })?;
        let inner = Arc::clone(&self.inner);
        let template = inner.snapshots.template_of(&image.id);
        let in_use = move |image: &cove_image::Image| inner.user_of_image(&image.id);
        store
            .remove(&image.id, in_use)
            .await
            .map_err(|error| match error {
                error @ cove_image::ImageError::InUse { .. } => RunnerError::InUse {
                    message: error.to_string(),
                },
                error => internal(chain(&error)),
            })?;
        match template {
            Some(template) => self.inner.erase(&template).await,
            None => Ok(()),
        }
    }

    async fn identity(&self) -> Result<HostIdentity, RunnerError> {
        Ok(HostIdentity {
            host: self.inner.host.clone(),
        })
    }

    async fn check(&self) -> Result<(), RunnerError> {
        let engine = self.clone();
        spawn_blocking(move || engine.check_pool())
            .await
            .map_err(internal)?
    }

    async fn make_secret_keys(&self, org: &OrgId) -> Result<OrgKeys, RunnerError> {
        self.new_secret_keys(org).await
    }

    async fn rewrap_secret_keys(&self, keys: OrgKeys) -> Result<OrgKeys, RunnerError> {
        self.rewrapped_secret_keys(keys).await
    }

    async fn set_secrets(&self, secrets: OrgSecrets) -> Result<(), RunnerError> {
        self.set_org_secrets(secrets).await
    }

    async fn exposed_secrets(
        &self,
        id: &SandboxId,
    ) -> Result<BTreeMap<String, String>, RunnerError> {
        self.exposed_in(id).await
    }

    async fn secret_uses(&self) -> Result<SecretUses, RunnerError> {
        self.taken_secret_uses().await
    }

    async fn budgets_wanted(&self, wait_ms: u64) -> Result<BudgetsWanted, RunnerError> {
        let wait = Duration::from_millis(wait_ms).min(EVENTS_WAIT_MAX);
        Ok(self.inner.terminators.wanted(wait).await)
    }

    async fn grant_budgets(&self, grants: Vec<BudgetGrant>) -> Result<(), RunnerError> {
        self.inner.terminators.grant(grants).await;
        Ok(())
    }

    async fn approvals(&self, org: &OrgId) -> Result<Vec<Approval>, RunnerError> {
        self.asked_approvals(org).await
    }

    async fn decide_approval(
        &self,
        org: &OrgId,
        id: &ApprovalId,
        decision: Decision,
    ) -> Result<(), RunnerError> {
        self.decided_approval(org, id, decision).await
    }

    async fn tiers(&self) -> Result<Vec<TierReport>, RunnerError> {
        Ok(self.inner.tiers.list())
    }

    async fn inventory(&self) -> Result<HostInventory, RunnerError> {
        let inner = Arc::clone(&self.inner);
        let images = RunnerApi::images(self).await?;
        let tiers = inner.tiers.list();
        spawn_blocking(move || doctor::inventory(&inner, tiers, &images))
            .await
            .map_err(internal)
    }

    async fn host(&self) -> Result<HostReport, RunnerError> {
        let inner = Arc::clone(&self.inner);
        let found = inner.tiers.findings().await;
        let working = inner.tiers.working().await;
        spawn_blocking(move || doctor::report(&inner, found, &working))
            .await
            .map_err(internal)?
    }
}
