//! The interface every isolation tier offers: boot a machine from a root, find it again, limit it,
//! end it. The engine knows only this.
#![forbid(unsafe_code)]

pub mod accounts;
pub mod claims;

use std::io;
use std::path::PathBuf;

use async_trait::async_trait;
use cove_model::{NetworkPolicy, Resources, SandboxId};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

/// What a tier can do; a request beyond it is refused by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    pub live_resize: bool,
    pub elastic_memory: bool,
    pub io_read_limit: bool,
    pub io_write_limit: bool,
    pub no_new_privs: bool,
    /// Processes and their memory can be captured and brought back.
    pub memory: bool,
}

impl Capabilities {
    /// Their names, for reports.
    pub fn names(&self) -> Vec<String> {
        [
            ("live_resize", self.live_resize),
            ("elastic_memory", self.elastic_memory),
            ("io_read_limit", self.io_read_limit),
            ("io_write_limit", self.io_write_limit),
            ("no_new_privs", self.no_new_privs),
            ("memory", self.memory),
        ]
        .into_iter()
        .filter(|(_, has)| *has)
        .map(|(name, _)| name.to_owned())
        .collect()
    }
}

/// The disk a machine boots from.
#[derive(Debug, Clone)]
pub struct Root {
    /// The image, never written.
    pub image: PathBuf,
    /// The sandbox's own volume; the tier keeps what it needs below it.
    pub volume: PathBuf,
}

/// Makes a root; may block.
pub type MakeRoot = Box<dyn FnOnce() -> Result<Root, IsolationError> + Send>;

/// What to boot. The root is made by the tier, which prepares the rest at the same time.
pub struct Boot {
    pub id: SandboxId,
    pub hostname: String,
    pub limits: Resources,
    pub no_new_privs: bool,
    /// In force before the first instruction of the guest.
    pub network: NetworkPolicy,
    pub root: MakeRoot,
}

/// A machine to bring back from captured memory, under an identity of its own.
pub struct Restore {
    pub boot: Boot,
    /// The directory [`Machine::capture`] filled; read, never changed.
    pub memory: PathBuf,
}

/// Called once while no process of the machine runs, so that the disk can be copied in the same
/// instant as the memory. Blocking.
pub type AtRest = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// What becomes of the machine once it is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// It goes on.
    Continue,
    /// It stays stopped until [`Machine::kill`] ends it or [`Machine::thaw`] lets it go on, so that
    /// its owner can make sure of the capture first.
    Hold,
}

/// What a capture needs to be brought back, as the tier that made it understands it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Captured {
    /// How long no process of the machine ran.
    pub stopped_us: u64,
    pub memory_bytes: u64,
    pub needs: Needs,
}

/// What a host must offer for captured memory to be restored on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Needs {
    pub tier: String,
    pub architecture: String,
    /// CPU features the programs inside may have found and use.
    pub cpu_features: Vec<String>,
    pub kernel: String,
    /// Programs and formats involved, with versions.
    pub components: std::collections::BTreeMap<String, String>,
}

/// What is written down about a running machine, enough to find it after a restart of the engine.
/// Only the tier that wrote it can read it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineRecord {
    pub tier: String,
    pub detail: serde_json::Value,
}

/// Figures of a running machine from the host's books.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub cpu_usec: u64,
    pub memory_bytes: u64,
    /// The part of `memory_bytes` the kernel can take back.
    pub memory_reclaimable_bytes: u64,
    pub memory_peak_bytes: u64,
    pub pids: u64,
    pub oom_kills: u64,
    pub network_sent_bytes: u64,
    pub network_received_bytes: u64,
}

/// What became of a machine while no engine watched.
pub enum Adopted {
    Running(Box<dyn Machine>),
    /// It ended; its last figures, when the host still had them.
    Gone(Option<Usage>),
}

/// What the kernel tells about a machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryEvent {
    /// Near or at the limit; an elastic machine should grow now.
    Pressure,
    /// Something was killed; the count is since the machine booted.
    OomKilled { kills: u64 },
}

#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    #[error("{0}")]
    Unsupported(String),
    #[error("{field} cannot go below what is in use: {used} are used, {wanted} asked for")]
    LimitBelowUse {
        field: &'static str,
        used: u64,
        wanted: u64,
    },
    #[error("the host has no free {0} for another sandbox")]
    Exhausted(&'static str),
    /// Something inside cannot be captured; the machine goes on unharmed.
    #[error("{process} cannot be captured: {reason}")]
    Uncapturable { process: String, reason: String },
    /// Captured memory asks for what this host lacks.
    #[error("this host cannot restore that memory: {0}")]
    Unfit(String),
    #[error("{step} took longer than {seconds} s")]
    TimedOut { step: &'static str, seconds: u64 },
    #[error("{step}")]
    Failed {
        step: String,
        #[source]
        source: io::Error,
    },
}

impl IsolationError {
    pub fn failed(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Failed { step, source }
    }
}

#[async_trait]
pub trait Isolation: Send + Sync {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;

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

    /// Gives back what is held ready for later boots, before the engine goes.
    async fn close(&self);
}

/// One running machine.
#[async_trait]
pub trait Machine: Send + Sync {
    fn record(&self) -> MachineRecord;

    /// A new connection to the guest, checked to be answered by this machine's PID 1.
    async fn connect(&self) -> io::Result<UnixStream>;

    /// Returns when PID 1 is gone and so is everything under it.
    async fn exited(&self);

    fn kill(&self) -> io::Result<()>;

    fn usage(&self) -> Result<Usage, IsolationError>;

    /// Sets limits while it runs; refused when below what is in use. `memory_mb` is the memory limit
    /// to begin with, between `limits.memory_mb` and its maximum.
    fn resize(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError>;

    /// Puts limits in force on a machine found running, whatever it uses: a limit below use holds it
    /// there. `memory_mb` as in [`Machine::resize`].
    fn reapply(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError>;

    /// Moves the elastic memory limit; `grown` is between `memory_mb` and `memory_max_mb`.
    fn grow_memory(&self, limits: &Resources, grown_mb: u64) -> Result<(), IsolationError>;

    /// Changes what it may reach; connections that are forbidden now are cut when this returns.
    fn set_network(&self, policy: &NetworkPolicy) -> Result<(), IsolationError>;

    /// The next thing the kernel says about memory. Pends forever on a machine that cannot tell.
    async fn memory_event(&self) -> Result<MemoryEvent, IsolationError>;

    /// Stops every process where it is, memory kept. May be repeated.
    fn freeze(&self) -> Result<(), IsolationError>;

    /// Lets a frozen or held machine go on. May be repeated.
    fn thaw(&self) -> Result<(), IsolationError>;

    /// Writes processes and memory into `memory`, an empty directory, and calls `at_rest` in between.
    /// When it fails, the machine goes on as before.
    async fn capture(
        &self,
        memory: &std::path::Path,
        at_rest: AtRest,
        afterwards: Afterwards,
    ) -> Result<Captured, IsolationError>;

    /// Says before its end that nobody will want its disk any more: what it has not put there yet need
    /// not be.
    fn discard(&self) {}

    /// Removes what it held on the host. Only after [`Machine::exited`]. May be repeated.
    async fn dispose(&self) -> Result<(), IsolationError>;
}
