//! The engine: opening, adopting, sweeping, and the operations on sandboxes.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cove_image::{Image, ImageConfig, ImageHold, ImageStore, UnpackLimits, UnpackProgram};
use cove_isolation::claims::{UidRange, UidRanges};
use cove_isolation::{Adopted, Boot, Isolation, IsolationError, Machine, Root};
use cove_isolation_container::{ContainerConfig, ContainerTier};
use cove_model::lifecycle::Step;
use cove_model::{
    EventKind, NetworkMode, Resources, ResourcesPatch, SandboxId, SandboxSpec, State,
};
use cove_pool::{BackendChoice, Kind, Pool, PoolConfig, VolumeId};
use cove_protocol::client::{Connect, Guest, Stream};
use cove_runner::{CreateRequest, RunnerError, Sample, SandboxView};
use time::OffsetDateTime;
use tokio::task::spawn_blocking;

use crate::books::{Books, Capacity, total_memory};
use crate::config::EngineConfig;
use crate::error::{EngineError, from_isolation, from_pool, internal};
use crate::events::Events;
use crate::images::Images;
use crate::record::{Durability, Record, Records};
use crate::sandbox::{Sandbox, volume_of};
use crate::{instance, monitor};

/// How long a machine may take to end after SIGKILL before the operation gives up on it.
const KILL_PATIENCE: Duration = Duration::from_secs(30);
/// What a guest may take beyond the grace time to end its processes and flush its files.
const STOP_MARGIN: Duration = Duration::from_secs(10);
/// The longest grace time that can be asked for.
const GRACE_MAX_MS: u64 = 10 * 60 * 1000;

/// One host's sandboxes. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub config: EngineConfig,
    pub pool: Pool,
    pub images: Images,
    pub container: ContainerTier,
    pub ranges: Arc<UidRanges>,
    /// Held for as long as images may be unpacked.
    _unpack_range: UidRange,
    pub books: Arc<Books>,
    pub events: Arc<Events>,
    records: Records,
    host_boot: String,
    disk_limits: bool,
    sandboxes: RwLock<HashMap<SandboxId, Arc<Sandbox>>>,
}

impl Engine {
    /// Opens the data directory, adopts what runs and sweeps what was half made.
    pub async fn open(config: EngineConfig) -> Result<Self, EngineError> {
        let inner = spawn_blocking(move || Inner::open(config))
            .await
            .map_err(|error| EngineError::Io {
                action: "open",
                path: Default::default(),
                source: std::io::Error::other(error),
            })??;
        let engine = Self {
            inner: Arc::new(inner),
        };
        engine.adopt_all().await?;
        engine.sweep().await?;
        Ok(engine)
    }

    async fn adopt_all(&self) -> Result<(), EngineError> {
        let inner = &self.inner;
        let records = inner.records.load().map_err(|source| EngineError::Io {
            action: "read records in",
            path: inner.config.data_dir.join("records"),
            source,
        })?;
        for record in records {
            let half_made = record.state == State::Creating
                && record.started_at.is_none()
                && record.host_boot == inner.host_boot;
            if half_made || record.state == State::Deleting {
                // Its volume and cgroup have no owner now, and the sweep takes them.
                let _ = inner.records.remove(&record.id);
                continue;
            }
            self.adopt(record).await?;
        }
        Ok(())
    }

    async fn adopt(&self, mut record: Record) -> Result<(), EngineError> {
        let inner = &self.inner;
        let found = match &record.machine {
            Some(machine) => inner.container.adopt(machine).await?,
            None => Adopted::Gone(None),
        };
        let same_boot = record.host_boot == inner.host_boot;
        record.host_boot.clone_from(&inner.host_boot);
        let machine = match found {
            Adopted::Running(machine) => Some(Arc::<dyn Machine>::from(machine)),
            Adopted::Gone(usage) => {
                record.machine = None;
                record.grown_mb = None;
                if let Some(usage) = usage {
                    monitor::add_past(&mut record, &usage);
                }
                if record.state.may_have_processes() {
                    record.state = State::Stopped;
                    let reason = if same_boot {
                        "PID 1 ended while the engine was down"
                    } else {
                        "the host restarted"
                    };
                    record.reason = Some(reason.into());
                }
                None
            }
        };
        let disk = record.limits.disk_mb << 20;
        let run = machine.as_ref().map(|_| {
            let memory = record.grown_mb.unwrap_or(record.limits.memory_mb);
            inner.books.adopt_run(&record.limits, memory)
        });
        let sandbox = Arc::new(Sandbox::new(
            record,
            Arc::clone(&inner.events),
            inner.records.clone(),
        ));
        let _ = sandbox.update(Durability::Written, |_| {});
        *sandbox
            .disk_promise
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(inner.books.adopt_disk(disk));
        *sandbox
            .run_promise
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = run;
        inner.insert(&sandbox);
        if let Some(machine) = machine {
            sandbox.emit(EventKind::Adopted);
            if sandbox.state() == State::Stopping {
                // The stop was accepted; nobody waits for its grace time any more.
                let _ = machine.kill();
            }
            inner.watch(&sandbox, machine);
        }
        Ok(())
    }

    /// Removes every leftover of this engine that no sandbox owns. Only safe before serving.
    async fn sweep(&self) -> Result<(), EngineError> {
        let groups = self.inner.container.sweep().await?;
        let inner = Arc::clone(&self.inner);
        let volumes = spawn_blocking(move || {
            let known = inner
                .sandboxes
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            inner.pool.sweep(&|id: &VolumeId| match id.kind() {
                Kind::Sandbox => id
                    .name()
                    .parse()
                    .is_ok_and(|id: SandboxId| known.contains_key(&id)),
                // Images have records of their own and are swept by them.
                Kind::Image | Kind::Snapshot => true,
                Kind::Staging => false,
            })
        })
        .await;
        self.inner.images.store.sweep().await?;
        tracing::info!(groups, ?volumes, "swept");
        Ok(())
    }

    /// Lets go of the host: what runs, runs on. With nothing left, claims on the host go too.
    pub async fn close(&self) {
        self.inner.container.close().await;
        if self.inner.all().is_empty() {
            let _ = self.inner.ranges.release();
        }
    }

    /// Deletes every sandbox, then detaches the pool: for tests and for removing an installation.
    pub async fn destroy(self) -> Result<(), EngineError> {
        for sandbox in self.inner.all() {
            self.delete_sandbox(&sandbox.id)
                .await
                .map_err(|error| EngineError::Io {
                    action: "delete",
                    path: sandbox.id.as_str().into(),
                    source: std::io::Error::other(error),
                })?;
        }
        self.close().await;
        let pool = self.inner.pool.clone();
        drop(self);
        spawn_blocking(move || pool.close())
            .await
            .map_err(|error| EngineError::Io {
                action: "close",
                path: Default::default(),
                source: std::io::Error::other(error),
            })?
            .map_err(EngineError::Pool)
    }

    /// A client of a sandbox's guest, for embedders.
    pub fn guest(&self, id: &SandboxId) -> Result<Guest, RunnerError> {
        Ok(Guest::new(Arc::new(GuestConnector {
            sandbox: self.inner.find(id)?,
        })))
    }

    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    pub fn images(&self) -> &ImageStore {
        &self.inner.images.store
    }

    /// Fills the pool of prepared seats; benchmarks tell warm from cold by it.
    pub async fn warm_up(&self) {
        self.inner.container.warm_up().await;
    }

    /// Gives the prepared seats back and lets a refill under way end, so that the next create is cold.
    pub async fn cool_down(&self) {
        self.inner.container.cool_down().await;
    }

    pub fn warm_seats(&self) -> usize {
        self.inner.container.warm_seats()
    }

    pub(crate) async fn create_sandbox(
        &self,
        request: CreateRequest,
    ) -> Result<SandboxView, RunnerError> {
        let CreateRequest { id, spec } = request;
        self.inner.check_spec(&spec)?;
        let (image, hold) = self.inner.hold_image(&spec.image)?;
        let disk = self
            .inner
            .books
            .promise_disk(spec.resources.disk_mb << 20)?;
        let run = self.inner.books.promise_run(&spec.resources)?;
        let record = Record {
            id: id.clone(),
            state: State::Creating,
            reason: None,
            limits: spec.resources.clone(),
            grown_mb: None,
            image: image.id.clone(),
            image_env: image.config.env.clone(),
            image_user: image.config.user.clone(),
            image_workdir: image.config.workdir.clone(),
            created_at: OffsetDateTime::now_utc(),
            started_at: None,
            machine: None,
            host_boot: self.inner.host_boot.clone(),
            past_cpu_usec: 0,
            past_oom_kills: 0,
            spec,
        };
        let sandbox = Arc::new(Sandbox::new(
            record.clone(),
            Arc::clone(&self.inner.events),
            self.inner.records.clone(),
        ));
        *sandbox
            .disk_promise
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(disk);
        *sandbox
            .run_promise
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(run);
        if !self.inner.insert(&sandbox) {
            return Err(RunnerError::AlreadyExists {
                what: "sandbox".into(),
                id: id.to_string(),
            });
        }
        // A caller that goes away must not leave a half-made sandbox behind: the work has its own task.
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            let records = engine.inner.records.clone();
            let written = spawn_blocking(move || records.write(&record, Durability::Flushed));
            let (booted, written) = tokio::join!(engine.inner.boot(&sandbox, &image), written);
            drop(hold);
            let written = match written {
                Ok(result) => {
                    result.map_err(|error| internal(format!("write the sandbox's record: {error}")))
                }
                Err(error) => Err(internal(error)),
            };
            match (booted, written) {
                (Ok(machine), Ok(())) => engine.inner.booted(&sandbox, machine),
                (booted, written) => {
                    let error = match (&booted, written) {
                        (_, Err(error)) => error,
                        (Err(error), Ok(())) => error.clone(),
                        (Ok(_), Ok(())) => unreachable!("matched above"),
                    };
                    if let Ok(machine) = booted {
                        end(machine.as_ref()).await;
                    }
                    engine.inner.forget(&sandbox).await;
                    Err(error)
                }
            }
        });
        task.await.map_err(internal)?
    }

    pub(crate) async fn start_sandbox(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let sandbox = self.inner.find(id)?;
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            sandbox.check(Step::Start)?;
            let record = sandbox.record();
            let image = engine
                .inner
                .images
                .store
                .get(&record.image)
                .ok_or_else(|| RunnerError::NotFound {
                    what: "image".into(),
                    id: record.image.to_string(),
                })?;
            let run = engine.inner.books.promise_run(&record.limits)?;
            *sandbox
                .run_promise
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(run);
            sandbox.advance(Step::Start, None, Durability::Written, |_| {})?;
            match engine.inner.boot(&sandbox, &image).await {
                Ok(machine) => engine.inner.booted(&sandbox, machine),
                Err(error) => {
                    sandbox
                        .run_promise
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .take();
                    sandbox.advance(
                        Step::BootFailed,
                        Some(error.to_string()),
                        Durability::Written,
                        |_| {},
                    )?;
                    Err(error)
                }
            }
        });
        task.await.map_err(internal)?
    }

    pub(crate) async fn stop_sandbox(
        &self,
        id: &SandboxId,
        grace_ms: u64,
    ) -> Result<SandboxView, RunnerError> {
        let sandbox = self.inner.find(id)?;
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            sandbox.check(Step::Stop)?;
            sandbox.advance(
                Step::Stop,
                Some("stopped on request".into()),
                Durability::Written,
                |_| {},
            )?;
            let mut state = sandbox.watch_state();
            if let Some(machine) = sandbox.machine() {
                let grace = Duration::from_millis(grace_ms.min(GRACE_MAX_MS));
                if let Err(error) =
                    tokio::time::timeout(grace + STOP_MARGIN, shut_down(&sandbox, grace)).await
                {
                    tracing::debug!(sandbox = %sandbox.id, %error, "the guest did not end in time");
                }
                // Whatever the guest said, PID 1 goes now.
                machine
                    .kill()
                    .map_err(|error| internal(format!("end PID 1: {error}")))?;
            }
            wait_until(&mut state, |state| state == State::Stopped).await?;
            Ok(sandbox.view())
        });
        task.await.map_err(internal)?
    }

    pub(crate) async fn delete_sandbox(&self, id: &SandboxId) -> Result<(), RunnerError> {
        let Ok(sandbox) = self.inner.find(id) else {
            return Ok(());
        };
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            if sandbox.state() == State::Gone {
                return Ok(());
            }
            sandbox.advance(Step::Delete, None, Durability::Written, |_| {})?;
            if let Some(machine) = sandbox.machine() {
                machine
                    .kill()
                    .map_err(|error| internal(format!("end PID 1: {error}")))?;
                let ended = async {
                    machine.exited().await;
                    while sandbox.machine().is_some() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                tokio::time::timeout(KILL_PATIENCE, ended)
                    .await
                    .map_err(|_| internal("the sandbox's processes did not end after SIGKILL"))?;
            }
            engine.inner.remove_traces(&sandbox).await?;
            sandbox.advance(Step::Deleted, None, Durability::Written, |_| {})?;
            Ok(())
        });
        task.await.map_err(internal)?
    }

    pub(crate) async fn resize_sandbox(
        &self,
        id: &SandboxId,
        patch: ResourcesPatch,
    ) -> Result<SandboxView, RunnerError> {
        let sandbox = self.inner.find(id)?;
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            engine.inner.resize(&sandbox, &patch).await
        });
        task.await.map_err(internal)?
    }

    pub(crate) async fn sample_sandbox(
        &self,
        sandbox: Arc<Sandbox>,
    ) -> Result<Sample, RunnerError> {
        let inner = Arc::clone(&self.inner);
        spawn_blocking(move || inner.sample(&sandbox))
            .await
            .map_err(internal)?
    }
}

impl Inner {
    fn open(config: EngineConfig) -> Result<Self, EngineError> {
        let at = |action, path: &Path| {
            let path = path.to_owned();
            move |source| EngineError::Io {
                action,
                path,
                source,
            }
        };
        let data_dir = &config.data_dir;
        fs::create_dir_all(data_dir).map_err(at("make", data_dir))?;
        fs::set_permissions(data_dir, fs::Permissions::from_mode(0o700))
            .map_err(at("protect", data_dir))?;
        let pool = Pool::open(PoolConfig {
            dir: data_dir.clone(),
            backend: config.backend,
            loop_size_bytes: config.pool_bytes,
            reserve_bytes: config.reserve_bytes,
        })?;
        let disk_limits = match pool.limits() {
            Ok(()) => true,
            Err(_) if config.backend == BackendChoice::Directory => false,
            Err(error) => return Err(error.into()),
        };
        let instance = instance::name(data_dir).map_err(at("name the instance in", data_dir))?;
        let ranges = UidRanges::open(&config.host_dir.join("uids"), &instance, data_dir)
            .map_err(at("claim uids in", &config.host_dir))?;
        let container = ContainerTier::open(
            ContainerConfig {
                instance,
                runtime_dir: data_dir.join("runtime"),
                base_dir: pool.root().join("base"),
                host_dir: config.host_dir.clone(),
                warm: config.warm,
                device: device_below(pool.root()),
                handing: Default::default(),
            },
            Arc::clone(&ranges),
        )?;
        let unpack_range = ranges
            .take()
            .map_err(at("claim uids in", &config.host_dir))?
            .ok_or(EngineError::NoUidRange)?;
        let images = ImageStore::open(
            pool.clone(),
            ImageConfig {
                dir: data_dir.join("images"),
                host_cache: config.host_cache.clone(),
                default_registry: config.default_registry.clone(),
                plain_registries: config.plain_registries.clone(),
                unpack_uid_base: unpack_range.base(),
                limits: UnpackLimits::default(),
                unpack_program: Arc::new(
                    UnpackProgram::new(cove_embedded::UNPACK)
                        .map_err(at("prepare the unpacker in", data_dir))?,
                ),
            },
        )?;
        let space = pool.space()?;
        let capacity = Capacity {
            cpus: container.cpu_count(),
            memory_bytes: total_memory(),
            disk_bytes: space.total,
        };
        let records_dir = data_dir.join("records");
        Ok(Self {
            records: Records::open(records_dir.clone()).map_err(at("open", &records_dir))?,
            host_boot: instance::boot_id().map_err(at("read the boot id for", data_dir))?,
            books: Books::new(capacity, config.overcommit),
            events: Arc::new(Events::new()),
            images: Images::new(images),
            sandboxes: RwLock::default(),
            _unpack_range: unpack_range,
            disk_limits,
            container,
            ranges,
            pool,
            config,
        })
    }

    fn check_spec(&self, spec: &SandboxSpec) -> Result<(), RunnerError> {
        spec.check().map_err(|error| RunnerError::Invalid {
            message: error.to_string(),
        })?;
        if spec.isolation != self.container.name() {
            let message = format!(
                "there is no isolation tier '{}' on this host; it has: {}",
                spec.isolation,
                self.container.name()
            );
            return Err(RunnerError::Unsupported { message });
        }
        if spec.network.mode != NetworkMode::None {
            let message = "only the network mode 'none' can be enforced by this version".into();
            return Err(RunnerError::Unsupported { message });
        }
        if spec.network.allow.is_some() {
            return Err(RunnerError::Invalid {
                message: "network.allow only makes sense with the mode 'allowlist'".into(),
            });
        }
        Ok(())
    }

    fn hold_image(&self, name: &str) -> Result<(Image, ImageHold), RunnerError> {
        self.images
            .store
            .resolve(name)
            .and_then(|image| Some((image.clone(), self.images.store.hold(&image.id)?)))
            .ok_or_else(|| RunnerError::NotFound {
                what: "image".into(),
                id: name.to_owned(),
            })
    }

    pub fn find(&self, id: &SandboxId) -> Result<Arc<Sandbox>, RunnerError> {
        self.sandboxes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(id)
            .cloned()
            .ok_or_else(|| RunnerError::NotFound {
                what: "sandbox".into(),
                id: id.to_string(),
            })
    }

    pub fn all(&self) -> Vec<Arc<Sandbox>> {
        self.sandboxes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    /// `false` when the id is taken.
    fn insert(&self, sandbox: &Arc<Sandbox>) -> bool {
        let mut sandboxes = self
            .sandboxes
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        match sandboxes.entry(sandbox.id.clone()) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(Arc::clone(sandbox));
                true
            }
        }
    }

    async fn boot(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        image: &Image,
    ) -> Result<Box<dyn Machine>, RunnerError> {
        let record = sandbox.record();
        let (inner, volume) = (Arc::clone(self), sandbox.volume());
        let image_root = self.images.store.root(image);
        let disk = record.limits.disk_mb << 20;
        let root = async move {
            spawn_blocking(move || {
                inner.ready_volume(&volume, disk).map(|volume| Root {
                    image: image_root,
                    volume,
                })
            })
            .await
            .map_err(|error| {
                IsolationError::failed("make the volume")(std::io::Error::other(error))
            })?
            .map_err(|error| {
                IsolationError::failed("make the volume")(std::io::Error::other(error))
            })
        };
        let boot = Boot {
            id: sandbox.id.clone(),
            hostname: record
                .spec
                .name
                .clone()
                .unwrap_or_else(|| sandbox.id.as_str().replace('_', "-")),
            limits: record.limits.clone(),
            no_new_privs: record.spec.no_new_privs,
            root: Box::pin(root),
        };
        self.container.boot(boot).await.map_err(from_isolation)
    }

    /// The volume of a sandbox, made when it is new or was lost before it was ever flushed.
    fn ready_volume(
        &self,
        volume: &VolumeId,
        disk_bytes: u64,
    ) -> Result<std::path::PathBuf, cove_pool::PoolError> {
        if !self.pool.exists(volume)? {
            self.pool.create(volume)?;
            if self.disk_limits {
                self.pool.set_limit(volume, Some(disk_bytes))?;
            }
        }
        Ok(self.pool.path(volume))
    }

    fn booted(
        &self,
        sandbox: &Arc<Sandbox>,
        machine: Box<dyn Machine>,
    ) -> Result<SandboxView, RunnerError> {
        let machine: Arc<dyn Machine> = Arc::from(machine);
        let record = machine.record();
        self.watch(sandbox, machine);
        sandbox.advance(Step::Booted, None, Durability::Written, |entry| {
            entry.machine = Some(record);
            entry.started_at = Some(OffsetDateTime::now_utc());
        })?;
        Ok(sandbox.view())
    }

    fn watch(&self, sandbox: &Arc<Sandbox>, machine: Arc<dyn Machine>) {
        sandbox.set_machine(Some(Arc::clone(&machine)));
        tokio::spawn(monitor::run(Arc::clone(sandbox), machine));
    }

    /// Undoes a create that failed.
    async fn forget(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        if let Err(error) = self.remove_traces(sandbox).await {
            tracing::warn!(sandbox = %sandbox.id, %error, "a failed create left something for the next sweep");
        }
    }

    async fn remove_traces(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<(), RunnerError> {
        let (inner, id) = (Arc::clone(self), sandbox.id.clone());
        spawn_blocking(move || {
            inner.pool.delete(&volume_of(&id)).map_err(from_pool)?;
            inner
                .records
                .remove(&id)
                .map_err(|error| internal(format!("remove the sandbox's record: {error}")))
        })
        .await
        .map_err(internal)??;
        self.sandboxes
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&sandbox.id);
        sandbox
            .run_promise
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        sandbox
            .disk_promise
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        Ok(())
    }

    async fn resize(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        patch: &ResourcesPatch,
    ) -> Result<SandboxView, RunnerError> {
        let record = sandbox.record();
        let old = record.limits;
        let new = patch.apply(&old).map_err(|error| RunnerError::Invalid {
            message: error.to_string(),
        })?;
        if new.visible_cpus() > self.container.cpu_count() {
            let message = format!(
                "{} CPUs were asked for and this host has {}",
                new.cpu,
                self.container.cpu_count()
            );
            return Err(RunnerError::Unsupported { message });
        }
        // What memory has grown to stays, unless the change is about just that.
        let old_memory_mb = record.grown_mb.unwrap_or(old.memory_mb);
        let memory_mb = match patch.memory_mb {
            Some(memory_mb) => memory_mb,
            None => old_memory_mb.clamp(new.memory_mb, new.memory_ceiling_mb()),
        };
        // Disk first: it can be refused, and is put back when a later step is.
        let disk_changed = new.disk_mb != old.disk_mb;
        if disk_changed {
            self.promise_disk(sandbox, new.disk_mb)?;
            if let Err(error) = self.set_disk(sandbox, new.disk_mb).await {
                self.promise_disk(sandbox, old.disk_mb)?;
                return Err(error);
            }
        }
        let running = self.resize_running(sandbox, (&new, memory_mb), (&old, old_memory_mb));
        if running.is_err() && disk_changed {
            self.set_disk(sandbox, old.disk_mb).await?;
            self.promise_disk(sandbox, old.disk_mb)?;
        }
        running?;
        let machine = sandbox.machine().map(|machine| machine.record());
        sandbox.update(Durability::Flushed, |record| {
            record.limits = new.clone();
            record.grown_mb =
                (machine.is_some() && memory_mb != new.memory_mb).then_some(memory_mb);
            if machine.is_some() {
                record.machine = machine;
            }
        })?;
        sandbox.emit(EventKind::Resized);
        Ok(sandbox.view())
    }

    fn resize_running(
        &self,
        sandbox: &Sandbox,
        (new, memory_mb): (&Resources, u64),
        (old, old_memory_mb): (&Resources, u64),
    ) -> Result<(), RunnerError> {
        let Some(machine) = sandbox.machine() else {
            return Ok(());
        };
        let mut promise = sandbox
            .run_promise
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(promise) = promise.as_mut() {
            promise.change(new.cpu, memory_mb)?;
        }
        machine.resize(new, memory_mb).map_err(|error| {
            if let Some(promise) = promise.as_mut() {
                // Going back to what was promised before; a smaller promise cannot be refused.
                let _ = promise.change(old.cpu, old_memory_mb);
            }
            from_isolation(error)
        })
    }

    fn promise_disk(&self, sandbox: &Sandbox, disk_mb: u64) -> Result<(), RunnerError> {
        let mut promise = sandbox
            .disk_promise
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match promise.as_mut() {
            Some(promise) => promise.change(disk_mb << 20),
            None => Ok(()),
        }
    }

    async fn set_disk(
        self: &Arc<Self>,
        sandbox: &Sandbox,
        disk_mb: u64,
    ) -> Result<(), RunnerError> {
        if !self.disk_limits {
            return Err(RunnerError::Unsupported {
                message: "the pool of this host cannot limit disks".into(),
            });
        }
        let (inner, volume) = (Arc::clone(self), sandbox.volume());
        spawn_blocking(move || {
            inner
                .pool
                .set_limit(&volume, Some(disk_mb << 20))
                .map_err(from_pool)
        })
        .await
        .map_err(internal)?
    }

    pub fn sample(&self, sandbox: &Sandbox) -> Result<Sample, RunnerError> {
        let record = sandbox.record();
        let machine = sandbox.machine();
        let usage = match &machine {
            Some(machine) => machine.usage().map_err(from_isolation)?,
            None => Default::default(),
        };
        let disk = self.pool.usage(&sandbox.volume()).map_err(from_pool)?;
        let limit_mb = record.grown_mb.unwrap_or(record.limits.memory_mb);
        Ok(Sample {
            at: OffsetDateTime::now_utc(),
            running: machine.is_some(),
            cpu_usec: record.past_cpu_usec + usage.cpu_usec,
            memory_bytes: usage.memory_bytes,
            memory_peak_bytes: usage.memory_peak_bytes,
            memory_limit_bytes: limit_mb << 20,
            pids: usage.pids,
            oom_kills: record.past_oom_kills + usage.oom_kills,
            disk_bytes: disk.exclusive_bytes,
            disk_limit_bytes: disk.limit_bytes.unwrap_or(0),
            network_sent_bytes: 0,
            network_received_bytes: 0,
        })
    }
}

struct GuestConnector {
    sandbox: Arc<Sandbox>,
}

#[async_trait::async_trait]
impl Connect for GuestConnector {
    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        let machine = self.sandbox.machine().ok_or_else(|| {
            std::io::Error::new(
                std::io::ErrorKind::NotConnected,
                format!("the sandbox is {}", self.sandbox.state()),
            )
        })?;
        Ok(Box::new(machine.connect().await?))
    }
}

async fn shut_down(sandbox: &Arc<Sandbox>, grace: Duration) {
    let guest = Guest::new(Arc::new(GuestConnector {
        sandbox: Arc::clone(sandbox),
    }));
    if let Err(error) = guest.shutdown(grace).await {
        tracing::debug!(sandbox = %sandbox.id, %error, "the guest did not shut down by itself");
    }
}

/// Ends a machine that nobody will own.
async fn end(machine: &dyn Machine) {
    let ended = async {
        machine
            .kill()
            .map_err(IsolationError::failed("end PID 1"))?;
        machine.exited().await;
        machine.dispose().await
    };
    match tokio::time::timeout(KILL_PATIENCE, ended).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "a machine stays until the next sweep"),
        Err(_) => tracing::warn!("a machine did not end after SIGKILL"),
    }
}

async fn wait_until(
    state: &mut tokio::sync::watch::Receiver<State>,
    wanted: impl Fn(State) -> bool,
) -> Result<(), RunnerError> {
    match tokio::time::timeout(KILL_PATIENCE, state.wait_for(|state| wanted(*state))).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(internal(
            "the sandbox's processes did not end after SIGKILL",
        )),
    }
}

/// The block device a path's filesystem lies on, when it has one of its own.
fn device_below(path: &Path) -> Option<(u32, u32)> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let wanted = path.to_str()?;
    let source = mounts
        .lines()
        .filter_map(|line| line.split_once(" - "))
        .filter(|(mount, _)| mount.split(' ').nth(4) == Some(wanted))
        .find_map(|(_, rest)| rest.split(' ').nth(1))?;
    let metadata = fs::metadata(source).ok()?;
    let device = metadata.rdev();
    metadata
        .file_type()
        .is_block_device()
        .then(|| (rustix::fs::major(device), rustix::fs::minor(device)))
}
