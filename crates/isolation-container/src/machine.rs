//! A running container.
//!
//! What is done to one goes to the kernel through files and sockets that may make the caller wait, so it
//! runs on threads that may wait, on the [`Body`] that they share with the [`Container`].

use std::io;
use std::net::{SocketAddrV4, TcpListener};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use cove_isolation::{
    Afterwards, AtRest, Captured, IsolationError, Machine, MachineRecord, MemoryEvent, Usage,
};
use cove_model::{NetworkPolicy, Resources};
use cove_protocol::brief;
use cove_runner_api::GuestStream;
use cove_seats::cgroup::MemoryWatch;
use cove_seats::{Body, GuestSocket, Seats, Settled};
use tokio::task::spawn_blocking;

use crate::capture::{self, Subject};
use crate::capturer::Capturer;

pub const TIER: &str = "container";

/// How long a restored guest may take to look around.
const REFRESH_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

pub struct Container {
    body: Arc<Body>,
    capturer: Arc<Capturer>,
    /// Held while it is captured.
    turn: Arc<tokio::sync::Mutex<()>>,
    reach: GuestSocket,
    watch: tokio::sync::Mutex<MemoryWatch>,
}

impl Container {
    pub fn new(settled: Settled, seats: &Seats, capturer: Arc<Capturer>) -> Self {
        let (body, reach, watch) = Body::of(settled, seats);
        Self {
            body: Arc::new(body),
            capturer,
            turn: Arc::default(),
            reach,
            watch: tokio::sync::Mutex::new(watch),
        }
    }

    /// An engine that died in the middle of a capture may have left the guest quiet.
    pub fn wake(&self) {
        self.body.wake();
    }

    /// A restored guest takes calls again and looks who it is now.
    pub async fn introduce(&self) {
        self.wake();
        if let Err(error) = brief::refresh(self.reach.connect(), REFRESH_LIMIT).await {
            tracing::warn!(%error, "a restored guest may still report its old name and limits");
        }
    }

    /// Works on the body where it may wait. Goes on to its end also when the caller does not wait for it
    /// any more.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Body) -> Result<T, IsolationError> + Send + 'static,
    ) -> Result<T, IsolationError> {
        let body = Arc::clone(&self.body);
        spawn_blocking(move || work(&body))
            .await
            .unwrap_or_else(|error| {
                Err(IsolationError::failed("run a blocking step")(
                    io::Error::other(error),
                ))
            })
    }
}

#[async_trait]
impl Machine for Container {
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

    async fn listen(&self, address: SocketAddrV4) -> Result<TcpListener, IsolationError> {
        self.blocking(move |body| body.listen(address)).await
    }

    async fn exited(&self) {
        self.body.exited().await;
    }

    async fn kill(&self) -> Result<(), IsolationError> {
        self.blocking(|body| body.kill().map_err(IsolationError::failed("end PID 1")))
            .await
    }

    async fn usage(&self) -> Result<Usage, IsolationError> {
        self.blocking(Body::usage).await
    }

    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), IsolationError> {
        let policy = policy.clone();
        self.blocking(move |body| body.set_network(policy)).await
    }

    async fn resize(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError> {
        let limits = limits.clone();
        self.blocking(move |body| body.resize(&limits, memory_mb))
            .await
    }

    async fn reapply(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError> {
        let limits = limits.clone();
        self.blocking(move |body| body.reapply(&limits, memory_mb))
            .await
    }

    async fn grow_memory(&self, limits: &Resources, grown_mb: u64) -> Result<(), IsolationError> {
        let limits = limits.clone();
        self.blocking(move |body| body.grow_memory(&limits, grown_mb))
            .await
    }

    async fn memory_event(&self) -> Result<MemoryEvent, IsolationError> {
        let mut watch = self.watch.lock().await;
        let event = watch.next().await;
        event.map_err(IsolationError::failed("watch the memory"))
    }

    async fn freeze(&self) -> Result<(), IsolationError> {
        self.blocking(Body::freeze).await
    }

    async fn thaw(&self) -> Result<(), IsolationError> {
        self.blocking(Body::thaw).await
    }

    async fn capture(
        &self,
        memory: &Path,
        at_rest: AtRest,
        afterwards: Afterwards,
    ) -> Result<Captured, IsolationError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let capturer = Arc::clone(&self.capturer);
        capturer.program()?;
        let stillness = self.blocking(Body::let_go_for_capture).await?;
        if let Err(error) = cove_seats::quiesce(&self.reach).await {
            // One that was frozen is frozen again, which takes a while.
            self.blocking(move |_| {
                drop(stillness);
                Ok(())
            })
            .await?;
            return Err(error);
        }
        let memory = memory.to_owned();
        self.blocking(move |body| {
            let (_turn, mut stillness) = (turn, stillness);
            let detail = body.detail();
            let guest = match detail.guest.is_empty() {
                true => &capturer.guest,
                false => &detail.guest,
            };
            let subject = Subject {
                pid: detail.pid,
                uid_base: detail.uid_base,
                group: body.group(),
                guest,
                volumes: &detail.volumes,
            };
            let captured = capture::capture(&capturer, &subject, &memory, at_rest, afterwards);
            // A held machine stays as it is; it hears the signal when it is let go.
            stillness.freeze &= captured.is_err() || afterwards == Afterwards::Continue;
            captured
        })
        .await
    }

    fn discard(&self) {
        self.body.discard();
    }

    async fn dispose(&self) -> Result<(), IsolationError> {
        self.blocking(Body::dispose).await
    }
}
