//! A tier: what makes machines of one kind, and what a host gives it to do so.

use std::any::Any;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use cove_model::{Accel, NetworkPolicy, Resources, SandboxId};
use cove_network::Network;
use cove_parser::Parser;
use cove_pool::Disk;
use cove_runner_api::Finding;

use crate::slots::Slots;
use crate::{Capabilities, CpuBook, IsolationError, Machine, MachineRecord, Needs, Usage};

/// What a host gives to each of its tiers.
#[derive(Clone)]
pub struct TierHost {
    /// The engine's name; no other engine on the host has the same.
    pub instance: String,
    /// The engine's own directory; survives restarts.
    pub data_dir: PathBuf,
    /// The pool's directory, on a filesystem that can be idmapped. Tiers keep what machines share there.
    pub pool_dir: PathBuf,
    /// Major and minor of the device below the pool, when it has one of its own.
    pub pool_device: Option<(u32, u32)>,
    /// Host-wide directory of all engines; emptied by a reboot.
    pub host_dir: PathBuf,
    pub slots: Arc<Slots>,
    /// The CPUs that machines of all tiers run on; filled by the first tier that opens.
    pub cpu_book: Arc<OnceLock<Arc<CpuBook>>>,
    /// Reads what guests and untrusted programs left.
    pub parser: Arc<Parser>,
    /// What sandboxes reach others through; absent on a host that cannot have one.
    pub network: Option<Arc<Network>>,
}

/// The settings of a tier, which open it.
pub trait OpenTier: Send + Sync {
    /// Sets up what all machines of the tier share. Blocking; called before anything is served, in a
    /// runtime's context.
    fn open(&self, host: &TierHost) -> Result<Arc<dyn Isolation>, IsolationError>;
}

/// What a machine boots from.
#[derive(Debug, Clone)]
pub struct Root {
    /// The image, never written.
    pub image: PathBuf,
    /// The sandbox's own disk; what lies on it and how is the tier's. It may be a copy of another.
    pub disk: Disk,
}

/// Makes a root; may block.
pub type MakeRoot = Box<dyn FnOnce() -> Result<Root, IsolationError> + Send>;

/// What a machine is to be, whatever its root.
#[derive(Debug, Clone)]
pub struct MachineSpec {
    pub id: SandboxId,
    /// The organisation it belongs to, where that is known: boots that wait for a turn are shared between them.
    pub owner: Option<String>,
    pub hostname: String,
    pub limits: Resources,
    pub no_new_privs: bool,
    /// Of a virtual machine; absent: KVM. Other tiers have none.
    pub accel: Option<Accel>,
    /// In force before the first instruction of the guest.
    pub network: NetworkPolicy,
    pub volumes: Vec<MountedVolume>,
}

/// A directory of the host that a machine shows at a place of its own, with its own ids, without set-id
/// programs and devices. It is no part of the machine's disk or of its captures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedVolume {
    pub dir: PathBuf,
    /// Where in the machine; in the form of [`cove_model::volume::check_mount_path`].
    pub path: String,
    pub read_only: bool,
}

/// A turn to boot, of a tier that boots only so many machines at once. It goes back when the last copy is dropped.
#[derive(Clone)]
pub struct BootTurn(#[expect(dead_code, reason = "held, not read")] Arc<dyn Any + Send + Sync>);

impl BootTurn {
    pub fn new(held: impl Any + Send + Sync) -> Self {
        Self(Arc::new(held))
    }
}

impl fmt::Debug for BootTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BootTurn")
    }
}

/// What to boot. The root is made by the tier, which prepares the rest at the same time.
pub struct Boot {
    pub machine: MachineSpec,
    pub root: MakeRoot,
    /// Taken before by [`Isolation::turn`]; without it the boot itself waits for one, and may be refused.
    pub turn: Option<BootTurn>,
}

/// A machine to bring back from captured memory, under an identity of its own.
pub struct Restore {
    pub boot: Boot,
    /// The directory [`Machine::capture`] filled; read, never changed.
    pub memory: PathBuf,
}

/// What became of a machine while no engine watched.
pub enum Adopted {
    Running(Box<dyn Machine>),
    /// It ended; its last figures, when the host still had them.
    Gone(Option<Usage>),
}

/// Where a machine stands in the network.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// Its slot's index there.
    pub index: u32,
    pub sandbox: SandboxId,
    /// The policy that was in force when the record was written.
    pub policy: NetworkPolicy,
}

/// Machines prepared ahead of need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Warm {
    pub wanted: usize,
    pub ready: usize,
}

#[async_trait]
pub trait Isolation: Send + Sync {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;

    /// Whether the host has what the tier needs; the error says what is missing. Known without trying.
    fn available(&self) -> Result<(), IsolationError> {
        Ok(())
    }

    /// Whether the host counts as one that has the tier. Also true where what the tier needs is there and cannot be
    /// used: then sandboxes that should have this tier are refused, and get no weaker one.
    fn installed(&self) -> bool {
        self.available().is_ok()
    }

    /// Whether machines with this acceleration boot here; the error names one that does. Known without trying.
    fn accelerates(&self, accel: Option<Accel>) -> Result<(), IsolationError> {
        match accel {
            None => Ok(()),
            Some(accel) => Err(IsolationError::Unsupported(format!(
                "accel '{}' is for virtual machines, and the tier '{}' has none",
                accel.as_str(),
                self.name()
            ))),
        }
    }

    /// Accelerations that machines can be asked for with.
    fn accels(&self) -> Vec<Accel> {
        Vec::new()
    }

    /// Waits for a turn to boot a machine of this owner, for those who cannot go back once they need it. `None`:
    /// boots of this tier wait for nothing.
    async fn turn(&self, _owner: Option<&str>) -> Result<Option<BootTurn>, IsolationError> {
        Ok(None)
    }

    /// Whether a machine really boots, found out by booting one unless that was done lately.
    async fn works(&self) -> Result<(), IsolationError> {
        self.available()
    }

    /// The directories that make up the file system of a disk over its image, the upper one first, for
    /// whoever packs it. A tier whose disks are no trees refuses. Blocking.
    fn trees(&self, root: &Root) -> Result<Vec<PathBuf>, IsolationError>;

    /// Where a recorded machine stands in the network; `None` when it has no place there.
    fn placed(&self, record: &MachineRecord) -> Option<Placed>;

    /// What of this host helps or hinders the tier. The first call may take seconds, because what can
    /// only be found out by doing it is done.
    async fn findings(&self) -> Vec<Finding>;

    /// Boots PID 1. When this returns, the guest's socket accepts connections.
    async fn boot(&self, boot: Boot) -> Result<Box<dyn Machine>, IsolationError>;

    /// Brings a captured machine back; its processes go on where they were. Connections to the
    /// outside are gone before the first of them runs.
    async fn restore(&self, restore: Restore) -> Result<Box<dyn Machine>, IsolationError>;

    /// Goes through a whole restore and ends the copy before it runs: proof that the capture is good.
    async fn prove(&self, restore: Restore) -> Result<(), IsolationError>;

    /// Whether memory with these needs can be restored here; the error says what is missing.
    fn fits(&self, needs: &Needs) -> Result<(), IsolationError>;

    /// Finds a machine again, or clears away what is left of it. One that stands still, because it was
    /// frozen or held or in the middle of a capture, does so until it is thawed or killed.
    async fn adopt(&self, record: &MachineRecord) -> Result<Adopted, IsolationError>;

    /// Removes what no adopted machine owns. Called once, after every adoption.
    async fn sweep(&self) -> Result<u64, IsolationError>;

    /// Prepares all that the tier keeps ready for later boots; returns when it is there. Benchmarks tell
    /// warm from cold by it.
    async fn warm_up(&self) {}

    /// Gives back what is held ready and prepares nothing more until [`Isolation::warm_up`].
    async fn cool_down(&self) {}

    /// What is kept ready for later boots.
    fn warm(&self) -> Warm {
        Warm::default()
    }

    /// Gives back what is held ready for later boots, before the engine goes.
    async fn close(&self);
}
