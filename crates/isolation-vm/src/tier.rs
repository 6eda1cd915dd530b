//! The tier as the engine sees it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cove_isolation::finding::{good, warning};
use cove_isolation::{
    Adopted, Boot, BootTurn, Capabilities, Isolation, IsolationError, Limit, Limits, Machine,
    MachineRecord, Needs, OpenTier, Placed, Restore, Root, TaskCost, TierHost, Warm, slots,
};
use cove_runner_api::Finding;
use cove_seats::guest_program::{self, Piece};
use cove_seats::probe::Probed;
use cove_seats::{Becomes, Detail, Found, Handing, Seats, SeatsConfig, Supervised, Work, rootfs};

use crate::disk::Disks;
use crate::initial;
use crate::machine::{TIER, Virtual, no_memory};
use crate::programs::Programs;
use crate::qemu::{self, MEMORY_LEAST_MB};

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
    pub(crate) probed: Arc<Probed>,
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
        let disks =
            Disks::open(&host.pool_dir).map_err(IsolationError::failed("look at block images"))?;
        Ok(Self {
            seats,
            disks: Arc::new(disks),
            programs,
            probed: Arc::default(),
        })
    }

    pub(crate) fn programs(&self) -> Result<&Programs, IsolationError> {
        self.programs.as_ref().map_err(|error| {
            IsolationError::Unsupported(format!(
                "the tier 'vm' is not available on this host: {error}"
            ))
        })
    }

    pub(crate) async fn start(&self, boot: Boot) -> Result<Virtual, IsolationError> {
        let programs = self.programs()?.dir.clone();
        self.capabilities().check(&boot.machine.limits)?;
        let (seats, disks) = (Arc::clone(&self.seats), Arc::clone(&self.disks));
        let (spec, dir) = (boot.machine.clone(), programs.clone());
        let work = move |root: &Root, has_interface: bool| {
            let opened = disks.of(&seats, &dir, (root, &spec.limits))?;
            let network = seats.host.network.as_ref().filter(|_| has_interface);
            let network = network.map(|network| network.addresses());
            Ok(Work {
                arguments: qemu::arguments(&spec, network, opened.fresh),
                descriptors: vec![opened.file],
            })
        };
        let supervised = Supervised {
            programs,
            work: Box::new(work),
        };
        let settled = self
            .seats
            .boot(boot, Becomes::Supervised(supervised))
            .await?;
        Ok(Virtual::new(settled, &self.seats))
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
            memory: false,
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

    /// Emulated machines are had by name alone: `auto` never takes them.
    fn installed(&self) -> bool {
        false
    }

    async fn turn(&self, owner: Option<&str>) -> Result<Option<BootTurn>, IsolationError> {
        self.seats.turn(owner).await
    }

    async fn works(&self) -> Result<(), IsolationError> {
        self.probe().await.map(drop).map_err(|reason| {
            IsolationError::Unsupported(format!("QEMU does not work on this host: {reason}"))
        })
    }

    fn trees(&self, root: &Root) -> Result<Vec<PathBuf>, IsolationError> {
        match rootfs::is_block(&root.disk) {
            true => Err(IsolationError::Unsupported(
                "disks of the tier 'vm' are block images and cannot be read as files".into(),
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
        vec![match self.probe().await {
            Ok(told) => good(TIER, told),
            Err(reason) => warning(
                TIER,
                format!("sandboxes cannot have isolation vm: {reason}"),
                "run scripts/provide-vm, which provides QEMU and a kernel".into(),
            ),
        }]
    }

    async fn boot(&self, boot: Boot) -> Result<Box<dyn Machine>, IsolationError> {
        Ok(Box::new(self.start(boot).await?))
    }

    async fn restore(&self, _: Restore) -> Result<Box<dyn Machine>, IsolationError> {
        Err(no_memory())
    }

    async fn prove(&self, _: Restore) -> Result<(), IsolationError> {
        Err(no_memory())
    }

    fn fits(&self, _: &Needs) -> Result<(), IsolationError> {
        Err(no_memory())
    }

    async fn adopt(&self, record: &MachineRecord) -> Result<Adopted, IsolationError> {
        let detail: Detail = serde_json::from_value(record.detail.clone()).map_err(|error| {
            IsolationError::failed("read the machine's record")(io::Error::other(error))
        })?;
        Ok(match self.seats.take_over(detail).await? {
            Found::Gone(usage) => Adopted::Gone(usage),
            Found::Running(settled) => {
                Adopted::Running(Box::new(Virtual::new(*settled, &self.seats)))
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
        self.seats.close().await;
    }
}
