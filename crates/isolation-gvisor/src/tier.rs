//! The tier as the engine sees it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use cove_isolation::finding::{good, warning};
use cove_isolation::{
    Adopted, Boot, BootTurn, Capabilities, Isolation, IsolationError, Limit, Limits, Machine,
    MachineRecord, Needs, OpenTier, Placed, Restore, Root, TaskCost, TierHost, Warm, slots,
};
use cove_runner_api::Finding;
use cove_seats::guest_program::{self, Piece};
use cove_seats::probe::Probed;
use cove_seats::{Becomes, Detail, Found, Handing, Seats, SeatsConfig, blocking, rootfs, spawner};

use crate::bundle;
use crate::machine::{Sandboxed, TIER, no_memory, spare_the_kernel};
use crate::program::{self, Unfit};

/// The sentry and the gofer take this of a machine's memory before a program runs; with less than this in all
/// nothing would be left.
const MEMORY_LEAST_MB: u64 = 96;
/// An idle sentry has about 20 threads; a program inside has a process of its own on the host, a thread in it and a
/// thread of the sentry. The limit that programs meet is the guest's; this one protects the host, and it is wide,
/// because whoever reaches it ends the whole sandbox.
const TASK_COST: TaskCost = TaskCost {
    per_process: 3,
    fixed: 128,
};

/// Where the engine's directory says which runsc was used last.
const SEEN: &str = "runsc-seen";
/// A boot takes some hundred milliseconds of a CPU; more at once would only make each slower.
const BOOTS_PER_CPU: usize = 2;

/// What an operator chooses for gVisor.
#[derive(Debug, Clone)]
pub struct GvisorConfig {
    /// The runsc program; where none is named it is looked for.
    pub runsc: Option<PathBuf>,
    /// The program that runs as PID 1 in new machines. Those that run already keep theirs.
    pub guest: &'static [u8],
}

impl Default for GvisorConfig {
    fn default() -> Self {
        Self {
            runsc: None,
            guest: cove_embedded::GUEST,
        }
    }
}

impl OpenTier for GvisorConfig {
    fn open(&self, host: &TierHost) -> Result<Arc<dyn Isolation>, IsolationError> {
        Ok(Arc::new(GvisorTier::open(self, host)?))
    }
}

#[derive(Clone)]
pub struct GvisorTier {
    pub(crate) seats: Arc<Seats>,
    program: Result<PathBuf, Unfit>,
    pub(crate) probed: Arc<Probed>,
}

impl GvisorTier {
    /// Opens also without runsc: machines that run keep their own copy of it and are adopted. Blocking.
    pub fn open(config: &GvisorConfig, host: &TierHost) -> Result<Self, IsolationError> {
        let program = program::find(config.runsc.as_deref(), &host.data_dir.join(SEEN))
            .map_err(IsolationError::failed("note which runsc is used"))?;
        if let Err(error @ Unfit::Unusable { .. }) = &program {
            tracing::warn!(%error, "new sandboxes with isolation gvisor or auto are refused");
        }
        let runner = program.as_ref().ok().cloned();
        let runner = runner.map(|path| (guest_program::RUNNER, Piece::File(path)));
        let seats = Seats::open(
            SeatsConfig {
                // A seat takes a hundredth of the time that runsc does.
                warm: 0,
                handing: Handing::default(),
                guest: config.guest,
                beside: runner.into_iter().collect(),
                task_cost: TASK_COST,
                own_kernel: true,
                patience: spawner::PATIENCE,
                boots_per_cpu: Some(BOOTS_PER_CPU),
                seldom: true,
                watches_scores: false,
                paths: Vec::new(),
            },
            host,
        )?;
        Ok(Self {
            seats,
            program,
            probed: Arc::default(),
        })
    }

    pub(crate) fn program(&self) -> Result<&PathBuf, IsolationError> {
        self.program.as_ref().map_err(|error| {
            IsolationError::Unsupported(format!(
                "the tier 'gvisor' is not available on this host: {error}"
            ))
        })
    }

    pub(crate) async fn start(&self, boot: Boot) -> Result<Sandboxed, IsolationError> {
        self.program()?;
        self.capabilities().check(&boot.machine.limits)?;
        let keeper = bundle::keeper(&boot.machine);
        let settled = self.seats.boot(boot, Becomes::Keeper(keeper)).await?;
        let settled = blocking(move || {
            // If this fails it is ended before anybody hears of it.
            let settled = settled.arrived();
            spare_the_kernel(settled.group())
                .map_err(IsolationError::failed("set the OOM scores"))?;
            Ok(settled.on_its_way())
        });
        Ok(Sandboxed::new(settled.await?, &self.seats))
    }
}

#[async_trait]
impl Isolation for GvisorTier {
    fn name(&self) -> &'static str {
        TIER
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            limits: Limits {
                // The guest puts it in force for the programs inside when it starts.
                pids: Limit::Enforced {
                    most: None,
                    live: false,
                },
                ..self.seats.limits()
            },
            no_new_privs: true,
            memory: false,
            volumes: false,
            // Its network is inside gVisor, where the host cannot listen.
            identity: false,
            memory_least_mb: MEMORY_LEAST_MB,
            task_cost: TASK_COST,
            // The sentry counts them once, when it starts.
            cpus_fixed: true,
        }
    }

    fn available(&self) -> Result<(), IsolationError> {
        self.program().map(drop)
    }

    fn installed(&self) -> bool {
        self.program != Err(Unfit::Missing)
    }

    async fn turn(&self, owner: Option<&str>) -> Result<Option<BootTurn>, IsolationError> {
        self.seats.turn(owner).await
    }

    async fn works(&self) -> Result<(), IsolationError> {
        self.probe().await.map(drop).map_err(|reason| {
            IsolationError::Unsupported(format!("runsc does not work on this host: {reason}"))
        })
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
        vec![match self.probe().await {
            Ok(told) => good(TIER, told),
            Err(reason) => warning(
                TIER,
                format!("sandboxes cannot have isolation gvisor: {reason}"),
                "run scripts/provide-runsc, which provides a runsc that was tried".into(),
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
                Adopted::Running(Box::new(Sandboxed::new(*settled, &self.seats)))
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
