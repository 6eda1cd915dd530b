//! The engine itself: what it is made of, how it opens and closes.

use async_recursion::async_recursion as boxed;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use cove_image::{FetchConfig, FetchProgram, ImageConfig, ImageStore, UnpackLimits, UnpackProgram};
use cove_isolation::slots::{Slot, Slots};
use cove_isolation::{Machine, OpenTier, TierHost, Usage};
use cove_model::{HostId, SandboxId};
use cove_network::{Denials, Network, NetworkConfig};
use cove_parser::Parser;
use cove_pool::{BackendChoice, Pool, PoolConfig, VolumeId};
use cove_protocol::client::{Connect, Guest, Stream};
use cove_runner_api::{GuestStream, RunnerError, Sample};
use futures_util::stream::{self, StreamExt};
use time::OffsetDateTime;
use tokio::task::spawn_blocking;

use crate::archive::key::Keys;
use crate::aside::Aside;
use crate::commitments::{Capacity, Commitments, total_memory};
use crate::config::EngineConfig;
use crate::data_volumes::DataVolumes;
use crate::error::{EngineError, from_isolation, from_pool, internal};
use crate::events::Events;
use crate::gateway::{self, Gatekeeper};
use crate::guard::Guard;
use crate::images::Images;
use crate::inherited::Counter;
use crate::record::{Record, Records};
use crate::sandbox::Sandbox;
use crate::snapshots::Snapshots;
use crate::tiers::Tiers;
use crate::volume_files::VolumeFiles;
use crate::{instance, monitor};

/// One host's sandboxes. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub config: EngineConfig,
    /// By which a database knows what is here.
    pub host: HostId,
    pub pool: Pool,
    pub images: Images,
    pub tiers: Tiers,
    /// Why sandboxes of this host can reach nothing, when that is so.
    pub network: Result<Arc<Network>, String>,
    /// Set when there is a network.
    pub gatekeeper: OnceLock<Arc<Gatekeeper>>,
    pub terminators: Arc<crate::secrets::Terminators>,
    pub visitors: Arc<crate::visitors::Visitors>,
    /// Refused packets, until somebody listens.
    denials: Mutex<Option<Denials>>,
    pub slots: Arc<Slots>,
    /// Its uids are those of the confined programs that read untrusted bytes.
    _confined: Slot,
    pub(crate) parser: Arc<Parser>,
    pub commitments: Arc<Commitments>,
    pub events: Arc<Events>,
    pub records: Records,
    pub snapshots: Arc<Snapshots>,
    pub keys: Keys,
    pub host_boot: String,
    pub disk_limits: bool,
    pub guard: Guard,
    pub counter: Counter,
    pub sandboxes: RwLock<HashMap<SandboxId, Arc<Sandbox>>>,
    pub data_volumes: DataVolumes,
    pub volume_files: VolumeFiles,
    pub aside: Aside<SandboxId>,
    /// Held by whoever changes what is set aside.
    pub aside_turn: tokio::sync::Mutex<()>,
}

impl Engine {
    /// Opens the data directory, adopts what runs and sweeps what was half made.
    /// Its sandboxes are held by `tiers`.
    #[boxed]
    pub async fn open(
        config: EngineConfig,
        tiers: Vec<Box<dyn OpenTier>>,
    ) -> Result<Self, EngineError> {
        // On a full disk nothing below could be written.
        crate::reserve::make_room(&config.data_dir);
        let inner = spawn_blocking(move || Inner::open(config, &tiers))
            .await
            .map_err(|error| EngineError::Io {
                action: "open",
                path: Default::default(),
                source: std::io::Error::other(error),
            })??;
        let engine = Self {
            inner: Arc::new(inner),
        };
        let denials = engine.inner.denials.lock().take();
        if let Some(denials) = denials {
            gateway::hear(&engine.inner, denials);
        }
        engine.adopt_all().await?;
        // What an engine before this one had to tell may have been lost with it.
        engine.inner.restate_all();
        engine.sweep().await?;
        engine.finish_rollbacks().await;
        Guard::start(&engine.inner);
        Counter::start(&engine.inner);
        Ok(engine)
    }

    /// Lets go of the host: what runs, runs on. With nothing left, claims on the host go too.
    #[boxed]
    pub async fn close(&self) {
        self.inner.guard.stop().await;
        self.inner.counter.stop().await;
        self.inner.volume_files.end_all().await;
        for sandbox in self.inner.all() {
            sandbox.stop_watching().await;
        }
        self.close_gateway(!self.inner.all().is_empty()).await;
        for tier in self.inner.tiers.all() {
            tier.close().await;
        }
        let inner = Arc::clone(&self.inner);
        let _ = spawn_blocking(move || {
            if let Ok(network) = &inner.network {
                network.close();
            }
            if inner.all().is_empty() {
                let _ = inner.slots.release();
            }
        })
        .await;
    }

    /// Deletes every sandbox, snapshot and volume, then detaches the pool: for tests and for removing an installation.
    #[boxed]
    pub async fn destroy(self) -> Result<(), EngineError> {
        let aside = self.inner.aside.all().into_iter().map(|(id, _)| id);
        let sandboxes = self
            .inner
            .all()
            .into_iter()
            .map(|sandbox| sandbox.id.clone());
        for id in sandboxes.chain(aside) {
            self.delete_sandbox(&id)
                .await
                .map_err(|error| EngineError::Io {
                    action: "delete",
                    path: id.as_str().into(),
                    source: std::io::Error::other(error),
                })?;
        }
        let snapshots = self.inner.snapshots.all();
        let aside = self.inner.snapshots.aside.all();
        let ids = snapshots.iter().map(|snapshot| &snapshot.record.id);
        for id in ids.chain(aside.iter().map(|(id, _)| id)) {
            self.remove_snapshot(id)
                .await
                .map_err(|error| EngineError::Io {
                    action: "delete",
                    path: id.as_str().into(),
                    source: std::io::Error::other(error),
                })?;
        }
        for volume in self.list_volumes().await.map_err(|error| EngineError::Io {
            action: "list",
            path: "volumes".into(),
            source: std::io::Error::other(error),
        })? {
            self.remove_volume(&volume.id)
                .await
                .map_err(|error| EngineError::Io {
                    action: "delete",
                    path: volume.id.as_str().into(),
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

    /// A client of a sandbox's guest, for embedders without privileges to protect: what the guest says is
    /// decoded in this process. The runner hands connections out instead.
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

    /// Has every tier prepare all that it keeps ready; benchmarks tell warm from cold by it.
    #[boxed]
    pub async fn warm_up(&self) {
        for tier in self.inner.tiers.all() {
            tier.warm_up().await;
        }
    }

    /// Gives back what is prepared and lets what is under way end, so that the next create is cold.
    #[boxed]
    pub async fn cool_down(&self) {
        for tier in self.inner.tiers.all() {
            tier.cool_down().await;
        }
    }

    pub(crate) async fn sample_sandbox(
        &self,
        sandbox: Arc<Sandbox>,
    ) -> Result<Sample, RunnerError> {
        let measured = self.inner.measure(&sandbox).await?;
        let (inner, volume) = (Arc::clone(&self.inner), sandbox.volume());
        let disk = spawn_blocking(move || inner.pool.usage(&volume)).await;
        let disk = disk.map_err(internal)?.map_err(from_pool)?;
        Ok(self.inner.sample(&measured, &disk))
    }

    /// Figures of all of them. One that is being deleted meanwhile has none any more.
    pub(crate) async fn sample_all(&self) -> Result<Vec<(SandboxId, Sample)>, RunnerError> {
        let inner = Arc::clone(&self.inner);
        let measured: Vec<_> = stream::iter(inner.all())
            .map(|sandbox| async move {
                let measured = self.inner.measure(&sandbox).await.ok()?;
                Some((sandbox, measured))
            })
            .buffered(MEASURED_AT_ONCE)
            .filter_map(std::future::ready)
            .collect()
            .await;
        let sampled = spawn_blocking(move || {
            let sample = |(sandbox, measured): (Arc<Sandbox>, Measured)| {
                let disk = inner.pool.usage(&sandbox.volume()).ok()?;
                Some((sandbox.id.clone(), inner.sample(&measured, &disk)))
            };
            measured.into_iter().filter_map(sample).collect()
        });
        sampled.await.map_err(internal)
    }
}

/// Machines whose figures are read at the same time.
const MEASURED_AT_ONCE: usize = 4;

/// A sandbox's record and its machine's figures, of about the same moment.
pub(crate) struct Measured {
    record: Record,
    running: bool,
    usage: Usage,
}

impl Inner {
    fn open(config: EngineConfig, tiers: &[Box<dyn OpenTier>]) -> Result<Self, EngineError> {
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
            Err(_) => return Err(EngineError::no_disk_limits(data_dir)),
        };
        let host_boot =
            instance::boot_id(&config.boot_id_file).map_err(at("read", &config.boot_id_file))?;
        let host = instance::host_id(data_dir).map_err(at("read the host's id in", data_dir))?;
        let instance = instance::name(data_dir).map_err(at("name the instance in", data_dir))?;
        let slots = Slots::open(&config.host_dir, &instance, data_dir)
            .map_err(at("claim uids in", &config.host_dir))?;
        // Before anything is made under the instance's name: an instance without a claim counts as dead.
        let confined = slots
            .take()
            .map_err(at("claim uids in", &config.host_dir))?
            .ok_or(EngineError::NoUidRange)?;
        let parser = Parser::new(cove_embedded::PARSER, confined.uid_base())
            .map_err(at("prepare the parser in", data_dir))?;
        let parser = Arc::new(parser);
        let gatekeeper = OnceLock::new();
        let mut denials = None;
        let network =
            open_network(&config, &instance, &gatekeeper, &mut denials).map_err(|error| {
                let reason = error.to_string();
                tracing::warn!(reason, "sandboxes have no network");
                reason
            });
        let tiers = Tiers::open(
            tiers,
            &TierHost {
                instance,
                data_dir: data_dir.clone(),
                pool_dir: pool.root().to_owned(),
                pool_device: device_below(pool.root()),
                host_dir: config.host_dir.clone(),
                slots: Arc::clone(&slots),
                cpu_book: Arc::default(),
                parser: Arc::clone(&parser),
                network: network.as_ref().ok().cloned(),
            },
        )?;
        let images = ImageStore::open(
            pool.clone(),
            ImageConfig {
                dir: data_dir.join("images"),
                host_cache: config.host_cache.clone(),
                default_registry: config.default_registry.clone(),
                plain_registries: config.plain_registries.clone(),
                unpack_uid_base: confined.uid_base(),
                limits: UnpackLimits::default(),
                unpack_program: Arc::new(
                    UnpackProgram::new(cove_embedded::UNPACK)
                        .map_err(at("prepare the unpacker in", data_dir))?,
                ),
                parser: Arc::clone(&parser),
                fetch: FetchConfig {
                    open_ranges: config.tenant_private_ranges.clone(),
                    ..FetchConfig::new(
                        FetchProgram::new(cove_embedded::FETCHER)
                            .map_err(at("prepare the fetcher in", data_dir))?,
                    )
                },
            },
        )?;
        let space = pool.space()?;
        let capacity = Capacity {
            cpus: tiers.cpus(),
            memory_bytes: total_memory(),
            disk_bytes: space.total,
        };
        let records_dir = data_dir.join("records");
        let snapshots_dir = data_dir.join("snapshots");
        let there = |volume: &VolumeId| !matches!(pool.exists(volume), Ok(false));
        let snapshots =
            Snapshots::open(snapshots_dir.clone(), there).map_err(at("open", &snapshots_dir))?;
        let commitments = Commitments::new(capacity, config.overcommit);
        let volumes_dir = data_dir.join("volumes");
        let data_volumes = DataVolumes::open(volumes_dir.clone(), &pool, disk_limits, &commitments)
            .map_err(at("open", &volumes_dir))?;
        Ok(Self {
            data_volumes,
            volume_files: VolumeFiles::default(),
            keys: Keys::open(data_dir, &config.trusted_keys)
                .map_err(at("open the signing key in", data_dir))?,
            snapshots: Arc::new(snapshots),
            records: Records::open(records_dir.clone()).map_err(at("open", &records_dir))?,
            host_boot: host_boot.clone(),
            commitments,
            events: Arc::new(
                Events::open(&data_dir.join("events"), host_boot.clone())
                    .map_err(at("number events in", data_dir))?,
            ),
            images: Images::new(images, config.import_dirs.clone()),
            sandboxes: RwLock::default(),
            aside: Aside::new("sandbox"),
            aside_turn: tokio::sync::Mutex::default(),
            _confined: confined,
            parser,
            disk_limits,
            guard: Guard::default(),
            counter: Counter::default(),
            tiers,
            network,
            terminators: Arc::new(crate::secrets::Terminators::new(&config)),
            gatekeeper,
            visitors: Arc::default(),
            denials: Mutex::new(denials),
            slots,
            pool,
            host,
            config,
        })
    }

    pub fn find(&self, id: &SandboxId) -> Result<Arc<Sandbox>, RunnerError> {
        self.aside.refuse(id)?;
        self.sandboxes
            .read()
            .get(id)
            .cloned()
            .ok_or_else(|| RunnerError::NotFound {
                what: "sandbox".into(),
                id: id.to_string(),
            })
    }

    pub fn all(&self) -> Vec<Arc<Sandbox>> {
        self.sandboxes.read().values().cloned().collect()
    }

    /// Tells how every sandbox is, for readers who missed something.
    pub(crate) fn restate_all(&self) {
        for sandbox in self.all() {
            sandbox.restate();
        }
    }

    /// As [`Self::insert`], for one that is new: refused when there are as many as there may be.
    pub(crate) fn admit(&self, sandbox: &Arc<Sandbox>) -> Result<bool, RunnerError> {
        let there = self.sandboxes.read().len();
        if there >= self.config.sandboxes_max {
            return Err(RunnerError::NoCapacity {
                resource: "sandboxes".into(),
                message: format!("there are {there}, and sandboxes_max allows no more"),
            });
        }
        Ok(self.insert(sandbox))
    }

    /// `false` when the id is taken.
    pub(crate) fn insert(&self, sandbox: &Arc<Sandbox>) -> bool {
        let mut sandboxes = self.sandboxes.write();
        match sandboxes.entry(sandbox.id.clone()) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(Arc::clone(sandbox));
                true
            }
        }
    }

    pub(crate) fn watch(&self, sandbox: &Arc<Sandbox>, machine: Arc<dyn Machine>) {
        sandbox.set_machine(Some(Arc::clone(&machine)));
        sandbox.set_monitor(tokio::spawn(monitor::run(
            Arc::clone(sandbox),
            machine,
            Arc::clone(&self.visitors),
        )));
    }

    async fn measure(&self, sandbox: &Sandbox) -> Result<Measured, RunnerError> {
        let (record, machine) = sandbox.record_and_machine();
        let usage = match &machine {
            Some(machine) => machine.usage().await.map_err(from_isolation)?,
            None => Usage::default(),
        };
        Ok(Measured {
            record,
            running: machine.is_some(),
            usage,
        })
    }

    fn sample(&self, measured: &Measured, disk: &cove_pool::Usage) -> Sample {
        let Measured {
            record,
            running,
            usage,
        } = measured;
        let limit_mb = record.grown_mb.unwrap_or(record.limits.memory_mb);
        // A record of another boot has no machine.
        let started = record.started_boot_us.filter(|_| *running);
        Sample {
            at: OffsetDateTime::now_utc(),
            running_us: started
                .map(|started| cove_runner_api::clock::boot_micros().saturating_sub(started)),
            boot_time: Some(cove_runner_api::clock::boot_time(&self.host_boot)),
            running: *running,
            cpu_usec: record.past_cpu_usec + usage.cpu_usec,
            memory_bytes: usage.memory_bytes,
            memory_peak_bytes: usage.memory_peak_bytes,
            memory_limit_bytes: limit_mb << 20,
            pids: usage.pids,
            oom_kills: record.past_oom_kills + usage.oom_kills,
            disk_bytes: disk.exclusive_bytes + record.inherited_bytes,
            disk_limit_bytes: disk
                .limit_bytes
                .map_or(0, |limit| limit + record.inherited_bytes),
            network_sent_bytes: record.past_network_sent_bytes + usage.network_sent_bytes,
            network_received_bytes: record.past_network_received_bytes
                + usage.network_received_bytes,
        }
    }
}

/// The network, and what decides about names and keeps the log. With any part missing there is none.
fn open_network(
    config: &EngineConfig,
    instance: &str,
    gatekeeper: &OnceLock<Arc<Gatekeeper>>,
    denials: &mut Option<Denials>,
) -> std::io::Result<Arc<Network>> {
    let network = Network::open(NetworkConfig {
        instance: instance.to_owned(),
        addresses: config.network_range,
    })?;
    let (keeper, ports) = Gatekeeper::open(&network, config, instance)?;
    for finding in keeper.preset_findings() {
        tracing::warn!(fix = finding.fix, "{}", finding.message);
    }
    *denials = Denials::open(instance)
        .inspect_err(|error| tracing::warn!(%error, "cannot log refused packets"))
        .ok();
    network.set_listeners(Some(ports), denials.as_ref().map(Denials::group))?;
    network.set_gate(Arc::clone(&keeper) as Arc<dyn cove_network::Gate>);
    let _ = gatekeeper.set(keeper);
    Ok(Arc::new(network))
}

struct GuestConnector {
    sandbox: Arc<Sandbox>,
}

#[async_trait::async_trait]
impl Connect for GuestConnector {
    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(Box::new(reach(&self.sandbox).await?))
    }
}

/// A connection to a sandbox's guest.
pub(crate) async fn reach(sandbox: &Sandbox) -> std::io::Result<GuestStream> {
    let machine = sandbox.machine().ok_or_else(|| {
        std::io::Error::new(
            std::io::ErrorKind::NotConnected,
            format!("the sandbox is {}", sandbox.state()),
        )
    })?;
    machine.connect().await
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
