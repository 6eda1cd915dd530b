//! One running machine, and what is known and kept about it.

use std::io;

use async_trait::async_trait;
use cove_model::{NetworkPolicy, Resources};
use cove_runner_api::GuestStream;
use serde::{Deserialize, Serialize};

use crate::IsolationError;

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

/// Figures of a running machine from the host.
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

/// What the kernel tells about a machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryEvent {
    /// Near or at the limit; an elastic machine should grow now.
    Pressure,
    /// Something was killed; the count is since the machine booted.
    OomKilled { kills: u64 },
}

/// One running machine. Nothing here makes an async worker wait: what blocks runs elsewhere, and goes on to
/// its end when the caller does not wait for it any more.
#[async_trait]
pub trait Machine: Send + Sync {
    fn record(&self) -> MachineRecord;

    /// A new connection to the guest, checked to be answered by this machine's guest and no other. A tier
    /// that reaches its guest over a unix socket gives that, so that its descriptor can be passed on;
    /// another gives any byte stream.
    async fn connect(&self) -> io::Result<GuestStream>;

    /// Listens at an address of its own loopback: who connects there is a program inside this machine and no
    /// other. Not blocking. To be dropped before [`Machine::dispose`].
    async fn listen(
        &self,
        _address: std::net::SocketAddrV4,
    ) -> Result<std::net::TcpListener, IsolationError> {
        Err(IsolationError::Unsupported(
            "sandboxes of this tier have no metadata endpoint; create it without identity".into(),
        ))
    }

    /// Returns when PID 1 is gone and so is everything under it.
    async fn exited(&self);

    /// Ends it, also when it is frozen or held: then nothing in it runs again.
    async fn kill(&self) -> Result<(), IsolationError>;

    async fn usage(&self) -> Result<Usage, IsolationError>;

    /// Sets limits while it runs; refused when below what is in use. `memory_mb` is the memory limit
    /// to begin with, between `limits.memory_mb` and its maximum.
    async fn resize(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError>;

    /// Puts limits in force on a machine found running, whatever it uses: a limit below use holds it
    /// there. `memory_mb` as in [`Machine::resize`].
    async fn reapply(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError>;

    /// Moves the elastic memory limit; `grown` is between `memory_mb` and `memory_max_mb`.
    async fn grow_memory(&self, limits: &Resources, grown_mb: u64) -> Result<(), IsolationError>;

    /// Changes what it may reach; connections that are forbidden now are cut when this returns.
    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), IsolationError>;

    /// The next thing the kernel says about memory. Pends forever on a machine that cannot tell.
    async fn memory_event(&self) -> Result<MemoryEvent, IsolationError>;

    /// Stops every process where it is, memory kept. May be repeated.
    async fn freeze(&self) -> Result<(), IsolationError>;

    /// Lets a frozen or held machine go on. May be repeated.
    async fn thaw(&self) -> Result<(), IsolationError>;

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
