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
use cove_seats::{Body, Detail, GuestSocket, Seats, Settled, blocking};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::capture::{self, Held};
use crate::shape::Shape;

pub const TIER: &str = "vm";
/// How long a guest may take to write everything to its disk.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);

/// What is written down of a machine.
#[derive(Serialize, Deserialize)]
pub struct Written {
    #[serde(flatten)]
    pub detail: Detail,
    /// Absent in records of machines that cannot be captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
}

pub struct Virtual {
    body: Arc<Body>,
    shape: Option<Shape>,
    /// It was captured, and stands still for its owner to decide.
    held: Mutex<Option<Held>>,
    reach: GuestSocket,
    watch: tokio::sync::Mutex<MemoryWatch>,
}

impl Virtual {
    pub fn new(settled: Settled, seats: &Seats, shape: Option<Shape>) -> Self {
        let (body, reach, watch) = Body::of(settled, seats);
        Self {
            body: Arc::new(body),
            shape,
            held: Mutex::default(),
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
        let written = Written {
            detail: self.body.detail(),
            shape: self.shape.clone(),
        };
        let detail = serde_json::to_value(written).expect("a plain struct serialises");
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
        let held = self.held.lock().take();
        self.on_body(|body| {
            body.thaw()?;
            held.map_or(Ok(()), Held::go_on)
        })
        .await
    }

    async fn capture(
        &self,
        memory: &Path,
        at_rest: AtRest,
        afterwards: Afterwards,
    ) -> Result<Captured, IsolationError> {
        let shape = self.shape.clone().ok_or_else(capture::older)?;
        let memory = memory.to_owned();
        let captured = self
            .on_body(move |body| capture::capture(body, &shape, &memory, at_rest, afterwards))
            .await;
        let (captured, held) = captured?;
        *self.held.lock() = held;
        Ok(captured)
    }

    fn discard(&self) {
        self.body.discard();
    }

    async fn dispose(&self) -> Result<(), IsolationError> {
        self.on_body(Body::dispose).await
    }
}
