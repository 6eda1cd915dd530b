//! What the control plane asks of a host: the [`RunnerApi`] trait, its types, and its wire.
//!
//! The engine implements the trait on the host; the control plane holds a [`wire::Client`] that
//! speaks it over a unix socket to the privileged runner process. A runner never parses what a guest
//! says: [`RunnerApi::connect`] hands over a connected stream (over the socket: its descriptor), and
//! the unprivileged side speaks the guest protocol on it.
#![forbid(unsafe_code)]

use async_trait::async_trait;
use cove_model::{Event, ResourcesPatch, SandboxId};

pub mod stream;
pub mod types;
pub mod wire;

pub use stream::{ByteStream, GuestStream};
pub use types::*;

#[async_trait]
pub trait RunnerApi: Send + Sync + 'static {
    /// Make and boot a sandbox; answers when PID 1 does. The id is the caller's, so that a retry
    /// after a lost answer finds the first try (`AlreadyExists`).
    async fn create(&self, request: CreateRequest) -> Result<SandboxView, RunnerError>;
    async fn get(&self, id: &SandboxId) -> Result<SandboxView, RunnerError>;
    async fn list(&self) -> Result<Vec<SandboxView>, RunnerError>;
    async fn start(&self, id: &SandboxId) -> Result<SandboxView, RunnerError>;
    async fn stop(&self, id: &SandboxId, grace_ms: u64) -> Result<SandboxView, RunnerError>;
    /// Idempotent: deleting what does not exist is done already.
    async fn delete(&self, id: &SandboxId) -> Result<(), RunnerError>;
    async fn resize(
        &self,
        id: &SandboxId,
        patch: ResourcesPatch,
    ) -> Result<SandboxView, RunnerError>;
    /// Figures from the host's own books (cgroup, quota), not from the guest.
    async fn sample(&self, id: &SandboxId) -> Result<Sample, RunnerError>;
    /// All running sandboxes' figures at once, for metering.
    async fn samples(&self) -> Result<Vec<(SandboxId, Sample)>, RunnerError>;
    /// A new connection to the sandbox's guest.
    async fn connect(&self, id: &SandboxId) -> Result<GuestStream, RunnerError>;
    /// Events after `sequence`, waiting up to `wait_ms` for the first. `EventBatch::lost` when the
    /// ring no longer had some.
    async fn events(&self, after: u64, wait_ms: u64) -> Result<EventBatch, RunnerError>;

    async fn images(&self) -> Result<Vec<ImageView>, RunnerError>;
    /// Starts the work if it is not under way; answers at once with the job's state. Callers poll
    /// with [`RunnerApi::image_job`] for progress.
    async fn add_image(&self, source: ImageSource) -> Result<ImageJob, RunnerError>;
    async fn image_job(&self, id: &str) -> Result<ImageJob, RunnerError>;
    /// Refused while a sandbox uses it.
    async fn remove_image(&self, id: &str) -> Result<(), RunnerError>;

    async fn host(&self) -> Result<HostReport, RunnerError>;
}

/// A batch of events and where to go on.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct EventBatch {
    pub events: Vec<Event>,
    /// Pass as `after` next time.
    pub next: u64,
    pub lost: bool,
}
