//! What all machines of one tier share, and the pool of seats made ahead.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use cove_isolation::{CpuBook, IsolationError, Limit, Limits, TaskCost, TierHost, Warm};
use cove_spawner::RESOLVER_ARGUMENT;
use tokio::task::spawn_blocking;

use crate::cgroup::Cgroups;
use crate::guest_program::{Piece, Programs};
use crate::oom::{self, OomOrder, Watch};
use crate::overlay::{Handing, Overlays};
use crate::retired::Retired;
use crate::rootfs;
use crate::seat::{Seat, SeatMaker};
use crate::shown::Cpuinfo;
use crate::spawner::Spawner;
use crate::turns::Turns;

/// Of the thread that watches OOM scores.
const WATCH_NICENESS: i32 = -20;
/// Where the programs that seats run lie in the engine's directory; survives restarts, because running
/// machines were started from it.
const RUNTIME: &str = "runtime";
/// Boots at once on hosts with few CPUs.
const BOOTS_LEAST: usize = 4;
/// The layer with device nodes and mount points, in the pool.
const BASE: &str = "base";

/// How a tier wants its seats.
pub struct SeatsConfig {
    /// Seats kept ready. 0: every boot is cold.
    pub warm: usize,
    /// How the layers of a root reach the kernel.
    pub handing: Handing,
    /// The program that runs as PID 1 in new machines. Those that run already keep theirs.
    pub guest: &'static [u8],
    /// What lies beside the guest: the program that the seat's child runs it with.
    pub beside: Vec<(&'static str, Piece)>,
    /// What a process inside costs in tasks of the host.
    pub task_cost: TaskCost,
    /// The guest runs on a kernel of its own in the seat. That binds the guest's socket, and sees no interface
    /// that comes later, so that a machine has one from the start even if it may reach nothing.
    pub own_kernel: bool,
    /// How long a child may take to start the guest.
    pub patience: Duration,
    /// How many boots there may be at once for each CPU; `None`: any number, because they are short.
    pub boots_per_cpu: Option<usize>,
    /// Whether the spawner and the programs wait for the first boot.
    pub seldom: bool,
    /// Whether this tier raises lowered OOM scores, for all tiers of the engine.
    pub watches_scores: bool,
    /// Files of the host that requests to the spawner will speak of besides.
    pub paths: Vec<String>,
}

pub struct Seats {
    pub host: TierHost,
    pub runtime_dir: PathBuf,
    pub base_dir: PathBuf,
    pub maker: SeatMaker,
    pub cgroups: Arc<Cgroups>,
    pub overlays: Overlays,
    pub cpus: Arc<CpuBook>,
    pub retired: Arc<Retired>,
    pub staging: String,
    pub task_cost: TaskCost,
    pub(crate) own_kernel: bool,
    pub(crate) turns: Option<Turns>,
    pub(crate) cpuinfo: Cpuinfo,
    pub(crate) wanted: usize,
    pub(crate) warm: Mutex<VecDeque<Seat>>,
    /// Held while seats are made ahead; one refill at a time.
    pub(crate) refill: Mutex<()>,
    pub(crate) closed: AtomicBool,
    /// Whether boots leave the pool as it is.
    pub(crate) cool: AtomicBool,
}

impl Seats {
    /// Sets up what all machines of the tier share. Blocking; call it before serving.
    pub fn open(config: SeatsConfig, host: &TierHost) -> Result<Arc<Self>, IsolationError> {
        let (runtime_dir, base_dir) = (host.data_dir.join(RUNTIME), host.pool_dir.join(BASE));
        let cgroups = Arc::new(Cgroups::open(&format!("cove-{}", host.instance))?);
        let cpus = cgroups
            .cpus()
            .map_err(IsolationError::failed("read the host's CPUs"))?;
        // One for all tiers: they share the CPUs.
        let cpus = host.cpu_book.get_or_init(|| Arc::new(CpuBook::new(cpus)));
        let cpus = Arc::clone(cpus);
        let programs = Programs {
            runtime_dir: runtime_dir.clone(),
            guest: config.guest,
            beside: config.beside,
            installed: OnceLock::new(),
        };
        let staging = staging(&host.host_dir)
            .map_err(IsolationError::failed("make the staging directory"))?;
        rootfs::make_base(&base_dir).map_err(IsolationError::failed("make the base layer"))?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut paths = vec![text(&runtime_dir), text(&staging)];
        paths.extend(config.paths);
        // A guest on a kernel of its own does not see this namespace's loopback.
        if let Some(network) = host.network.as_ref().filter(|_| !config.own_kernel) {
            let resolver = network.addresses().gateway();
            paths.push(format!("{RESOLVER_ARGUMENT}{resolver}"));
        }
        let spawner = match config.seldom {
            true => Spawner::later(paths),
            false => {
                let install = IsolationError::failed("install the guest");
                programs.dir().map_err(install)?;
                Spawner::start(paths).map_err(IsolationError::failed("start the spawner"))?
            }
        };
        let maker = SeatMaker {
            spawner: Arc::new(spawner),
            cgroups: Arc::clone(&cgroups),
            slots: Arc::clone(&host.slots),
            programs,
            staging: text(&staging),
            network: host.network.clone(),
            always_attached: config.own_kernel,
            patience: config.patience,
        };
        let seats = Arc::new(Self {
            overlays: Overlays::open(config.handing, &staging)
                .map_err(IsolationError::failed("find out how to mount overlays"))?,
            staging: text(&staging),
            maker,
            cgroups,
            turns: config
                .boots_per_cpu
                .map(|each| Turns::new((each * cpus.count() as usize).max(BOOTS_LEAST))),
            cpus,
            retired: Arc::default(),
            task_cost: config.task_cost,
            own_kernel: config.own_kernel,
            cpuinfo: Cpuinfo::read().map_err(IsolationError::failed("read cpuinfo"))?,
            wanted: config.warm,
            warm: Mutex::default(),
            refill: Mutex::default(),
            closed: AtomicBool::new(false),
            cool: AtomicBool::new(false),
            host: host.clone(),
            runtime_dir,
            base_dir,
        });
        if config.watches_scores && !OomOrder::of_this_host().pinned {
            watch_scores(&seats).map_err(IsolationError::failed("watch OOM scores"))?;
        }
        Ok(seats)
    }

    /// What cgroups and quotas of this host put in force for machines in seats.
    pub fn limits(&self) -> Limits {
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
                "io_write_mb_s needs cgroup version 2: version 1 cannot attribute buffered writes",
            ),
            _ => Ok(()),
        };
        let open_files = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        Limits {
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
        }
    }

    pub async fn sweep(self: &Arc<Self>) -> Result<u64, IsolationError> {
        let seats = Arc::clone(self);
        blocking(move || seats.remove_unowned()).await
    }

    pub async fn warm_up(self: &Arc<Self>) {
        let seats = Arc::clone(self);
        seats.cool.store(false, Ordering::Release);
        let _ = spawn_blocking(move || {
            let turn = seats.refill.lock();
            seats.refill(turn);
        })
        .await;
    }

    /// Roots of deleted machines go as well.
    pub async fn cool_down(self: &Arc<Self>) {
        let seats = Arc::clone(self);
        seats.cool.store(true, Ordering::Release);
        let _ = spawn_blocking(move || seats.let_go_of_seats()).await;
    }

    pub fn ready(&self) -> Warm {
        Warm {
            wanted: self.wanted,
            ready: self.warm().len(),
        }
    }

    pub async fn close(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        let seats = Arc::clone(self);
        let _ = spawn_blocking(move || {
            seats.let_go_of_seats();
            seats.cgroups.remove_parent();
        })
        .await;
    }
}

/// Runs work that may wait on a thread that may wait.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, IsolationError> + Send + 'static,
) -> Result<T, IsolationError> {
    spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(IsolationError::failed("run a blocking step")(
            io::Error::other(error),
        ))
    })
}

/// Raises scores that guests lower, for as long as the tier is open.
fn watch_scores(seats: &Arc<Seats>) -> io::Result<()> {
    let (weak, mut watch) = (
        Arc::downgrade(seats),
        Watch::new(Arc::clone(&seats.cgroups)),
    );
    let run = move || {
        // Sandboxes that take all of the CPU must not keep it from looking.
        let thread = rustix::thread::gettid();
        let _ = rustix::process::setpriority_process(Some(thread), WATCH_NICENESS);
        let open = || {
            let seats = weak.upgrade();
            seats.is_some_and(|seats| !seats.closed.load(Ordering::Acquire))
        };
        while open() {
            if let Err(error) = watch.look() {
                tracing::debug!(%error, "cannot read OOM scores");
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
