//! A running virtual machine. Its first process on the host is the supervisor; QEMU ends with it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cove_isolation::{
    Afterwards, AtRest, Captured, IsolationError, Machine, MachineRecord, MemoryEvent, Usage,
};
use cove_model::{NetworkPolicy, Resources};
use cove_protocol::brief;
use cove_runner_api::GuestStream;
use cove_seats::cgroup::MemoryWatch;
use cove_seats::{Body, GuestSocket, Seats, Settled, blocking};

pub const TIER: &str = "vm";
/// How long a guest may take to write everything to its disk.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);

pub struct Virtual {
    body: Arc<Body>,
    reach: GuestSocket,
    watch: tokio::sync::Mutex<MemoryWatch>,
}

impl Virtual {
    pub fn new(settled: Settled, seats: &Seats) -> Self {
        let (body, reach, watch) = Body::of(settled, seats);
        Self {
            body: Arc::new(body),
            reach,
            watch: tokio::sync::Mutex::new(watch),
        }
    }

    /// Works on the body where it may wait. Goes on to its end also when the caller does not wait for it any more.
    async fn on_body<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Body) -> Result<T, IsolationError> + Send + 'static,
    ) -> Result<T, IsolationError> {
        let body = Arc::clone(&self.body);
        blocking(move || work(&body)).await
    }
}

#[async_trait]
impl Machine for Virtual {
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
                .map_err(IsolationError::failed("end the supervisor"))
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

    async fn grow_memory(&self, _: &Resources, _: u64) -> Result<(), IsolationError> {
        Err(IsolationError::Unsupported(
            "the memory of a sandbox of the tier 'vm' cannot grow while it runs".into(),
        ))
    }

    async fn memory_event(&self) -> Result<MemoryEvent, IsolationError> {
        let mut watch = self.watch.lock().await;
        let event = watch.next().await;
        event.map_err(IsolationError::failed("watch the memory"))
    }

    /// What programs wrote is in the machine's own memory until its kernel writes it to the disk. So that a copy of
    /// the disk has it, the guest does that first.
    async fn freeze(&self) -> Result<(), IsolationError> {
        let group = self.body.group().clone();
        let frozen = blocking(move || Ok(group.is_asked_to_freeze().unwrap_or(false)));
        if !frozen.await? {
            brief::flush(self.reach.connect(), FLUSH_LIMIT)
                .await
                .map_err(|error| {
                    IsolationError::failed("have the guest write to its disk")(io::Error::other(
                        error,
                    ))
                })?;
        }
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
        "the tier 'vm' cannot capture or restore memory; the tier 'container' can".into(),
    )
}
