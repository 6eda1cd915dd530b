//! A running machine under gVisor. Its first process on the host is the keeper; sentry, gofer and the processes
//! that stand for programs inside end with it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use cove_isolation::{
    Afterwards, AtRest, Captured, IsolationError, Machine, MachineRecord, MemoryEvent, Usage,
};
use cove_model::{NetworkPolicy, Resources};
use cove_runner_api::GuestStream;
use cove_seats::cgroup::{Group, MemoryWatch};
use cove_seats::{Body, GuestSocket, Seats, Settled, blocking, oom, start_time};

pub const TIER: &str = "gvisor";

pub struct Sandboxed {
    body: Arc<Body>,
    reach: GuestSocket,
    watch: tokio::sync::Mutex<MemoryWatch>,
}

impl Sandboxed {
    pub fn new(settled: Settled, seats: &Seats) -> Self {
        let (body, reach, watch) = Body::of(settled, seats);
        Self {
            body: Arc::new(body),
            reach,
            watch: tokio::sync::Mutex::new(watch),
        }
    }

    /// Works on the body where it may wait. Goes on to its end also when the caller does not wait for it
    /// any more.
    async fn on_body<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Body) -> Result<T, IsolationError> + Send + 'static,
    ) -> Result<T, IsolationError> {
        let body = Arc::clone(&self.body);
        blocking(move || work(&body)).await
    }
}

/// Puts the processes that run the sandbox, and those that stand for the guest, behind those that stand for its
/// programs in the order in which the kernel ends them when memory runs out. Before the first program: all have
/// the highest score by then, and the oldest of those without a command line is what the sentry makes all others
/// from, so that programs have its score. May wait.
pub fn spare_the_kernel(group: &Group) -> io::Result<()> {
    let mut origin = None;
    let mut others = Vec::new();
    for pid in group.processes() {
        // One that ended meanwhile needs no score.
        let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else {
            continue;
        };
        let Some(started) = start_time(pid)? else {
            continue;
        };
        if line.is_empty() && origin.is_none_or(|oldest| (started, pid) < oldest) {
            others.extend(origin.replace((started, pid)));
        } else {
            others.push((started, pid));
        }
    }
    for (_, pid) in others {
        oom::lower(pid)?;
    }
    Ok(())
}

#[async_trait]
impl Machine for Sandboxed {
    fn record(&self) -> MachineRecord {
        let detail = serde_json::to_value(self.body.detail()).expect("a plain struct serialises");
        MachineRecord {
            tier: TIER.into(),
            detail,
        }
    }

    async fn connect(&self) -> io::Result<GuestStream> {
        self.reach.connect().await.map(GuestStream::Unix)
    }

    async fn exited(&self) {
        self.body.exited().await;
    }

    async fn kill(&self) -> Result<(), IsolationError> {
        self.on_body(|body| {
            body.kill()
                .map_err(IsolationError::failed("end the keeper"))
        })
        .await
    }

    async fn usage(&self) -> Result<Usage, IsolationError> {
        self.on_body(Body::usage).await
    }

    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), IsolationError> {
        let policy = policy.clone();
        self.on_body(move |body| body.set_network(policy)).await
    }

    async fn resize(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError> {
        let limits = limits.clone();
        self.on_body(move |body| body.resize(&limits, memory_mb))
            .await
    }

    async fn reapply(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError> {
        let limits = limits.clone();
        self.on_body(move |body| body.reapply(&limits, memory_mb))
            .await
    }

    async fn grow_memory(&self, limits: &Resources, grown_mb: u64) -> Result<(), IsolationError> {
        let limits = limits.clone();
        self.on_body(move |body| body.grow_memory(&limits, grown_mb))
            .await
    }

    async fn memory_event(&self) -> Result<MemoryEvent, IsolationError> {
        let mut watch = self.watch.lock().await;
        let event = watch.next().await;
        event.map_err(IsolationError::failed("watch the memory"))
    }

    async fn freeze(&self) -> Result<(), IsolationError> {
        self.on_body(Body::freeze).await
    }

    async fn thaw(&self) -> Result<(), IsolationError> {
        self.on_body(Body::thaw).await
    }

    async fn capture(
        &self,
        _: &Path,
        _: AtRest,
        _: Afterwards,
    ) -> Result<Captured, IsolationError> {
        Err(no_memory())
    }

    fn discard(&self) {
        self.body.discard();
    }

    async fn dispose(&self) -> Result<(), IsolationError> {
        self.on_body(Body::dispose).await
    }
}

pub fn no_memory() -> IsolationError {
    IsolationError::Unsupported(
        "the tier 'gvisor' cannot capture or restore memory; the tier 'container' can".into(),
    )
}
