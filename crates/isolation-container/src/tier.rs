//! The tier as the engine sees it: what it can do here, and where each part of its work is.

mod boot;
mod found;
mod probe;
mod revive;
mod warm;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use async_trait::async_trait;
use cove_criu::Program;
use cove_isolation::slots;
use cove_isolation::{
    Adopted, Boot, Capabilities, Isolation, IsolationError, Limit, Limits, Machine, MachineRecord,
    Needs, OpenTier, Placed, Restore, Root, TierHost, Warm,
};
use cove_runner_api::Finding;
use tokio::task::spawn_blocking;

use crate::capturer::Capturer;
use crate::cgroup::Cgroups;
use crate::cpus::CpuBook;
use crate::guest_program;
use crate::machine::{Detail, TIER};
use crate::oom::{self, OomOrder, Watch};
use crate::overlay::{Handing, Overlays};
use crate::retired::Retired;
use crate::rootfs;
use crate::seat::{Seat, SeatMaker};
use crate::shown::Cpuinfo;
use crate::spawner::Spawner;

/// Of the thread that watches OOM scores.
const WATCH_NICENESS: i32 = -20;

/// How many seats wait ready by default: enough for a burst of one agent's forks, little memory.
const DEFAULT_WARM: usize = 4;
/// Where the guest program lies in the engine's directory; survives restarts, because running guests were
/// started from it.
const RUNTIME: &str = "runtime";
/// The layer with device nodes and mount points, in the pool.
const BASE: &str = "base";

/// What an operator chooses for containers.
#[derive(Debug, Clone)]
pub struct ContainerConfig {
    /// Seats kept ready. 0: every boot is cold.
    pub warm: usize,
    /// The CRIU program that captures memory; where none is named it is looked for.
    pub criu: Option<PathBuf>,
    /// How the layers of a root reach the kernel.
    pub handing: Handing,
    /// The program that runs as PID 1 in new machines. Those that run already keep theirs.
    pub guest: &'static [u8],
}

impl Default for ContainerConfig {
    fn default() -> Self {
        Self {
            warm: DEFAULT_WARM,
            criu: None,
            handing: Handing::default(),
            guest: cove_embedded::GUEST,
        }
    }
}

impl OpenTier for ContainerConfig {
    fn open(&self, host: &TierHost) -> Result<Arc<dyn Isolation>, IsolationError> {
        Ok(Arc::new(ContainerTier::open(self.clone(), host)?))
    }
}

pub struct ContainerTier {
    shared: Arc<Shared>,
}

struct Shared {
    config: ContainerConfig,
    host: TierHost,
    runtime_dir: PathBuf,
    base_dir: PathBuf,
    maker: SeatMaker,
    cgroups: Arc<Cgroups>,
    overlays: Overlays,
    cpus: Arc<CpuBook>,
    capturer: Arc<Capturer>,
    retired: Arc<Retired>,
    probed: probe::Probed,
    cpuinfo: Cpuinfo,
    warm: Mutex<VecDeque<Seat>>,
    /// Held while seats are made ahead; one refill at a time.
    refill: Mutex<()>,
    closed: AtomicBool,
    /// Whether boots leave the pool as it is.
    cool: AtomicBool,
}

impl ContainerTier {
    /// Sets up what all sandboxes share. Blocking; call it before serving.
    pub fn open(config: ContainerConfig, host: &TierHost) -> Result<Self, IsolationError> {
        let (runtime_dir, base_dir) = (host.data_dir.join(RUNTIME), host.pool_dir.join(BASE));
        let cgroups = Arc::new(Cgroups::open(&format!("cove-{}", host.instance))?);
        let cpus = cgroups
            .cpus()
            .map_err(IsolationError::failed("read the host's CPUs"))?;
        let guest_dir = guest_program::install(&runtime_dir, config.guest)
            .map_err(IsolationError::failed("install the guest"))?;
        let staging = staging(&host.host_dir)
            .map_err(IsolationError::failed("make the staging directory"))?;
        rootfs::make_base(&base_dir).map_err(IsolationError::failed("make the base layer"))?;
        let program = Program::find(config.criu.as_deref());
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut paths = vec![text(&runtime_dir), text(&staging)];
        paths.extend(program.iter().map(|program| text(&program.path)));
        let spawner = Spawner::start(paths).map_err(IsolationError::failed("start the spawner"))?;
        let spawner = Arc::new(spawner);
        let capturer = Arc::new(Capturer::new(
            program,
            Arc::clone(&spawner),
            Arc::clone(&host.parser),
            runtime_dir.clone(),
            guest_dir
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default(),
            text(&staging),
            cgroups.version(),
        ));
        let maker = SeatMaker {
            spawner,
            cgroups: Arc::clone(&cgroups),
            slots: Arc::clone(&host.slots),
            guest_dir: guest_dir.to_string_lossy().into_owned(),
            staging: staging.to_string_lossy().into_owned(),
            network: host.network.clone(),
        };
        let shared = Shared {
            overlays: Overlays::open(config.handing, &staging)
                .map_err(IsolationError::failed("find out how to mount overlays"))?,
            maker,
            cgroups,
            cpus: Arc::new(CpuBook::new(cpus)),
            capturer,
            retired: Arc::default(),
            probed: probe::Probed::default(),
            cpuinfo: Cpuinfo::read().map_err(IsolationError::failed("read cpuinfo"))?,
            warm: Mutex::default(),
            refill: Mutex::default(),
            closed: AtomicBool::new(false),
            cool: AtomicBool::new(false),
            host: host.clone(),
            runtime_dir,
            base_dir,
            config,
        };
        let shared = Arc::new(shared);
        if !OomOrder::of_this_host().pinned {
            watch_scores(&shared).map_err(IsolationError::failed("watch OOM scores"))?;
        }
        Ok(Self { shared })
    }

    /// Which version of cgroups limits the sandboxes.
    pub(crate) fn cgroup_version(&self) -> u8 {
        self.shared.cgroups.version()
    }
}

impl Shared {
    fn capabilities(&self) -> Capabilities {
        let io = |possible: Result<(), &str>| match (self.host.pool_device, possible) {
            (_, Err(reason)) => Limit::Refused(reason.into()),
            (None, _) => {
                Limit::Refused("I/O limits need a pool on a block device of its own".into())
            }
            (Some(_), Ok(())) => Limit::Enforced {
                most: None,
                live: false,
            },
        };
        let writing = match self.cgroups.version() {
            1 => Err(
                "io_write_mb_s needs cgroup version 2: version 1 cannot tell who caused buffered writes",
            ),
            _ => Ok(()),
        };
        let open_files = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        Capabilities {
            limits: Limits {
                cpu: Limit::Enforced {
                    most: Some(u64::from(self.cpus.count())),
                    live: true,
                },
                memory: Limit::LIVE,
                memory_max: Limit::LIVE,
                // By the quota of its volume.
                disk: Limit::LIVE,
                pids: Limit::LIVE,
                open_files: Limit::Enforced {
                    most: open_files,
                    live: false,
                },
                io_read: io(Ok(())),
                io_write: io(writing),
            },
            no_new_privs: true,
            memory: self.capturer.program().is_ok(),
            volumes: true,
        }
    }
}

#[async_trait]
impl Isolation for ContainerTier {
    fn name(&self) -> &'static str {
        TIER
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities()
    }

    fn trees(&self, root: &Root) -> Result<Vec<PathBuf>, IsolationError> {
        rootfs::trees(root).map_err(IsolationError::failed("look at the disk"))
    }

    fn placed(&self, record: &MachineRecord) -> Option<Placed> {
        let detail: Detail = serde_json::from_value(record.detail.clone()).ok()?;
        Some(Placed {
            index: slots::number_of_uids(detail.uid_base),
            sandbox: detail.sandbox?,
            policy: detail.network,
        })
    }

    async fn findings(&self) -> Vec<Finding> {
        crate::findings::of(self).await
    }

    async fn restore(&self, restore: Restore) -> Result<Box<dyn Machine>, IsolationError> {
        match self.bring_back(restore, false).await? {
            Some(container) => {
                container.introduce().await;
                Ok(Box::new(container))
            }
            None => Err(IsolationError::failed("restore the memory")(
                io::Error::other("the copy was ended"),
            )),
        }
    }

    async fn prove(&self, restore: Restore) -> Result<(), IsolationError> {
        self.bring_back(restore, true).await.map(drop)
    }

    fn fits(&self, needs: &Needs) -> Result<(), IsolationError> {
        self.shared.capturer.fits(needs)
    }

    async fn boot(&self, boot: Boot) -> Result<Box<dyn Machine>, IsolationError> {
        Ok(Box::new(self.boot_in_seat(boot).await?))
    }

    async fn adopt(&self, record: &MachineRecord) -> Result<Adopted, IsolationError> {
        self.take_over(record).await
    }

    async fn sweep(&self) -> Result<u64, IsolationError> {
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.sweep()).await
    }

    async fn warm_up(&self) {
        let shared = Arc::clone(&self.shared);
        shared.cool.store(false, Ordering::Release);
        let _ = spawn_blocking(move || {
            let turn = shared.refill.lock();
            shared.refill(turn);
        })
        .await;
    }

    /// Roots of deleted machines go as well.
    async fn cool_down(&self) {
        let shared = Arc::clone(&self.shared);
        shared.cool.store(true, Ordering::Release);
        let _ = spawn_blocking(move || shared.let_go_of_seats()).await;
    }

    fn warm(&self) -> Warm {
        Warm {
            wanted: self.shared.config.warm,
            ready: self.shared.warm().len(),
        }
    }

    async fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        let shared = Arc::clone(&self.shared);
        let _ = spawn_blocking(move || {
            shared.let_go_of_seats();
            shared.cgroups.remove_parent();
        })
        .await;
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, IsolationError> + Send + 'static,
) -> Result<T, IsolationError> {
    spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(IsolationError::failed("run a blocking step")(
            io::Error::other(error),
        ))
    })
}

/// Raises scores that guests lower, for as long as the tier is open.
fn watch_scores(shared: &Arc<Shared>) -> io::Result<()> {
    let (weak, mut watch) = (
        Arc::downgrade(shared),
        Watch::new(Arc::clone(&shared.cgroups)),
    );
    let run = move || {
        // Sandboxes that take all of the CPU must not keep it from looking.
        let thread = rustix::thread::gettid();
        let _ = rustix::process::setpriority_process(Some(thread), WATCH_NICENESS);
        let open = || {
            let shared = weak.upgrade();
            shared.is_some_and(|shared| !shared.closed.load(Ordering::Acquire))
        };
        while open() {
            if let Err(error) = watch.look() {
                tracing::debug!(%error, "OOM scores could not be read");
            }
            std::thread::sleep(oom::LOOK_EVERY);
        }
    };
    let thread = std::thread::Builder::new().name("cove-oom".into());
    thread.spawn(run).map(drop)
}

/// A directory that any uid may enter, to attach mounts to inside a child's own namespace.
fn staging(host_dir: &Path) -> io::Result<PathBuf> {
    let dir = host_dir.join("staging");
    fs::create_dir_all(&dir)?;
    for path in [host_dir, &dir] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(dir)
}
