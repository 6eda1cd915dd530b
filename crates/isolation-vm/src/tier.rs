//! The tier as the engine sees it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use cove_isolation::finding::{good, warning};
use cove_isolation::{
    Adopted, Boot, BootTurn, Capabilities, Isolation, IsolationError, Limit, Limits, Machine,
    MachineRecord, Needs, OpenTier, Placed, Restore, Root, TaskCost, TierHost, Warm, slots,
};
use cove_model::Accel;
use cove_runner_api::Finding;
use cove_seats::guest_program::{self, Piece};
use cove_seats::probe::end;
use cove_seats::{Becomes, Detail, Found, Handing, Seats, SeatsConfig, Supervised, Work, rootfs};

use crate::capture;
use crate::disk::Disks;
use crate::initial;
use crate::kvm::{Known, Kvm};
use crate::machine::{TIER, Virtual, Written};
use crate::programs::Programs;
use crate::qemu::{self, Begin, MEMORY_LEAST_MB};
use crate::shape::{self, Shape};

/// QEMU has some threads whatever runs inside, whose processes are the machine's own.
const TASK_COST: TaskCost = TaskCost {
    per_process: 0,
    fixed: 64,
};
/// The supervisor gives up a little earlier, and says why.
const PATIENCE: Duration = Duration::from_secs(120);
/// A boot takes seconds of a CPU.
const BOOTS_PER_CPU: usize = 1;
/// The first file system, beside the guest.
const INITIAL: &str = "initial";

/// What an operator chooses for virtual machines.
#[derive(Debug, Clone)]
pub struct VmConfig {
    /// The folder with QEMU and the kernel; where none is named, the one that `scripts/provide-vm` makes.
    pub programs: Option<PathBuf>,
    /// The program that runs as PID 1 in new machines. Those that run already keep theirs.
    pub guest: &'static [u8],
}

impl Default for VmConfig {
    fn default() -> Self {
        Self {
            programs: None,
            guest: cove_embedded::GUEST,
        }
    }
}

impl OpenTier for VmConfig {
    fn open(&self, host: &TierHost) -> Result<Arc<dyn Isolation>, IsolationError> {
        Ok(Arc::new(VmTier::open(self, host)?))
    }
}

#[derive(Clone)]
pub struct VmTier {
    pub(crate) seats: Arc<Seats>,
    disks: Arc<Disks>,
    programs: Result<Programs, String>,
    kvm: Arc<Kvm>,
}

impl VmTier {
    /// Opens also without QEMU: machines that run are adopted. Blocking.
    pub fn open(config: &VmConfig, host: &TierHost) -> Result<Self, IsolationError> {
        let programs = Programs::find(config.programs.as_deref());
        let beside = match &programs {
            Ok(programs) => {
                let initial = initial::make(config.guest, programs)
                    .map_err(IsolationError::failed("make the first file system"))?;
                vec![
                    (
                        guest_program::RUNNER,
                        Piece::Bytes(cove_embedded::SUPERVISOR.into()),
                    ),
                    (INITIAL, Piece::Bytes(initial.into())),
                ]
            }
            Err(_) => Vec::new(),
        };
        let seats = Seats::open(
            SeatsConfig {
                // A seat takes a thousandth of the time that a boot does.
                warm: 0,
                handing: Handing::default(),
                guest: config.guest,
                beside,
                task_cost: TASK_COST,
                own_kernel: true,
                patience: PATIENCE,
                boots_per_cpu: Some(BOOTS_PER_CPU),
                seldom: true,
                watches_scores: false,
                paths: Vec::new(),
            },
            host,
        )?;
        let disks = Disks::open(&host.pool_dir);
        let kvm = Kvm::open(programs.as_ref(), host)
            .map_err(IsolationError::failed("look at /dev/kvm"))?;
        let tier = Self {
            seats,
            disks: Arc::new(disks),
            programs,
            kvm: Arc::new(kvm),
        };
        if tier.kvm.known() == Known::Trying {
            let trying = tier.clone();
            tier.kvm.find_out(async move { trying.try_kvm().await });
        }
        Ok(tier)
    }

    pub(crate) fn first(&self) -> Arc<OnceLock<OwnedFd>> {
        Arc::clone(&self.kvm.first)
    }

    /// Waits until it is known whether KVM boots machines here.
    pub async fn settled(&self) {
        self.kvm.settled().await;
    }

    pub(crate) fn programs(&self) -> Result<&Programs, IsolationError> {
        self.programs.as_ref().map_err(|error| {
            IsolationError::Unsupported(format!(
                "the tier 'vm' is not available on this host: {error}"
            ))
        })
    }

    pub(crate) async fn start(&self, boot: Boot) -> Result<Virtual, IsolationError> {
        let programs = self.able(&boot)?;
        self.launch(boot, programs, Arc::default(), None).await
    }

    fn able(&self, boot: &Boot) -> Result<Programs, IsolationError> {
        let programs = self.programs()?.clone();
        self.capabilities().check(&boot.machine.limits)?;
        self.accelerates(boot.machine.accel)?;
        Ok(programs)
    }

    /// A machine with captured memory: it runs when this returns, unless it is only proven that it could.
    async fn bring_back(&self, restore: Restore, begin: Begin) -> Result<Virtual, IsolationError> {
        let Restore { mut boot, memory } = restore;
        let programs = self.able(&boot)?;
        // A restore takes no time of a boot, and must not wait for those that do.
        boot.turn = Some(BootTurn::new(()));
        self.launch(boot, programs, Arc::default(), Some((memory, begin)))
            .await
    }

    /// `first` gets the first process, so that whoever waits can give up. `saved` is where captured memory lies.
    pub(crate) async fn launch(
        &self,
        boot: Boot,
        programs: Programs,
        first: Arc<OnceLock<OwnedFd>>,
        saved: Option<(PathBuf, Begin)>,
    ) -> Result<Virtual, IsolationError> {
        let (seats, disks) = (Arc::clone(&self.seats), Arc::clone(&self.disks));
        let (spec, dir) = (boot.machine.clone(), programs.dir.clone());
        let closing = Arc::clone(&self.kvm);
        let made = Arc::new(OnceLock::new());
        let making = Arc::clone(&made);
        let work = move |root: &Root, has_interface: bool| {
            if closing.is_closing() {
                return Err(IsolationError::Unsupported("the server ends".into()));
            }
            let network = seats.host.network.as_ref().filter(|_| has_interface);
            let network = network.map(|network| network.addresses());
            let shape = Shape::of(&spec, network, programs.versions())
                .map_err(IsolationError::failed("look at the processor"))?;
            let (begin, saved) = match &saved {
                None => (None, Vec::new()),
                Some((memory, begin)) => {
                    let read = IsolationError::failed("read the captured machine");
                    Shape::kept(memory).map_err(read)?.check(&shape)?;
                    if !rootfs::is_block(&root.disk) {
                        let message = "the disk of the captured machine is gone";
                        return Err(IsolationError::Unfit(message.into()));
                    }
                    let read = IsolationError::failed("open the captured memory");
                    (Some(*begin), capture::open(memory).map_err(read)?)
                }
            };
            let opened = disks.of(&seats, &programs.dir, (root, &spec.limits))?;
            let begin = begin.unwrap_or(Begin::Boot {
                fresh: opened.fresh,
            });
            let _ = making.set(shape);
            Ok(Work {
                arguments: qemu::arguments(&spec, network, begin)
                    .map_err(IsolationError::failed("make a boot id"))?,
                descriptors: vec![opened.file],
                saved,
            })
        };
        let kvm = match qemu::accel_of(&boot.machine) {
            Accel::Kvm => Some(self.kvm.device()?),
            Accel::Software => None,
        };
        let supervised = Supervised {
            programs: dir,
            kvm,
            first,
            work: Box::new(work),
        };
        let settled = self
            .seats
            .boot(boot, Becomes::Supervised(supervised))
            .await?;
        Ok(Virtual::new(settled, &self.seats, made.get().cloned()))
    }
}

/// Put in force when a machine boots.
fn at_boot(most: Option<u64>) -> Limit {
    Limit::Enforced { most, live: false }
}

#[async_trait]
impl Isolation for VmTier {
    fn name(&self) -> &'static str {
        TIER
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            limits: Limits {
                memory: at_boot(None),
                memory_max: Limit::Refused(
                    "memory_max_mb: the memory of a sandbox of the tier 'vm' cannot grow while it runs".into(),
                ),
                disk: at_boot(None),
                // The guest puts these in force when it starts.
                pids: at_boot(None),
                open_files: at_boot(None),
                ..self.seats.limits()
            },
            no_new_privs: true,
            memory: self.programs.is_ok(),
            volumes: false,
            // Its loopback is the machine's own.
            identity: false,
            memory_least_mb: MEMORY_LEAST_MB,
            task_cost: TASK_COST,
            cpus_fixed: true,
        }
    }

    fn available(&self) -> Result<(), IsolationError> {
        self.programs().map(drop)
    }

    /// Emulated machines are had by name alone: `auto` never takes them. Where KVM booted machines before and does not
    /// now, the tier counts as there, so that `auto` becomes no weaker one.
    fn installed(&self) -> bool {
        // Without its programs, too: then its requests are refused with the reason.
        self.kvm.counts()
    }

    fn accelerates(&self, accel: Option<Accel>) -> Result<(), IsolationError> {
        let reason = match (accel, self.kvm.known()) {
            (Some(Accel::Software), _) | (_, Known::Boots(_)) => return Ok(()),
            (_, Known::Fails(reason)) => format!("KVM boots no machine on this host: {reason}"),
            (_, Known::Trying) => {
                "whether KVM boots machines on this host is still being tried; try again in some seconds".into()
            }
        };
        Err(IsolationError::Unsupported(format!(
            "{reason}. With accel 'software' a sandbox of the tier 'vm' runs here, emulated and slow"
        )))
    }

    fn accels(&self) -> Vec<Accel> {
        if self.programs.is_err() {
            return Vec::new();
        }
        let kvm = matches!(self.kvm.known(), Known::Boots(_)).then_some(Accel::Kvm);
        kvm.into_iter().chain([Accel::Software]).collect()
    }

    async fn turn(&self, owner: Option<&str>) -> Result<Option<BootTurn>, IsolationError> {
        self.seats.turn(owner).await
    }

    async fn works(&self) -> Result<(), IsolationError> {
        self.available()?;
        self.accelerates(None)
    }

    fn trees(&self, root: &Root) -> Result<Vec<PathBuf>, IsolationError> {
        match rootfs::is_block(&root.disk) {
            true => Err(IsolationError::Unsupported(
                "the tier 'vm' has block images for disks: its snapshots cannot be exported, kept in object storage or made images; those of isolation container and gvisor can".into(),
            )),
            false => rootfs::trees(root).map_err(IsolationError::failed("look at the disk")),
        }
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
        let versions = match &self.programs {
            Ok(programs) => programs.sources(),
            Err(reason) => {
                return vec![warning(
                    TIER,
                    format!("sandboxes cannot have isolation vm: {reason}"),
                    "run scripts/provide-vm, which provides QEMU and a kernel".into(),
                )];
            }
        };
        let emulated = "sandboxes can have isolation vm with accel software, emulated and slow";
        vec![match self.kvm.known() {
            Known::Boots(told) => good(TIER, format!("accel kvm: {told} ({versions})")),
            Known::Trying => warning(
                TIER,
                format!("whether KVM boots machines is being tried; {emulated} ({versions})"),
                "ask again in half a minute".into(),
            ),
            Known::Fails(reason) => warning(
                TIER,
                format!("no accel kvm: {reason}; {emulated} ({versions})"),
                self.kvm.fix(),
            ),
        }]
    }

    async fn boot(&self, boot: Boot) -> Result<Box<dyn Machine>, IsolationError> {
        Ok(Box::new(self.start(boot).await?))
    }

    async fn restore(&self, restore: Restore) -> Result<Box<dyn Machine>, IsolationError> {
        Ok(Box::new(self.bring_back(restore, Begin::Restore).await?))
    }

    async fn prove(&self, restore: Restore) -> Result<(), IsolationError> {
        let proven = self.bring_back(restore, Begin::Prove).await?;
        end(&proven).await
    }

    fn fits(&self, needs: &Needs) -> Result<(), IsolationError> {
        let accel = match needs.components.get("accel").map(String::as_str) {
            Some("kvm") => Accel::Kvm,
            _ => Accel::Software,
        };
        let offered = shape::offered(&self.programs()?.versions(), accel)
            .map_err(IsolationError::failed("look at the processor"))?;
        shape::fits(needs, &offered)
    }

    async fn adopt(&self, record: &MachineRecord) -> Result<Adopted, IsolationError> {
        let written: Written = serde_json::from_value(record.detail.clone()).map_err(|error| {
            IsolationError::failed("read the machine's record")(io::Error::other(error))
        })?;
        Ok(match self.seats.take_over(written.detail).await? {
            Found::Gone(usage) => Adopted::Gone(usage),
            Found::Running(settled) => {
                let machine = Virtual::new(*settled, &self.seats, written.shape);
                Adopted::Running(Box::new(machine))
            }
        })
    }

    async fn sweep(&self) -> Result<u64, IsolationError> {
        self.seats.sweep().await
    }

    async fn cool_down(&self) {
        self.seats.cool_down().await;
    }

    fn warm(&self) -> Warm {
        self.seats.ready()
    }

    async fn close(&self) {
        self.kvm.close().await;
        self.seats.close().await;
    }
}
