//! A runner that answers from memory, so that the socket between is what is tested.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use cove_model::secret::{OrgKeys, OrgSecrets, WrappedKeys};
use cove_model::{
    Event, EventKind, ImageId, NetworkPolicy, Resources, ResourcesPatch, SandboxId, SandboxSpec,
    SnapshotId, State, VolumeId,
};
use cove_runner_api::*;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

pub struct Fake {
    pub sandboxes: Mutex<Vec<SandboxView>>,
    pub snapshots: Mutex<Vec<SnapshotView>>,
    /// Creates wait for a permit when this is set.
    pub gate: Option<Semaphore>,
    pub entered: Semaphore,
    pub cancelled: Semaphore,
    pub refusals: Mutex<Vec<Refusals>>,
    /// Guests are reached by something that is not a socket.
    pub relayed: bool,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            sandboxes: Mutex::default(),
            snapshots: Mutex::default(),
            gate: None,
            entered: Semaphore::new(0),
            cancelled: Semaphore::new(0),
            refusals: Mutex::default(),
            relayed: false,
        }
    }
}

pub fn view(id: SandboxId, spec: SandboxSpec) -> SandboxView {
    SandboxView {
        id,
        state: State::Running,
        reason: Some("asked for".into()),
        limits: spec.resources.clone(),
        spec,
        image: ImageId::random(),
        image_env: vec![("PATH".into(), "/bin".into())],
        image_user: None,
        image_workdir: Some("/srv".into()),
        created_at: OffsetDateTime::UNIX_EPOCH,
        started_at: Some(OffsetDateTime::UNIX_EPOCH),
        placeholders: Default::default(),
        set_aside: false,
    }
}

fn volume(id: VolumeId, owner: String) -> VolumeView {
    VolumeView {
        id,
        owner: Some(owner),
        size_mb: 16,
        read_only: false,
        used_bytes: Some(5),
        created_at: OffsetDateTime::UNIX_EPOCH,
    }
}

pub fn sample() -> Sample {
    Sample {
        boot_time: None,
        running_us: None,
        at: OffsetDateTime::UNIX_EPOCH,
        running: true,
        cpu_usec: u64::MAX,
        memory_bytes: 2,
        memory_peak_bytes: 3,
        memory_limit_bytes: 4,
        pids: 5,
        oom_kills: 6,
        disk_bytes: 7,
        disk_limit_bytes: 8,
        network_sent_bytes: 9,
        network_received_bytes: 10,
    }
}

pub fn job(name: &str) -> ImageJob {
    ImageJob {
        id: "job-1".into(),
        name: name.into(),
        state: JobState::Failed,
        stage: "pulling".into(),
        done_bytes: 1,
        total_bytes: None,
        warnings: vec!["slow".into()],
        image: None,
        error: Some(RunnerError::NoCapacity {
            resource: "disk".into(),
            message: "full".into(),
        }),
    }
}

pub fn kept(id: SnapshotId, sandbox: SandboxId, memory: bool) -> SnapshotView {
    SnapshotView {
        id,
        sandbox,
        parent: Some(SnapshotId::random()),
        memory,
        image: ImageId::random(),
        spec: SandboxSpec::default(),
        created_at: OffsetDateTime::UNIX_EPOCH,
        exclusive_bytes: 1,
        shared_bytes: u64::MAX,
        memory_bytes: 3,
        counted_bytes: 5,
        stopped_us: 4,
        unfit: memory.then(|| "another processor".into()),
        set_aside: None,
    }
}

pub fn decision(after: u64) -> EgressEntry {
    EgressEntry {
        sequence: after + 1,
        at: OffsetDateTime::UNIX_EPOCH,
        protocol: EgressProtocol::Tcp,
        name: Some("example.org".into()),
        address: Some([192, 0, 2, 1].into()),
        port: Some(443),
        verdict: EgressVerdict::Denied,
        rule: "default".into(),
        sent_bytes: 5,
        received_bytes: 6,
    }
}

fn missing(id: &str) -> RunnerError {
    RunnerError::NotFound {
        what: "sandbox".into(),
        id: id.into(),
    }
}

/// Told when a call was dropped before its end.
struct Canceller<'a>(&'a Semaphore);

impl Drop for Canceller<'_> {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

impl Fake {
    fn find(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let all = self.sandboxes.lock().unwrap();
        all.iter()
            .find(|view| view.id == *id)
            .cloned()
            .ok_or(missing(id.as_str()))
    }

    fn find_snapshot(&self, id: &SnapshotId) -> Result<SnapshotView, RunnerError> {
        let all = self.snapshots.lock().unwrap();
        let found = all.iter().find(|snapshot| snapshot.id == *id).cloned();
        found.ok_or(missing(id.as_str()))
    }

    fn change(
        &self,
        id: &SandboxId,
        change: impl FnOnce(&mut SandboxView),
    ) -> Result<SandboxView, RunnerError> {
        let mut all = self.sandboxes.lock().unwrap();
        let found = all
            .iter_mut()
            .find(|view| view.id == *id)
            .ok_or(missing(id.as_str()))?;
        change(found);
        Ok(found.clone())
    }
}

#[async_trait]
impl RunnerApi for Fake {
    async fn create(&self, request: CreateRequest) -> Result<SandboxView, RunnerError> {
        self.entered.add_permits(1);
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        let made = view(request.id, request.spec);
        self.sandboxes.lock().unwrap().push(made.clone());
        Ok(made)
    }
    async fn get(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.find(id)
    }
    async fn list(&self) -> Result<Vec<SandboxView>, RunnerError> {
        Ok(self.sandboxes.lock().unwrap().clone())
    }
    async fn start(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let state = self.find(id)?.state;
        if state == State::Running {
            return Err(RunnerError::Conflict {
                request: "start".into(),
                state,
            });
        }
        self.change(id, |view| view.state = State::Running)
    }
    async fn stop(&self, id: &SandboxId, grace_ms: u64) -> Result<SandboxView, RunnerError> {
        self.change(id, |view| {
            view.state = State::Stopped;
            view.reason = Some(format!("after {grace_ms}"));
        })
    }
    async fn delete(&self, id: &SandboxId) -> Result<(), RunnerError> {
        self.sandboxes.lock().unwrap().retain(|view| view.id != *id);
        Ok(())
    }
    async fn reinstate(&self, request: Reinstate) -> Result<SandboxView, RunnerError> {
        self.change(&request.id, |view| {
            view.set_aside = false;
            view.spec = request.spec;
        })
    }
    async fn resize(
        &self,
        id: &SandboxId,
        patch: ResourcesPatch,
    ) -> Result<SandboxView, RunnerError> {
        let old: Resources = self.find(id)?.limits;
        let new = patch.apply(&old).map_err(|e| RunnerError::Invalid {
            message: e.to_string(),
        })?;
        self.change(id, |view| view.limits = new)
    }
    async fn sample(&self, id: &SandboxId) -> Result<Sample, RunnerError> {
        self.find(id).map(|_| sample())
    }
    async fn samples(&self) -> Result<Vec<(SandboxId, Sample)>, RunnerError> {
        let all = self.sandboxes.lock().unwrap();
        Ok(all.iter().map(|view| (view.id.clone(), sample())).collect())
    }
    async fn visitors(&self, _wait_ms: u64) -> Result<Vec<SandboxId>, RunnerError> {
        let all = self.sandboxes.lock().unwrap();
        Ok(all.iter().map(|view| view.id.clone()).collect())
    }
    async fn visitor(&self, id: &SandboxId) -> Result<GuestStream, RunnerError> {
        self.connect(id).await
    }
    async fn connect(&self, id: &SandboxId) -> Result<GuestStream, RunnerError> {
        self.find(id)?;
        let greeting = format!("hello from {id}\n");
        // The guest: greets, then echoes until its input ends.
        if self.relayed {
            let (ours, guest) = tokio::io::duplex(64 * 1024);
            tokio::spawn(echo(guest, greeting));
            return Ok(GuestStream::Other(Box::new(ours)));
        }
        let (ours, guest) = UnixStream::pair().unwrap();
        tokio::spawn(echo(guest, greeting));
        Ok(ours.into())
    }
    async fn events(&self, after: u64, wait_ms: u64) -> Result<EventBatch, RunnerError> {
        self.entered.add_permits(1);
        let _canceller = Canceller(&self.cancelled);
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        let event = Event {
            boot_time: None,
            restated: None,
            sequence: after + 1,
            at: OffsetDateTime::UNIX_EPOCH,
            sandbox: SandboxId::random(),
            kind: EventKind::Oom {
                kills: 1,
                limit_mb: 2,
                peak_mb: 3,
            },
        };
        Ok(EventBatch {
            life: String::new(),
            events: vec![event],
            next: after + 1,
            lost: after == 7,
        })
    }
    async fn freeze(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.change(id, |view| view.state = State::Frozen)
    }
    async fn pause(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.change(id, |view| view.state = State::Paused)
    }
    async fn resume(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.change(id, |view| view.state = State::Running)
    }
    async fn snapshot(&self, request: SnapshotRequest) -> Result<SnapshotView, RunnerError> {
        self.find(&request.sandbox)?;
        let taken = kept(request.id, request.sandbox, request.memory);
        self.snapshots.lock().unwrap().push(taken.clone());
        Ok(taken)
    }
    async fn snapshots(&self) -> Result<Vec<SnapshotView>, RunnerError> {
        Ok(self.snapshots.lock().unwrap().clone())
    }
    async fn get_snapshot(&self, id: &SnapshotId) -> Result<SnapshotView, RunnerError> {
        self.find_snapshot(id)
    }
    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), RunnerError> {
        self.snapshots.lock().unwrap().retain(|kept| kept.id != *id);
        Ok(())
    }
    async fn rollback(&self, request: RollbackRequest) -> Result<RolledBack, RunnerError> {
        let to = self.find_snapshot(&request.to)?;
        Ok(RolledBack {
            sandbox: self.change(&request.sandbox, |view| view.spec = to.spec)?,
            kept: kept(request.keep, request.sandbox, request.memory),
        })
    }
    async fn export_snapshot(
        &self,
        id: &SnapshotId,
        _plain: bool,
    ) -> Result<GuestStream, RunnerError> {
        self.find_snapshot(id)?;
        let (ours, mut file) = UnixStream::pair().unwrap();
        let content = format!("the file of {id}");
        tokio::spawn(async move { file.write_all(content.as_bytes()).await });
        Ok(ours.into())
    }
    async fn import_snapshot(
        &self,
        id: SnapshotId,
        mut file: GuestStream,
    ) -> Result<Imported, RunnerError> {
        let mut content = String::new();
        file.read_to_string(&mut content).await.unwrap();
        Ok(Imported {
            snapshot: kept(id, SandboxId::random(), false),
            memory_refused: Some(content),
        })
    }
    async fn image_from_snapshot(
        &self,
        id: &SnapshotId,
        name: &str,
        _owner: ImageOwner,
    ) -> Result<ImageJob, RunnerError> {
        self.find_snapshot(id).map(|_| job(name))
    }
    async fn set_network(
        &self,
        id: &SandboxId,
        policy: NetworkPolicy,
    ) -> Result<SandboxView, RunnerError> {
        self.change(id, |view| view.spec.network = policy)
    }
    async fn egress(&self, query: EgressQuery) -> Result<EgressBatch, RunnerError> {
        self.find(&query.sandbox)?;
        Ok(EgressBatch {
            entries: vec![decision(query.after)],
            next: query.after + 1,
            lost: query.verdict.is_some(),
        })
    }
    async fn log_refusals(&self, id: &SandboxId, refusals: Refusals) -> Result<(), RunnerError> {
        self.find(id)?;
        self.refusals.lock().unwrap().push(refusals);
        Ok(())
    }
    async fn create_volume(&self, request: VolumeRequest) -> Result<VolumeView, RunnerError> {
        Ok(volume(request.id, request.owner))
    }
    async fn volumes(&self) -> Result<Vec<VolumeView>, RunnerError> {
        Ok(vec![volume(VolumeId::random(), "org".into())])
    }
    async fn adopt_volume(&self, id: &VolumeId, owner: &str) -> Result<VolumeView, RunnerError> {
        Ok(volume(id.clone(), owner.into()))
    }
    async fn delete_volume(&self, id: &VolumeId) -> Result<(), RunnerError> {
        Err(RunnerError::InUse {
            message: format!("volume {id} is mounted"),
        })
    }
    async fn connect_volume(&self, id: &VolumeId) -> Result<GuestStream, RunnerError> {
        let (mut near, far) = UnixStream::pair().map_err(|error| RunnerError::Internal {
            message: error.to_string(),
        })?;
        let said = id.to_string();
        tokio::spawn(async move { near.write_all(said.as_bytes()).await });
        Ok(GuestStream::Unix(far))
    }
    async fn images(&self) -> Result<Vec<ImageView>, RunnerError> {
        Ok(vec![ImageView {
            id: ImageId::random(),
            names: vec!["debian".into()],
            digest: None,
            size_bytes: 1,
            created_at: OffsetDateTime::UNIX_EPOCH,
            source: "bootstrap".into(),
            in_use_by: 0,
            config: ImageConfig::default(),
        }])
    }
    async fn add_image(
        &self,
        source: ImageSource,
        _owner: ImageOwner,
    ) -> Result<ImageJob, RunnerError> {
        match source {
            ImageSource::Registry { reference, .. } => Ok(job(&reference)),
            ImageSource::Debian => Ok(job("debian")),
            ImageSource::CodeInterpreter => Ok(job("code-interpreter")),
            ImageSource::Scratch => Ok(job("scratch")),
            ImageSource::Local { .. } => Err(RunnerError::Unsupported {
                message: "no".into(),
            }),
        }
    }
    async fn image_job(&self, id: &str) -> Result<ImageJob, RunnerError> {
        Ok(job(id))
    }
    async fn remove_image(&self, id: &str) -> Result<(), RunnerError> {
        Err(RunnerError::InUse {
            message: format!("{id} is in use"),
        })
    }
    async fn identity(&self) -> Result<HostIdentity, RunnerError> {
        Ok(HostIdentity {
            host: cove_model::HostId::random(),
        })
    }
    async fn check(&self) -> Result<(), RunnerError> {
        Ok(())
    }
    async fn make_secret_keys(&self, org: &cove_model::OrgId) -> Result<OrgKeys, RunnerError> {
        let wrapped = WrappedKeys {
            host_key: "first".into(),
            bytes: "AAAA".into(),
        };
        Ok(OrgKeys {
            org: org.clone(),
            public: "public".into(),
            authority: "certificate".into(),
            wrapped,
        })
    }
    async fn rewrap_secret_keys(&self, mut keys: OrgKeys) -> Result<OrgKeys, RunnerError> {
        keys.wrapped.host_key = "second".into();
        Ok(keys)
    }
    async fn set_secrets(&self, _: OrgSecrets) -> Result<(), RunnerError> {
        Ok(())
    }
    async fn exposed_secrets(
        &self,
        _: &SandboxId,
    ) -> Result<std::collections::BTreeMap<String, String>, RunnerError> {
        Ok(Default::default())
    }
    async fn approvals(
        &self,
        _: &cove_model::OrgId,
    ) -> Result<Vec<cove_model::approval::Approval>, RunnerError> {
        Ok(Vec::new())
    }
    async fn decide_approval(
        &self,
        _: &cove_model::OrgId,
        id: &cove_model::ApprovalId,
        _: cove_model::approval::Decision,
    ) -> Result<(), RunnerError> {
        Err(RunnerError::NotFound {
            what: "approval".into(),
            id: id.to_string(),
        })
    }
    async fn budgets_wanted(&self, _: u64) -> Result<cove_runner_api::BudgetsWanted, RunnerError> {
        Ok(cove_runner_api::BudgetsWanted::default())
    }
    async fn grant_budgets(&self, _: Vec<cove_runner_api::BudgetGrant>) -> Result<(), RunnerError> {
        Ok(())
    }
    async fn secret_uses(&self) -> Result<cove_runner_api::SecretUses, RunnerError> {
        Ok(Default::default())
    }
    async fn tiers(&self) -> Result<Vec<TierReport>, RunnerError> {
        Ok(self.host().await?.tiers)
    }
    async fn inventory(&self) -> Result<cove_runner_api::HostInventory, RunnerError> {
        let host = self.host().await?;
        Ok(cove_runner_api::HostInventory {
            cpu_milli: u64::from(host.cpus) * 1000,
            memory_bytes: host.memory_bytes,
            disk_bytes: host.disk_bytes,
            promised_cpu_milli: 0,
            promised_memory_bytes: host.promised_memory_bytes,
            promised_disk_bytes: host.promised_disk_bytes,
            sandboxes: host.sandboxes,
            running: host.running,
            tiers: host.tiers,
            images: Vec::new(),
        })
    }
    async fn host(&self) -> Result<HostReport, RunnerError> {
        Ok(HostReport {
            cpus: 2,
            memory_bytes: 1,
            disk_bytes: 2,
            disk_free_bytes: 3,
            promised_cpu: 0.5,
            promised_memory_bytes: 4,
            promised_disk_bytes: 5,
            sandboxes: 6,
            running: 7,
            warm: 8,
            tiers: vec![TierReport {
                name: "container".into(),
                usable: true,
                capabilities: vec![],
            }],
            findings: vec![Finding {
                name: "kernel".into(),
                level: Level::Warning,
                message: "old".into(),
                fix: Some("upgrade".into()),
            }],
        })
    }
}

async fn echo(mut guest: impl ByteStream, greeting: String) {
    let _ = guest.write_all(greeting.as_bytes()).await;
    let mut buffer = vec![0; 8192];
    while let Ok(count @ 1..) = guest.read(&mut buffer).await {
        if guest.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
