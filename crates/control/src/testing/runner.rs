//! The host in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use cove_model::{
    BootTime, Event, EventKind, HostId, ImageId, Resources, Restated, SandboxId, SandboxSpec,
    SnapshotId, State, VolumeId,
};
use cove_runner_api::{
    CreateRequest, ImageConfig, ImageJob, ImageOwner, ImageSource, ImageView, JobState,
    RunnerError, Sample, SandboxView, SnapshotView, TierReport, VolumeView,
};
use time::OffsetDateTime;
use tokio::sync::Notify;

use super::{Call, EgressLogs, Fault, ScriptedGuest, unreachable};
use crate::{Clock, Hosts};

mod api;

/// What connections to guests meet.
#[derive(Debug, Clone, Default)]
pub enum GuestKind {
    #[default]
    Unreachable,
    /// A guest listens on this socket.
    Socket(PathBuf),
    Scripted(ScriptedGuest),
}

pub(super) struct One {
    pub view: SandboxView,
    pub sample: Sample,
    /// The snapshot its state grew from.
    pub head: Option<SnapshotId>,
    /// Something was written since the last snapshot.
    pub changed: bool,
    /// When it last began to run, in microseconds since the boot.
    pub started_us: u64,
}

#[derive(Default)]
pub(super) struct World {
    /// What control told of each organisation's secrets.
    pub secrets: BTreeMap<cove_model::OrgId, cove_model::secret::OrgSecrets>,
    /// What hearing of secrets fails with.
    pub secrets_fault: Option<RunnerError>,
    /// Whose secrets are not taken until it is closed, and whether somebody waits for that.
    pub secrets_held: Option<(cove_model::OrgId, Arc<tokio::sync::Semaphore>)>,
    pub secrets_waited: bool,
    /// What is told to whoever asks next.
    pub secret_uses: Vec<cove_runner_api::SecretUseReport>,
    /// What is needed of budgets and was granted, and what is given back.
    pub budgets: cove_runner_api::BudgetsWanted,
    pub granted: Vec<cove_runner_api::BudgetGrant>,
    /// Approvals by organisation, and what was decided.
    pub approvals: Vec<(cove_model::OrgId, cove_model::approval::Approval)>,
    pub decided: Vec<(cove_model::ApprovalId, cove_model::approval::Decision)>,
    /// Sandboxes inside which somebody waits at the metadata endpoint.
    pub visitors: Vec<SandboxId>,
    pub sandboxes: BTreeMap<SandboxId, One>,
    pub snapshots: BTreeMap<SnapshotId, SnapshotView>,
    pub volumes: BTreeMap<VolumeId, VolumeView>,
    /// Those under way for somebody.
    pub making: BTreeSet<SnapshotId>,
    /// What the next rollback fails with after it has kept what was.
    pub broken_rollback: Option<RunnerError>,
    events: Vec<Event>,
    /// Events before the first that is kept.
    forgotten: u64,
    /// Restarts of the host's process so far.
    lives: u64,
    images: Vec<ImageView>,
    jobs: HashMap<String, ImageJob>,
    /// What each job fetches, newest first.
    fetches: Vec<(String, ImageSource, ImageOwner)>,
    faults: HashMap<Call, VecDeque<Fault>>,
    calls: Vec<(Call, Option<SandboxId>)>,
    guest: GuestKind,
    pub memory_mb: Option<u64>,
    fetching: bool,
    image_bytes: u64,
    /// Which host it says it is, when that is not the truth.
    impostor: Option<HostId>,
    is_away: bool,
    pub tiers: Vec<TierReport>,
}

/// The only host of an installation.
impl From<Arc<MemoryRunner>> for Hosts {
    fn from(runner: Arc<MemoryRunner>) -> Self {
        Self::only(runner.id.clone(), runner)
    }
}

/// The host. Outlives any number of control planes, as a real one does.
pub struct MemoryRunner {
    id: HostId,
    world: Mutex<World>,
    changed: Notify,
    pub(super) clock: Arc<dyn Clock>,
    pub egress: EgressLogs,
}

impl MemoryRunner {
    /// A host with the default image.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let runner = Self {
            id: HostId::random(),
            world: Mutex::default(),
            changed: Notify::new(),
            clock,
            egress: EgressLogs::default(),
        };
        runner.add_named_image("debian");
        runner.set_tiers(&[("container", &[])]);
        Arc::new(runner)
    }

    pub fn id(&self) -> &HostId {
        &self.id
    }

    pub(super) fn world(&self) -> parking_lot::MutexGuard<'_, World> {
        self.world.lock()
    }

    /// The next such call meets this fault; several queue up.
    pub fn inject(&self, call: Call, fault: Fault) {
        self.world()
            .faults
            .entry(call)
            .or_default()
            .push_back(fault);
    }

    /// The isolation tiers that it has, with what each can do.
    pub fn set_tiers(&self, tiers: &[(&str, &[&str])]) {
        let report = |(name, able): &(&str, &[&str])| TierReport {
            name: (*name).into(),
            usable: true,
            capabilities: able.iter().map(|able| (*able).to_owned()).collect(),
        };
        self.world().tiers = tiers.iter().map(report).collect();
    }

    pub fn set_guest(&self, guest: GuestKind) {
        self.world().guest = guest;
    }

    /// Whether the host answers at all.
    pub fn cut_off(&self, is_away: bool) {
        self.world().is_away = is_away;
    }

    fn reached(&self) -> Result<(), RunnerError> {
        match self.world().is_away {
            true => Err(unreachable()),
            false => Ok(()),
        }
    }

    /// What was asked about this sandbox.
    pub fn asked_about(&self, id: &SandboxId) -> Vec<Call> {
        let calls = &self.world().calls;
        let about = calls.iter().filter(|(_, of)| of.as_ref() == Some(id));
        about.map(|(call, _)| *call).collect()
    }

    /// How often this was asked.
    pub fn calls(&self, call: Call) -> usize {
        let calls = &self.world().calls;
        calls.iter().filter(|(made, _)| *made == call).count()
    }

    /// Says from now on that it is another host, as a runner over another data directory would.
    pub fn pose_as(&self, host: Option<HostId>) {
        self.world().impostor = host;
    }

    /// As if the record of a sandbox had been damaged.
    pub fn set_aside(&self, id: &SandboxId, reason: &str) {
        if let Some(one) = self.world().sandboxes.get_mut(id) {
            one.view.state = State::Failed;
            one.view.reason = Some(reason.into());
            one.view.spec = SandboxSpec::default();
            one.view.limits = Resources::default();
            one.view.set_aside = true;
        }
    }

    /// Refuses creates beyond this much memory in all.
    pub fn limit_memory(&self, memory_mb: u64) {
        self.world().memory_mb = Some(memory_mb);
    }

    /// What images that are added from now on take.
    pub fn size_images(&self, bytes: u64) {
        self.world().image_bytes = bytes;
    }

    pub fn add_named_image(&self, name: &str) {
        let image = ImageView {
            id: ImageId::random(),
            names: vec![name.into()],
            digest: None,
            size_bytes: self.world().image_bytes.max(1),
            created_at: self.clock.now(),
            source: "bootstrap".into(),
            in_use_by: 0,
            config: ImageConfig::default(),
        };
        self.world().images.push(image);
    }

    /// Image jobs stay under way until asked otherwise.
    pub fn keep_fetching(&self) {
        self.world().fetching = true;
    }

    pub fn finish_fetching(&self) {
        let jobs: Vec<_> = self.world().jobs.values().cloned().collect();
        for mut job in jobs
            .into_iter()
            .filter(|job| job.state == JobState::Running)
        {
            if job.image.is_none() {
                self.add_named_image(&job.name);
                job.image = self.world().images.last().cloned();
            }
            job.state = JobState::Done;
            self.world().jobs.insert(job.id.clone(), job);
        }
        self.world().fetching = false;
    }

    /// As a restart of the host's process does; its images stay.
    pub fn forget_jobs(&self) {
        self.world().jobs.clear();
    }

    /// Lets one fetch fail, as a registry that refuses it would.
    pub fn refuse_fetch(&self, id: &str) {
        if let Some(job) = self.world().jobs.get_mut(id) {
            job.state = JobState::Failed;
            job.image = None;
            job.error = Some(RunnerError::Invalid {
                message: "the registry refuses".into(),
            });
        }
    }

    /// The registry now has something else under this name: the next fetch brings a new image.
    pub fn move_name(&self, name: &str) {
        for image in &mut self.world().images {
            image.names.retain(|known| known != name);
        }
    }

    /// Ids the host has now.
    pub fn ids(&self) -> Vec<SandboxId> {
        self.world().sandboxes.keys().cloned().collect()
    }

    pub fn state(&self, id: &SandboxId) -> Option<State> {
        self.world().sandboxes.get(id).map(|one| one.view.state)
    }

    /// How often a call came, for one sandbox or for all.
    pub fn count(&self, call: Call, id: Option<&SandboxId>) -> usize {
        let calls = &self.world().calls;
        calls
            .iter()
            .filter(|(name, of)| *name == call && (id.is_none() || of.as_ref() == id))
            .count()
    }

    /// Its PID 1 ends by itself.
    pub fn exit(&self, id: &SandboxId, reason: &str) {
        self.set_state(id, State::Stopped, Some(reason.into()));
    }

    /// The host's process is killed and started again: events that nobody has read are lost, sandboxes
    /// run on, and it begins by telling how they are.
    pub fn restart(&self) {
        let mut world = self.world();
        world.lives += 1;
        // No number is given out twice.
        world.forgotten += world.events.len() as u64 + 1000;
        world.events.clear();
        let all: Vec<_> = world
            .sandboxes
            .values()
            .map(|one| one.view.clone())
            .collect();
        for view in all {
            let kind = EventKind::State {
                state: view.state,
                reason: view.reason,
            };
            push_event(&mut world, self.clock.as_ref(), &view.id, kind);
            if let Some(last) = world.events.last_mut() {
                last.restated = Some(Restated {
                    started_at: view.started_at,
                });
            }
        }
        drop(world);
        self.changed.notify_waiters();
    }

    /// Its PID 1 ends and it is started again, behind the control plane's back.
    pub fn restart_sandbox(&self, id: &SandboxId) {
        self.set_state(id, State::Stopped, None);
        self.set_state(id, State::Running, None);
    }

    /// The host forgets it without a word.
    pub fn lose(&self, id: &SandboxId) {
        self.world().sandboxes.remove(id);
    }

    /// Changes what it reports.
    pub fn use_up(&self, id: &SandboxId, change: impl FnOnce(&mut Sample)) {
        if let Some(one) = self.world().sandboxes.get_mut(id) {
            change(&mut one.sample);
        }
    }

    /// The host says it is in this state from now on.
    pub fn set_state(&self, id: &SandboxId, state: State, reason: Option<String>) {
        let now = self.clock.now();
        let mut world = self.world();
        if let Some(one) = world.sandboxes.get_mut(id) {
            if state == State::Running && one.view.state == State::Stopped {
                one.view.started_at = Some(now);
            }
            one.view.state = state;
            one.view.reason = reason.clone();
            one.sample.running = matches!(state, State::Running | State::Frozen);
            if !one.sample.running {
                one.sample.memory_bytes = 0;
            }
            if state == State::Running {
                one.started_us = self.clock.boot_micros();
            }
        }
        let clock = self.clock.as_ref();
        push_event(&mut world, clock, id, EventKind::State { state, reason });
        drop(world);
        self.changed.notify_waiters();
    }

    /// Notes the call and meets its fault, if there is one. `true`: the answer gets lost.
    pub(super) async fn enter(
        &self,
        call: Call,
        id: Option<&SandboxId>,
    ) -> Result<bool, RunnerError> {
        let fault = {
            let mut world = self.world();
            if world.is_away {
                return Err(unreachable());
            }
            world.calls.push((call, id.cloned()));
            world.faults.get_mut(&call).and_then(VecDeque::pop_front)
        };
        match fault {
            None => Ok(false),
            Some(Fault::Refuse(error)) => Err(error),
            Some(Fault::LoseAnswer) => Ok(true),
            Some(Fault::Hold(gate)) => {
                gate.acquire().await.map_err(|_| unreachable())?.forget();
                Ok(false)
            }
        }
    }

    pub(super) fn find(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let world = self.world();
        let found = world.sandboxes.get(id).map(|one| one.view.clone());
        found.ok_or_else(|| missing("sandbox", id.as_str()))
    }

    fn create_now(&self, request: CreateRequest) -> Result<SandboxView, RunnerError> {
        let now = self.clock.now();
        let CreateRequest { id, spec, from, .. } = request;
        let mut world = self.world();
        if world.sandboxes.contains_key(&id) {
            return Err(RunnerError::AlreadyExists {
                what: "sandbox".into(),
                id: id.to_string(),
            });
        }
        let image = match &from {
            Some(from) => {
                let found = world.snapshots.get(&from.snapshot);
                let found = found.ok_or_else(|| missing("snapshot", from.snapshot.as_str()))?;
                if let Some(message) = found.unfit.clone().filter(|_| from.memory) {
                    return Err(RunnerError::Unfit { message });
                }
                found.image.clone()
            }
            None => world
                .images
                .iter()
                .find(|image| image.id.as_str() == spec.image || image.names.contains(&spec.image))
                .ok_or_else(|| missing("image", &spec.image))?
                .id
                .clone(),
        };
        world.promise(spec.resources.memory_mb)?;
        let view = SandboxView {
            id: id.clone(),
            state: State::Running,
            reason: None,
            limits: spec.resources.clone(),
            placeholders: spec
                .secrets
                .iter()
                .map(|grant| (grant.name.clone(), cove_model::secret::placeholder()))
                .collect(),
            spec,
            image,
            image_env: vec![
                ("FROM".into(), "image".into()),
                ("PATH".into(), "/image/bin".into()),
            ],
            image_user: None,
            image_workdir: Some("/image".into()),
            created_at: now,
            started_at: Some(now),
            set_aside: false,
        };
        let one = One {
            view: view.clone(),
            sample: empty_sample(now),
            head: from.map(|from| from.snapshot),
            changed: true,
            started_us: self.clock.boot_micros(),
        };
        world.sandboxes.insert(id.clone(), one);
        for state in [State::Creating, State::Running] {
            let kind = EventKind::State {
                state,
                reason: None,
            };
            push_event(&mut world, self.clock.as_ref(), &id, kind);
        }
        drop(world);
        self.changed.notify_waiters();
        Ok(view)
    }

    fn sample_now(&self, id: &SandboxId) -> Result<Sample, RunnerError> {
        let now = self.clock.now();
        let world = self.world();
        let one = world.sandboxes.get(id);
        let one = one.ok_or_else(|| missing("sandbox", id.as_str()))?;
        let since = self.clock.boot_micros().saturating_sub(one.started_us);
        Ok(Sample {
            at: now,
            boot_time: Some(reading(self.clock.as_ref())),
            running_us: one.sample.running.then_some(since),
            ..one.sample.clone()
        })
    }
}

impl World {
    /// Refuses what would not fit beside those that are awake.
    pub fn promise(&self, memory_mb: u64) -> Result<(), RunnerError> {
        let awake = self.sandboxes.values();
        let awake = awake.filter(|one| one.view.state.may_have_processes());
        let promised: u64 = awake.map(|one| one.view.limits.memory_mb).sum();
        match self.memory_mb {
            Some(limit) if promised + memory_mb > limit => Err(RunnerError::NoCapacity {
                resource: "memory".into(),
                message: format!("{promised} of {limit} MiB are promised"),
            }),
            _ => Ok(()),
        }
    }
}

pub(super) fn missing(what: &str, id: &str) -> RunnerError {
    RunnerError::NotFound {
        what: what.into(),
        id: id.into(),
    }
}

pub(super) fn push_event(world: &mut World, clock: &dyn Clock, id: &SandboxId, kind: EventKind) {
    let sequence = world.forgotten + world.events.len() as u64 + 1;
    world.events.push(Event {
        sequence,
        at: clock.now(),
        boot_time: Some(reading(clock)),
        sandbox: id.clone(),
        kind,
        restated: None,
    });
}

fn reading(clock: &dyn Clock) -> BootTime {
    BootTime {
        boot: clock.boot_id(),
        micros: clock.boot_micros(),
    }
}

fn empty_sample(at: OffsetDateTime) -> Sample {
    Sample {
        at,
        boot_time: None,
        running: true,
        running_us: None,
        cpu_usec: 0,
        memory_bytes: 0,
        memory_peak_bytes: 0,
        memory_limit_bytes: 0,
        pids: 1,
        oom_kills: 0,
        disk_bytes: 0,
        disk_limit_bytes: 0,
        network_sent_bytes: 0,
        network_received_bytes: 0,
    }
}

pub(super) fn answer<T>(lost: bool, outcome: Result<T, RunnerError>) -> Result<T, RunnerError> {
    if lost { Err(unreachable()) } else { outcome }
}
