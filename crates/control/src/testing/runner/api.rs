//! What the host in memory answers to control.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cove_model::approval::{Approval, Decision};
use cove_model::secret::{OrgKeys, OrgSecrets, SealedSecret};
use cove_model::{
    ApprovalId, NetworkPolicy, OrgId, ResourcesPatch, SandboxId, SnapshotId, State, VolumeId,
    lifecycle,
};
use cove_runner_api::{
    BudgetGrant, BudgetsWanted, CreateRequest, EgressBatch, EgressQuery, EventBatch, GuestStream,
    HostIdentity, HostReport, ImageJob, ImageOwner, ImageSource, ImageView, Imported, JobState,
    Refusals, Reinstate, RollbackRequest, RolledBack, RunnerApi, RunnerError, Sample, SandboxView,
    SecretUseReport, SecretUses, SnapshotRequest, SnapshotView, TierReport, VolumeRequest,
    VolumeView,
};
use tokio::sync::Semaphore;

use super::{GuestKind, MemoryRunner, answer, missing};
use crate::testing::Call;

fn unusable(error: cove_vault::VaultError) -> RunnerError {
    RunnerError::Internal {
        message: error.to_string(),
    }
}

impl MemoryRunner {
    /// What it was told of an organisation's secrets last.
    pub fn known_secrets(&self, org: &OrgId) -> Vec<SealedSecret> {
        let world = self.world();
        let known = world.secrets.get(org);
        known.map(|known| known.secrets.clone()).unwrap_or_default()
    }

    pub fn forget_secrets(&self) {
        self.world().secrets.clear();
    }

    /// What it answers when it is told of secrets.
    pub fn refuse_secrets(&self, fault: Option<RunnerError>) {
        self.world().secrets_fault = fault;
    }

    /// Whoever tells it of this organisation's secrets waits, until what this answers is dropped.
    pub fn hold_secrets(&self, org: &OrgId) -> HeldSecrets {
        let gate = Arc::new(Semaphore::new(0));
        let mut world = self.world();
        world.secrets_held = Some((org.clone(), Arc::clone(&gate)));
        world.secrets_waited = false;
        HeldSecrets(gate)
    }

    pub fn waits_for_secrets(&self) -> bool {
        self.world().secrets_waited
    }

    /// Somebody inside this sandbox asks the metadata endpoint, or so it says.
    pub fn bring_visitor(&self, id: &SandboxId) {
        self.world().visitors.push(id.clone());
        self.changed.notify_waiters();
    }

    /// Those whom nobody fetched yet.
    pub fn visitors_waiting(&self) -> usize {
        self.world().visitors.len()
    }

    /// Told to whoever asks next.
    /// A request that waits for somebody to decide.
    pub fn ask_approval(&self, org: &OrgId, approval: Approval) {
        self.world().approvals.push((org.clone(), approval));
    }

    pub fn decided_approvals(&self) -> Vec<(ApprovalId, Decision)> {
        self.world().decided.clone()
    }

    /// The next to ask hears of it.
    pub fn want_budgets(&self, wanted: BudgetsWanted) {
        let mut world = self.world();
        world.budgets.needs.extend(wanted.needs);
        world.budgets.back.extend(wanted.back);
        drop(world);
        self.changed.notify_waiters();
    }

    pub fn take_granted(&self) -> Vec<BudgetGrant> {
        std::mem::take(&mut self.world().granted)
    }

    pub fn report_use(&self, used: SecretUseReport) {
        self.world().secret_uses.push(used);
    }

    /// Two keys; the first one wraps.
    pub fn host_keys(&self) -> Result<cove_vault::HostKeys, cove_vault::VaultError> {
        let lines = format!(
            "printf '%s\\n%s\\n' {} {}",
            "5a".repeat(32),
            "a5".repeat(32)
        );
        cove_vault::HostKeys::from_command(&["sh".into(), "-c".into(), lines])
    }
}

pub struct HeldSecrets(Arc<Semaphore>);

impl Drop for HeldSecrets {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[async_trait]
impl RunnerApi for MemoryRunner {
    async fn create(&self, request: CreateRequest) -> Result<SandboxView, RunnerError> {
        let lost = self.enter(Call::Create, Some(&request.id)).await?;
        answer(lost, self.create_now(request))
    }

    async fn get(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let lost = self.enter(Call::Get, Some(id)).await?;
        answer(lost, self.find(id))
    }

    async fn list(&self) -> Result<Vec<SandboxView>, RunnerError> {
        let lost = self.enter(Call::List, None).await?;
        let all = self
            .world()
            .sandboxes
            .values()
            .map(|one| one.view.clone())
            .collect();
        answer(lost, Ok(all))
    }

    async fn start(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let lost = self.enter(Call::Start, Some(id)).await?;
        let state = self.find(id)?.state;
        lifecycle::step(state, lifecycle::Step::Start)?;
        self.set_state(id, State::Running, None);
        answer(lost, self.find(id))
    }

    async fn stop(&self, id: &SandboxId, _grace_ms: u64) -> Result<SandboxView, RunnerError> {
        let lost = self.enter(Call::Stop, Some(id)).await?;
        let state = self.find(id)?.state;
        lifecycle::step(state, lifecycle::Step::Stop)?;
        self.set_state(id, State::Stopped, None);
        answer(lost, self.find(id))
    }

    async fn delete(&self, id: &SandboxId) -> Result<(), RunnerError> {
        let lost = self.enter(Call::Delete, Some(id)).await?;
        if self.world().sandboxes.remove(id).is_some() {
            self.set_state(id, State::Gone, None);
        }
        answer(lost, Ok(()))
    }

    async fn reinstate(&self, request: Reinstate) -> Result<SandboxView, RunnerError> {
        let lost = self.enter(Call::Start, Some(&request.id)).await?;
        let id = request.id;
        self.find(&id)?;
        if let Some(one) = self.world().sandboxes.get_mut(&id) {
            one.view.set_aside = false;
            one.view.limits = request.spec.resources.clone();
            one.view.spec = request.spec;
            one.view.image = request.image;
        }
        self.set_state(&id, State::Stopped, None);
        answer(lost, self.find(&id))
    }

    async fn resize(
        &self,
        id: &SandboxId,
        patch: ResourcesPatch,
    ) -> Result<SandboxView, RunnerError> {
        let lost = self.enter(Call::Resize, Some(id)).await?;
        let old = self.find(id)?.limits;
        let new = patch.apply(&old).map_err(|error| RunnerError::Invalid {
            message: error.to_string(),
        })?;
        if let Some(one) = self.world().sandboxes.get_mut(id) {
            // The spec stays what the sandbox was made with, as on a real host.
            one.view.limits = new;
        }
        answer(lost, self.find(id))
    }

    async fn set_network(
        &self,
        id: &SandboxId,
        policy: NetworkPolicy,
    ) -> Result<SandboxView, RunnerError> {
        let lost = self.enter(Call::Resize, Some(id)).await?;
        self.find(id)?;
        if let Some(one) = self.world().sandboxes.get_mut(id) {
            one.view.spec.network = policy;
        }
        answer(lost, self.find(id))
    }

    async fn sample(&self, id: &SandboxId) -> Result<Sample, RunnerError> {
        let lost = self.enter(Call::Sample, Some(id)).await?;
        answer(lost, self.sample_now(id))
    }

    async fn samples(&self) -> Result<Vec<(SandboxId, Sample)>, RunnerError> {
        let lost = self.enter(Call::Samples, None).await?;
        let all = self
            .ids()
            .into_iter()
            .filter_map(|id| {
                let sample = self.sample_now(&id).ok()?;
                sample.running.then_some((id, sample))
            })
            .collect();
        answer(lost, Ok(all))
    }

    async fn visitors(&self, wait_ms: u64) -> Result<Vec<SandboxId>, RunnerError> {
        let deadline = std::time::Duration::from_millis(wait_ms);
        let come = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                let waiting = self.world().visitors.clone();
                if !waiting.is_empty() {
                    return waiting;
                }
                changed.await;
            }
        };
        Ok(tokio::time::timeout(deadline, come)
            .await
            .unwrap_or_default())
    }

    async fn visitor(&self, id: &SandboxId) -> Result<GuestStream, RunnerError> {
        let gone = || RunnerError::NotFound {
            what: "visitor".into(),
            id: id.to_string(),
        };
        let mut world = self.world();
        let place = world.visitors.iter().position(|waiting| waiting == id);
        world.visitors.remove(place.ok_or_else(gone)?);
        let (ours, _theirs) = tokio::net::UnixStream::pair().map_err(|_| gone())?;
        Ok(GuestStream::Unix(ours))
    }

    async fn connect(&self, id: &SandboxId) -> Result<GuestStream, RunnerError> {
        self.enter(Call::Connect, Some(id)).await?;
        let state = self.find(id)?.state;
        if state != State::Running {
            return Err(RunnerError::Conflict {
                request: "connect to".into(),
                state,
            });
        }
        let silent = |message: String| RunnerError::GuestUnreachable { message };
        let guest = self.world().guest.clone();
        match guest {
            GuestKind::Unreachable => Err(silent("there is no guest in memory".into())),
            GuestKind::Socket(path) => tokio::net::UnixStream::connect(path)
                .await
                .map(GuestStream::Unix)
                .map_err(|error| silent(error.to_string())),
            GuestKind::Scripted(script) => Ok(script.connect()),
        }
    }

    async fn events(&self, after: u64, wait_ms: u64) -> Result<EventBatch, RunnerError> {
        self.enter(Call::Events, None).await?;
        let changed = self.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let batch = || {
            let world = self.world();
            let skip = after.saturating_sub(world.forgotten);
            let skip = usize::try_from(skip).unwrap_or(usize::MAX);
            let events: Vec<_> = world.events.iter().skip(skip).cloned().collect();
            EventBatch {
                next: world.forgotten + world.events.len() as u64,
                lost: after > 0 && after < world.forgotten,
                life: format!("life-{}", world.lives),
                events,
            }
        };
        let now = batch();
        if !now.events.is_empty() || wait_ms == 0 {
            return Ok(now);
        }
        let _ = tokio::time::timeout(Duration::from_millis(wait_ms), changed).await;
        Ok(batch())
    }

    async fn egress(&self, query: EgressQuery) -> Result<EgressBatch, RunnerError> {
        self.reached()?;
        Ok(self.egress.read(query).await)
    }

    async fn log_refusals(&self, id: &SandboxId, refusals: Refusals) -> Result<(), RunnerError> {
        self.reached()?;
        self.egress.refuse(id, &refusals);
        Ok(())
    }

    async fn freeze(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let lost = self.enter(Call::Freeze, Some(id)).await?;
        answer(lost, self.freeze_now(id))
    }

    async fn pause(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let lost = self.enter(Call::Pause, Some(id)).await?;
        answer(lost, self.pause_now(id))
    }

    async fn resume(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let lost = self.enter(Call::Resume, Some(id)).await?;
        answer(lost, self.resume_now(id))
    }

    async fn snapshot(&self, request: SnapshotRequest) -> Result<SnapshotView, RunnerError> {
        let lost = self.enter(Call::Snapshot, Some(&request.sandbox)).await?;
        answer(lost, self.snapshot_now(request))
    }

    async fn create_volume(&self, request: VolumeRequest) -> Result<VolumeView, RunnerError> {
        let lost = self.enter(Call::CreateVolume, None).await?;
        let view = VolumeView {
            id: request.id.clone(),
            owner: Some(request.owner),
            size_mb: request.size_mb,
            read_only: request.read_only,
            used_bytes: Some(0),
            created_at: self.clock.now(),
        };
        let made = {
            let mut world = self.world();
            world.volumes.entry(request.id).or_insert(view).clone()
        };
        answer(lost, Ok(made))
    }

    async fn volumes(&self) -> Result<Vec<VolumeView>, RunnerError> {
        self.enter(Call::Volumes, None).await?;
        Ok(self.world().volumes.values().cloned().collect())
    }

    async fn adopt_volume(&self, id: &VolumeId, owner: &str) -> Result<VolumeView, RunnerError> {
        self.reached()?;
        let mut world = self.world();
        let found = world.volumes.get_mut(id);
        let found = found.ok_or_else(|| missing("volume", id.as_str()))?;
        found.owner = Some(owner.to_owned());
        Ok(found.clone())
    }

    async fn delete_volume(&self, id: &VolumeId) -> Result<(), RunnerError> {
        let lost = self.enter(Call::DeleteVolume, None).await?;
        let users = self.world().sandboxes.values().any(|one| {
            let mut mounts = one.view.spec.volumes.iter();
            mounts.any(|mount| mount.volume == *id)
        });
        if users {
            return Err(RunnerError::InUse {
                message: format!("volume {id} is mounted"),
            });
        }
        self.world().volumes.remove(id);
        answer(lost, Ok(()))
    }

    async fn connect_volume(&self, id: &VolumeId) -> Result<GuestStream, RunnerError> {
        self.reached()?;
        match self.world().volumes.contains_key(id) {
            true => Err(RunnerError::GuestUnreachable {
                message: "volumes in memory have no files".into(),
            }),
            false => Err(missing("volume", id.as_str())),
        }
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotView>, RunnerError> {
        self.enter(Call::Snapshots, None).await?;
        Ok(self.world().snapshots.values().cloned().collect())
    }

    async fn get_snapshot(&self, id: &SnapshotId) -> Result<SnapshotView, RunnerError> {
        self.reached()?;
        self.check_made(id)?;
        let found = self.world().snapshots.get(id).cloned();
        found.ok_or_else(|| missing("snapshot", id.as_str()))
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), RunnerError> {
        let lost = self.enter(Call::DeleteSnapshot, None).await?;
        self.check_made(id)?;
        self.world().snapshots.remove(id);
        answer(lost, Ok(()))
    }

    async fn rollback(&self, request: RollbackRequest) -> Result<RolledBack, RunnerError> {
        let lost = self.enter(Call::Rollback, Some(&request.sandbox)).await?;
        answer(lost, self.rollback_now(request))
    }

    async fn export_snapshot(
        &self,
        id: &SnapshotId,
        _plain: bool,
    ) -> Result<GuestStream, RunnerError> {
        self.enter(Call::Export, None).await?;
        self.export_now(id)
    }

    async fn import_snapshot(
        &self,
        id: SnapshotId,
        file: GuestStream,
    ) -> Result<Imported, RunnerError> {
        let lost = self.enter(Call::Import, None).await?;
        answer(lost, self.import_now(id, file).await)
    }

    async fn image_from_snapshot(
        &self,
        id: &SnapshotId,
        name: &str,
        owner: ImageOwner,
    ) -> Result<ImageJob, RunnerError> {
        self.get_snapshot(id).await?;
        let source = ImageSource::Registry {
            reference: name.to_owned(),
            username: None,
            password: None,
        };
        self.add_image(source, owner).await
    }

    async fn images(&self) -> Result<Vec<ImageView>, RunnerError> {
        self.enter(Call::Images, None).await?;
        Ok(self.world().images.clone())
    }

    async fn add_image(
        &self,
        source: ImageSource,
        owner: ImageOwner,
    ) -> Result<ImageJob, RunnerError> {
        self.enter(Call::AddImage, None).await?;
        let name = match &source {
            ImageSource::Registry { reference, .. } => reference.clone(),
            ImageSource::Debian => "debian".into(),
            ImageSource::CodeInterpreter => "code-interpreter".into(),
            ImageSource::Scratch => "scratch".into(),
            ImageSource::Local { name, .. } => name.clone(),
        };
        // What a host builds is there when it is built; what it fetches may be there for others already.
        let is_built = matches!(
            source,
            ImageSource::Debian | ImageSource::CodeInterpreter | ImageSource::Scratch
        );
        let comes_later = is_built && self.world().fetching;
        if !comes_later
            && !self
                .world()
                .images
                .iter()
                .any(|image| image.names.contains(&name))
        {
            self.add_named_image(&name);
        }
        let mut world = self.world();
        // As on a real host, what an organisation asks for is fetched for it alone.
        let mut fetches = world.fetches.iter();
        let same = fetches.find(|(_, other, whose)| *other == source && *whose == owner);
        if let Some(job) = same.and_then(|(id, ..)| world.jobs.get(id))
            && job.state == JobState::Running
        {
            return Ok(job.clone());
        }
        let image = world
            .images
            .iter()
            .find(|image| image.names.contains(&name));
        let job = ImageJob {
            id: format!("job-{}", world.fetches.len() + 1),
            name: name.clone(),
            state: match world.fetching {
                true => JobState::Running,
                false => JobState::Done,
            },
            stage: "done".into(),
            done_bytes: 1,
            total_bytes: Some(1),
            warnings: Vec::new(),
            image: image.cloned(),
            error: None,
        };
        world.jobs.insert(job.id.clone(), job.clone());
        world.fetches.insert(0, (job.id.clone(), source, owner));
        Ok(job)
    }

    async fn image_job(&self, id: &str) -> Result<ImageJob, RunnerError> {
        self.reached()?;
        let found = self.world().jobs.get(id).cloned();
        found.ok_or_else(|| missing("image job", id))
    }

    async fn remove_image(&self, id: &str) -> Result<(), RunnerError> {
        self.reached()?;
        let mut world = self.world();
        let mut sandboxes = world.sandboxes.values().map(|one| &one.view.image);
        let mut snapshots = world.snapshots.values().map(|view| &view.image);
        if sandboxes.any(|image| image.as_str() == id)
            || snapshots.any(|image| image.as_str() == id)
        {
            return Err(RunnerError::InUse {
                message: "sandboxes or snapshots use it".into(),
            });
        }
        let before = world.images.len();
        world.images.retain(|image| image.id.as_str() != id);
        if world.images.len() == before {
            return Err(missing("image", id));
        }
        Ok(())
    }

    async fn identity(&self) -> Result<HostIdentity, RunnerError> {
        self.enter(Call::Identity, None).await?;
        let host = self.world().impostor.clone();
        Ok(HostIdentity {
            host: host.unwrap_or_else(|| self.id.clone()),
        })
    }

    async fn check(&self) -> Result<(), RunnerError> {
        self.reached()?;
        Ok(())
    }

    async fn make_secret_keys(&self, org: &OrgId) -> Result<OrgKeys, RunnerError> {
        self.reached()?;
        let made = self
            .host_keys()
            .and_then(|host| cove_vault::make_keys(org, &host));
        made.map_err(unusable)
    }

    async fn rewrap_secret_keys(&self, keys: OrgKeys) -> Result<OrgKeys, RunnerError> {
        self.reached()?;
        let made = self
            .host_keys()
            .and_then(|host| cove_vault::rewrap_keys(&keys, &host));
        made.map_err(unusable)
    }

    async fn set_secrets(&self, secrets: OrgSecrets) -> Result<(), RunnerError> {
        self.reached()?;
        let org = secrets.keys.org.clone();
        let held = {
            let mut world = self.world();
            if let Some(fault) = world.secrets_fault.clone() {
                return Err(fault);
            }
            let held = world.secrets_held.clone();
            let held = held.filter(|(whose, gate)| *whose == org && !gate.is_closed());
            world.secrets_waited |= held.is_some();
            held
        };
        if let Some((_, gate)) = held {
            // Closed, not filled.
            let _ = gate.acquire().await;
        }
        self.world().secrets.insert(org, secrets);
        Ok(())
    }

    async fn exposed_secrets(
        &self,
        id: &SandboxId,
    ) -> Result<std::collections::BTreeMap<String, String>, RunnerError> {
        self.reached()?;
        let spec = self.get(id).await?.spec;
        let exposed = spec.secrets.into_iter().filter(|grant| grant.exposed);
        Ok(exposed
            .map(|grant| (grant.name.clone(), format!("value-of-{}", grant.name)))
            .collect())
    }

    async fn secret_uses(&self) -> Result<SecretUses, RunnerError> {
        self.reached()?;
        let mut world = self.world();
        let waiting = world.approvals.iter().filter(|(_, it)| it.waiting > 0);
        Ok(SecretUses {
            life: "memory".into(),
            waiting: waiting.map(|(_, it)| it.sandbox.clone()).collect(),
            uses: std::mem::take(&mut world.secret_uses),
        })
    }

    async fn budgets_wanted(&self, wait_ms: u64) -> Result<BudgetsWanted, RunnerError> {
        self.reached()?;
        let changed = self.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let now = std::mem::take(&mut self.world().budgets);
        if now != BudgetsWanted::default() || wait_ms == 0 {
            return Ok(now);
        }
        let _ = tokio::time::timeout(Duration::from_millis(wait_ms), changed).await;
        Ok(std::mem::take(&mut self.world().budgets))
    }

    async fn grant_budgets(&self, grants: Vec<BudgetGrant>) -> Result<(), RunnerError> {
        self.reached()?;
        self.world().granted.extend(grants);
        Ok(())
    }

    async fn approvals(&self, org: &OrgId) -> Result<Vec<Approval>, RunnerError> {
        self.reached()?;
        let world = self.world();
        let own = world.approvals.iter().filter(|(whose, _)| whose == org);
        Ok(own.map(|(_, approval)| approval.clone()).collect())
    }

    async fn decide_approval(
        &self,
        org: &OrgId,
        id: &ApprovalId,
        decision: Decision,
    ) -> Result<(), RunnerError> {
        self.reached()?;
        let mut world = self.world();
        let known = world
            .approvals
            .iter()
            .any(|(whose, it)| whose == org && it.id == *id);
        if !known {
            return Err(RunnerError::NotFound {
                what: "approval".into(),
                id: id.to_string(),
            });
        }
        world.decided.push((id.clone(), decision));
        Ok(())
    }

    async fn tiers(&self) -> Result<Vec<TierReport>, RunnerError> {
        self.enter(Call::Tiers, None).await?;
        Ok(self.world().tiers.clone())
    }

    async fn inventory(&self) -> Result<cove_runner_api::HostInventory, RunnerError> {
        self.reached()?;
        let world = self.world();
        let limits = || world.sandboxes.values().map(|one| &one.view.limits);
        Ok(cove_runner_api::HostInventory {
            cpu_milli: 1_000_000,
            memory_bytes: 1 << 50,
            disk_bytes: 1 << 50,
            promised_cpu_milli: limits().map(|it| (it.cpu * 1000.0) as u64).sum(),
            promised_memory_bytes: limits().map(|it| it.memory_mb << 20).sum(),
            promised_disk_bytes: 0,
            sandboxes: world.sandboxes.len() as u64,
            running: world.sandboxes.len() as u64,
            tiers: world.tiers.clone(),
            images: Vec::new(),
        })
    }

    async fn host(&self) -> Result<HostReport, RunnerError> {
        self.reached()?;
        let world = self.world();
        let count = world.sandboxes.len() as u64;
        Ok(HostReport {
            cpus: 2,
            memory_bytes: 1 << 34,
            disk_bytes: 1 << 40,
            disk_free_bytes: 1 << 39,
            promised_cpu: count as f64,
            promised_memory_bytes: 0,
            promised_disk_bytes: 0,
            sandboxes: count,
            running: count,
            warm: 0,
            tiers: world.tiers.clone(),
            findings: Vec::new(),
        })
    }
}
