//! The tier as the engine sees it: what it can do here, and where each part of its work is.

mod probe;
mod revive;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use cove_criu::Program;
use cove_isolation::slots;
use cove_isolation::{
    Adopted, Boot, Capabilities, Isolation, IsolationError, Machine, MachineRecord, Needs,
    OpenTier, Placed, Restore, Root, TaskCost, TierHost, Warm,
};
use cove_runner_api::Finding;
use cove_seats::probe::Probed;
use cove_seats::{Becomes, Detail, Found, Handing, Seats, SeatsConfig, Settled, rootfs, spawner};

use crate::capturer::Capturer;
use crate::machine::{Container, TIER};

/// How many seats wait ready by default: enough for a burst of one agent's forks, little memory.
const DEFAULT_WARM: usize = 4;

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

#[derive(Clone)]
pub struct ContainerTier {
    shared: Arc<Shared>,
}

struct Shared {
    seats: Arc<Seats>,
    capturer: Arc<Capturer>,
    probed: Probed,
}

impl ContainerTier {
    /// Sets up what all sandboxes share. Blocking; call it before serving.
    pub fn open(config: ContainerConfig, host: &TierHost) -> Result<Self, IsolationError> {
        let program = Program::find(config.criu.as_deref());
        let paths = program
            .iter()
            .map(|program| program.path.to_string_lossy().into_owned());
        let seats = Seats::open(
            SeatsConfig {
                warm: config.warm,
                handing: config.handing,
                guest: config.guest,
                beside: Vec::new(),
                task_cost: TaskCost::PLAIN,
                own_kernel: false,
                patience: spawner::PATIENCE,
                boots_per_cpu: None,
                seldom: false,
                watches_scores: true,
                paths: paths.collect(),
            },
            host,
        )?;
        let installed = seats.maker.programs.name();
        let guest = installed.map_err(IsolationError::failed("find the guest"))?;
        let capturer = Capturer::new(
            program,
            Arc::clone(&seats.maker.spawner),
            Arc::clone(&host.parser),
            seats.runtime_dir.clone(),
            guest,
            seats.staging.clone(),
            seats.cgroups.version(),
        );
        let shared = Shared {
            seats,
            capturer: Arc::new(capturer),
            probed: Probed::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Which version of cgroups limits the sandboxes.
    pub(crate) fn cgroup_version(&self) -> u8 {
        self.shared.seats.cgroups.version()
    }
}

impl Shared {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            limits: self.seats.limits(),
            no_new_privs: true,
            memory: self.capturer.program().is_ok(),
            volumes: true,
            identity: true,
            memory_least_mb: 0,
            cpus_fixed: false,
            task_cost: TaskCost::PLAIN,
        }
    }

    fn container(&self, settled: Settled) -> Container {
        Container::new(settled, &self.seats, Arc::clone(&self.capturer))
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
        self.shared.capabilities().check(&boot.machine.limits)?;
        let settled = self.shared.seats.boot(boot, Becomes::Guest).await?;
        Ok(Box::new(self.shared.container(settled)))
    }

    async fn adopt(&self, record: &MachineRecord) -> Result<Adopted, IsolationError> {
        let detail: Detail = serde_json::from_value(record.detail.clone()).map_err(|error| {
            IsolationError::failed("read the machine's record")(io::Error::other(error))
        })?;
        Ok(match self.shared.seats.take_over(detail).await? {
            Found::Gone(usage) => Adopted::Gone(usage),
            Found::Running(settled) => {
                let container = self.shared.container(*settled);
                container.wake();
                Adopted::Running(Box::new(container))
            }
        })
    }

    async fn sweep(&self) -> Result<u64, IsolationError> {
        self.shared.seats.sweep().await
    }

    async fn warm_up(&self) {
        self.shared.seats.warm_up().await;
    }

    async fn cool_down(&self) {
        self.shared.seats.cool_down().await;
    }

    fn warm(&self) -> Warm {
        self.shared.seats.ready()
    }

    async fn close(&self) {
        self.shared.seats.close().await;
    }
}
