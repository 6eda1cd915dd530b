//! Boots, finds and sweeps containers.

mod probe;
mod revive;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cove_criu::Program;
use cove_isolation::slots::{self, Slot};
use cove_isolation::{
    Adopted, Boot, Capabilities, Isolation, IsolationError, Limit, Limits, Machine, MachineRecord,
    MakeRoot, Needs, OpenTier, Placed, Restore, Root, TierHost, Usage, Warm,
};
use cove_model::{NetworkPolicy, Resources, SandboxId};
use cove_network::Counters;
use cove_runner::Finding;
use cove_spawner::message::Start;
use cove_spawner::{boot_id, shared};
use tokio::task::spawn_blocking;

use crate::capturer::Capturer;
use crate::cgroup::{Cgroups, MemoryLimit};
use crate::cpus::CpuBook;
use crate::guest_program;
use crate::machine::{self, Container, Detail, Senses, TIER};
use crate::oom::{self, OomOrder, Watch};
use crate::overlay::{Handing, Overlays};
use crate::retired::Retired;
use crate::rootfs;
use crate::seat::{self, Link, Seat, SeatMaker};
use crate::shown::{self, Cpuinfo};
use crate::spawner::Spawner;

/// Of the thread that watches OOM scores.
const WATCH_NICENESS: i32 = -20;
/// How long a used seat waits to be replaced.
const REFILL_PAUSE: Duration = Duration::from_millis(20);

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
}

impl Default for ContainerConfig {
    fn default() -> Self {
        Self {
            warm: DEFAULT_WARM,
            criu: None,
            handing: Handing::default(),
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
        let guest_dir = guest_program::install(&runtime_dir, cove_embedded::GUEST)
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
    fn warm(&self) -> MutexGuard<'_, VecDeque<Seat>> {
        self.warm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat whose child still waits, when there is one.
    fn take_ready(&self) -> Option<Seat> {
        loop {
            let seat = self.warm().pop_front()?;
            if seat.is_alive() {
                return Some(seat);
            }
            tracing::warn!("a parked child was killed; its seat is removed");
            // Removing its group may take a moment.
            spawn_blocking(move || drop(seat));
        }
    }

    fn refill(&self, _turn: MutexGuard<'_, ()>) {
        let wanted = || !self.closed.load(Ordering::Acquire) && !self.cool.load(Ordering::Acquire);
        while wanted() && self.warm().len() < self.config.warm {
            let made = self
                .maker
                .make()
                .and_then(|mut seat| seat.wait_parked().map(|()| seat));
            match made {
                Ok(seat) => self.warm().push_back(seat),
                Err(error) => {
                    // Boots make their own seats and report the reason; the next one tries again.
                    tracing::warn!(%error, "a seat could not be prepared ahead");
                    return;
                }
            }
        }
    }

    fn refill_in_background(self: &Arc<Self>) {
        if self.config.warm == 0 || self.cool.load(Ordering::Acquire) {
            return;
        }
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            // The sandbox just booted is about to run its first command; making the next seat would
            // take the CPU away from it.
            tokio::time::sleep(REFILL_PAUSE).await;
            let _ = spawn_blocking(move || {
                if let Ok(turn) = shared.refill.try_lock() {
                    shared.refill(turn);
                }
            })
            .await;
        });
    }

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
        }
    }

    /// Puts a seat's limits and network in force; nothing of the sandbox runs yet.
    fn furnish(&self, seat: &Seat, boot: &Plan) -> Result<CpuHold, IsolationError> {
        let limits = &boot.limits;
        let cpus = CpuHold::take(&self.cpus, limits);
        let group = seat.group();
        let limit = |error| IsolationError::failed("set the limits")(error);
        group
            .set_memory(MemoryLimit::of(limits, limits.memory_mb))
            .map_err(limit)?;
        group.set_cpu(limits.cpu, &cpus.chosen).map_err(limit)?;
        group.set_pids(limits.pids).map_err(limit)?;
        if let Some(device) = self.host.pool_device
            && (limits.io_read_mb_s.is_some() || limits.io_write_mb_s.is_some())
        {
            let bytes = |mb: Option<u64>| mb.map(|mb| mb << 20);
            group
                .set_io(
                    device,
                    bytes(limits.io_read_mb_s),
                    bytes(limits.io_write_mb_s),
                    seat.pid(),
                )
                .map_err(limit)?;
        }
        seat.link().set(&boot.id, &boot.network)?;
        Ok(cpus)
    }

    fn make_root(&self, make: MakeRoot, plan: &Plan) -> Result<Root, IsolationError> {
        let root = make()?;
        let network = self.host.network.as_ref();
        let resolver = network.map(|network| network.addresses().gateway());
        rootfs::prepare(&root.disk, &plan.hostname, resolver)
            .map_err(IsolationError::failed("prepare the disk"))?;
        Ok(root)
    }

    fn finish(
        &self,
        seat: Seat,
        cpus: CpuHold,
        root: &Root,
        boot: &Plan,
    ) -> Result<Container, IsolationError> {
        let limits = &boot.limits;
        let uid_base = seat.uid_base();
        let overlay = rootfs::mount(
            root,
            &self.base_dir,
            seat.user_ns(),
            uid_base,
            &self.overlays,
        )?;
        let visible = limits.visible_cpus();
        let start = Start {
            hostname: boot.hostname.clone(),
            sandbox: boot.id.to_string(),
            boot_id: boot_id::random().map_err(IsolationError::failed("make a boot id"))?,
            cpuinfo: self.cpuinfo.for_cpus(visible),
            cpu_online: shown::cpu_online(visible),
            meminfo: shown::meminfo(limits.memory_ceiling_mb() << 20),
            shm_bytes: shared::shm_bytes(limits.memory_mb),
            open_files: limits.open_files,
            no_new_privs: boot.no_new_privs,
        };
        let taken = seat.start(&start, overlay)?;
        let mut clean_up = TakenGuard {
            pidfd: taken.pidfd,
            group: taken.group,
            held: Some((taken.link, taken.slot)),
        };
        let start_time = machine::start_time(taken.pid)
            .map_err(IsolationError::failed("look at PID 1"))?
            .ok_or_else(|| {
                IsolationError::failed("look at PID 1")(io::Error::other("the guest ended at once"))
            })?;
        let detail = Detail {
            pid: taken.pid,
            start_time,
            uid_base,
            cpus: cpus.chosen.clone(),
            cpu: limits.cpu,
            device: self.host.pool_device,
            guest: self.capturer.guest.clone(),
            sandbox: Some(boot.id.clone()),
            network: boot.network.clone(),
        };
        let pidfd = clean_up
            .pidfd
            .try_clone()
            .map_err(IsolationError::failed("keep the pidfd"))?;
        let mark = MemoryLimit::of(limits, limits.memory_mb).mark();
        let senses = Senses::open(taken.pid, pidfd, &clean_up.group, mark)?;
        let held = clean_up.held.take().expect("set above");
        cpus.keep();
        Ok(Container::new(
            detail,
            senses,
            clean_up.group.clone(),
            held,
            Arc::clone(&self.cpus),
            (Arc::clone(&self.capturer), Arc::clone(&self.retired)),
        ))
    }
}

/// What `finish` needs of a [`Boot`] besides its root.
struct Plan {
    id: SandboxId,
    hostname: String,
    network: NetworkPolicy,
    limits: Resources,
    no_new_privs: bool,
}

/// CPUs that go back unless the boot succeeds.
struct CpuHold {
    book: Arc<CpuBook>,
    chosen: Vec<u32>,
    cpu: f64,
    kept: bool,
}

impl CpuHold {
    fn take(book: &Arc<CpuBook>, limits: &Resources) -> Self {
        Self {
            book: Arc::clone(book),
            chosen: book.take(limits.visible_cpus(), limits.cpu),
            cpu: limits.cpu,
            kept: false,
        }
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for CpuHold {
    fn drop(&mut self) {
        if !self.kept {
            self.book.give_back(&self.chosen, self.cpu);
        }
    }
}

/// Ends a child that became a guest and was not handed on.
struct TakenGuard {
    pidfd: std::os::fd::OwnedFd,
    group: crate::cgroup::Group,
    /// Taken by the machine that it becomes.
    held: Option<(Link, Slot)>,
}

impl Drop for TakenGuard {
    fn drop(&mut self) {
        let Some((link, slot)) = self.held.take() else {
            return;
        };
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
        let removed = seat::remove_when_empty(&self.group);
        link.release();
        give_back(slot, removed);
    }
}

/// Gives a slot back, but for one whose processes may not have ended: nobody else may have its ids.
fn give_back(slot: Slot, emptied: io::Result<()>) {
    if let Err(error) = emptied {
        tracing::error!(%error, group = slot.name(), "a cgroup does not empty; its slot stays taken until the next start");
        std::mem::forget(slot);
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
        let shared = Arc::clone(&self.shared);
        shared.capabilities().check(&boot.limits)?;
        let plan = Arc::new(Plan {
            id: boot.id,
            network: boot.network,
            hostname: boot.hostname,
            limits: boot.limits,
            no_new_privs: boot.no_new_privs,
        });
        let ready = shared.take_ready();
        let runtime = tokio::runtime::Handle::current();
        let (made, root) = std::sync::mpsc::sync_channel(1);
        // While the child prepares itself the volume is made. Begun first: the other waits for it.
        let rooting = {
            let (shared, plan) = (Arc::clone(&shared), Arc::clone(&plan));
            spawn_blocking(move || {
                let _ = made.send(shared.make_root(boot.root, &plan));
            })
        };
        let seating = {
            let shared = Arc::clone(&shared);
            blocking(move || {
                let _entered = runtime.enter();
                let seat = ready.map_or_else(|| shared.maker.make(), Ok)?;
                let cpus = shared.furnish(&seat, &plan)?;
                let root = root.recv().map_err(|error| {
                    IsolationError::failed("make the root")(io::Error::other(error))
                })??;
                shared.finish(seat, cpus, &root, &plan)
            })
        };
        // Nobody may clear a failed boot away while its volume is still being made.
        let (container, _) = tokio::join!(seating, rooting);
        let container = container?;
        shared.refill_in_background();
        Ok(Box::new(container))
    }

    async fn adopt(&self, record: &MachineRecord) -> Result<Adopted, IsolationError> {
        let detail: Detail = serde_json::from_value(record.detail.clone()).map_err(|error| {
            IsolationError::failed("read the machine's record")(io::Error::other(error))
        })?;
        let shared = Arc::clone(&self.shared);
        // A reboot empties the claims; then nothing of it is left either. Should they be lost without one, the
        // sweep ends what runs.
        let number = slots::number_of_uids(detail.uid_base);
        let Some(slot) = shared.maker.slots.retake(number) else {
            return Ok(Adopted::Gone(None));
        };
        let group = shared.cgroups.existing(&slot.name());
        let Some(pidfd) =
            machine::find(&detail).map_err(IsolationError::failed("look for PID 1"))?
        else {
            let traffic = shared.traffic(&slot);
            return Ok(with_traffic(remove_remains(group, slot).await?, traffic));
        };
        let network = shared.host.network.as_ref();
        let link = match Link::of(detail.pid, pidfd.as_fd(), &slot, network) {
            Ok(link) => link,
            // It ended just now.
            Err(_) => {
                let traffic = shared.traffic(&slot);
                return Ok(with_traffic(remove_remains(group, slot).await?, traffic));
            }
        };
        let adopting = detail.clone();
        let scored = group.clone();
        let link = blocking(move || {
            // An engine of before may have given it others.
            if let Err(error) = oom::settle(&scored, adopting.pid) {
                tracing::warn!(%error, "the OOM scores of an adopted sandbox are not in order");
            }
            if let Some(sandbox) = &adopting.sandbox {
                link.adopt(sandbox, &adopting.network)?;
            }
            Ok(link)
        })
        .await?;
        shared.cpus.retake(&detail.cpus, detail.cpu);
        // The engine says where memory stands when it puts the limits in force again, and whether what
        // stands still was frozen, is to end, or only was in the middle of a capture and goes on.
        let senses = match Senses::open(detail.pid, pidfd, &group, MemoryLimit::NO_MARK) {
            Ok(senses) => senses,
            Err(error) => {
                // The sweep ends it, and its index may be another's next.
                link.release();
                return Err(error);
            }
        };
        let container = Container::new(
            detail,
            senses,
            group,
            (link, slot),
            Arc::clone(&shared.cpus),
            (Arc::clone(&shared.capturer), Arc::clone(&shared.retired)),
        );
        container.wake();
        Ok(Adopted::Running(Box::new(container)))
    }

    async fn sweep(&self) -> Result<u64, IsolationError> {
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.sweep()).await
    }

    async fn warm_up(&self) {
        let shared = Arc::clone(&self.shared);
        shared.cool.store(false, Ordering::Release);
        let _ = spawn_blocking(move || {
            let turn = shared.refill.lock().unwrap_or_else(PoisonError::into_inner);
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

impl Shared {
    fn let_go_of_seats(&self) {
        // A seat under way comes to its end first; it would be missed otherwise.
        let _turn = self.refill.lock().unwrap_or_else(PoisonError::into_inner);
        let seats: Vec<Seat> = self.warm().drain(..).collect();
        drop(seats);
        self.retired.flush();
    }

    /// What went over a slot's interface, if that is still there: it goes soon after the last process.
    fn traffic(&self, slot: &Slot) -> Counters {
        let network = self.host.network.as_ref();
        network
            .and_then(|network| network.counters(slot.network_index()).ok().flatten())
            .unwrap_or_default()
    }

    /// Ends and removes groups of this engine that no machine and no seat owns. Their slots are free,
    /// which is how they are told apart.
    fn sweep(&self) -> Result<u64, IsolationError> {
        let slots = &self.maker.slots;
        let mut swept = self
            .cgroups
            .remove_abandoned(|instance| slots.is_claimed_by(instance));
        let names = self
            .cgroups
            .list()
            .map_err(IsolationError::failed("list the cgroups"))?;
        for name in names {
            let Some(number) = slots::number_of_name(&name) else {
                continue;
            };
            let slot = slots.retake(number);
            // One that is taken has an owner. What has no slot of this engine belongs to nobody: the claims
            // were lost while it ran.
            if slot.is_none() && slots.owns(number) {
                continue;
            }
            let group = self.cgroups.existing(&name);
            for pid in group.processes() {
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            // On version 1 a stopped process dies only once it may go on.
            let _ = group.thaw();
            let removed = seat::remove_when_empty(&group);
            swept += u64::from(removed.is_ok());
            if let Some(slot) = slot {
                give_back(slot, removed);
            }
        }
        Ok(swept)
    }
}

/// Adds what went over the interface to what a machine is known to have used.
fn with_traffic(adopted: Adopted, traffic: Counters) -> Adopted {
    match adopted {
        Adopted::Gone(Some(usage)) => Adopted::Gone(Some(Usage {
            network_sent_bytes: traffic.sent,
            network_received_bytes: traffic.received,
            ..usage
        })),
        adopted => adopted,
    }
}

/// Removes what a machine that ended while nobody watched left behind.
async fn remove_remains(
    group: crate::cgroup::Group,
    slot: Slot,
) -> Result<Adopted, IsolationError> {
    blocking(move || {
        let usage = group.usage().ok();
        give_back(slot, seat::remove_when_empty(&group));
        Ok(Adopted::Gone(usage))
    })
    .await
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
