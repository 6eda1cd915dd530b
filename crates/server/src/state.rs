//! What every handler shares.

use std::sync::Arc;

use bytes::Bytes;
use cove_control::Control;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::ServerConfig;
use crate::metrics::Metrics;
use crate::preview::Crowds;

/// Bytes of requests and answers held in memory at once, by all callers together.
const BUFFERED_MAX: usize = 512 * 1024 * 1024;
/// What they are counted in.
pub(crate) const BUFFER_UNIT: usize = 64 * 1024;

/// Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Shared>);

pub struct Shared {
    pub(crate) control: Control,
    pub(crate) config: ServerConfig,
    pub(crate) metrics: Metrics,
    /// The contract, written once.
    pub(crate) openapi: Bytes,
    /// Cancelled when the server begins to end: streams that can be resumed say so and stop.
    pub(crate) draining: CancellationToken,
    /// Cancelled when everything else must end too.
    pub(crate) closing: CancellationToken,
    /// Room for what is held in memory, in units of [`BUFFER_UNIT`].
    pub(crate) buffers: Semaphore,
    /// Conversations that left HTTP behind.
    pub(crate) sessions: TaskTracker,
    /// Visits under way, by sandbox.
    pub(crate) crowds: Crowds,
}

impl App {
    pub fn new(control: Control, config: ServerConfig) -> Self {
        let document = cove_api::openapi::document(env!("CARGO_PKG_VERSION"));
        Self(Arc::new(Shared {
            control,
            config,
            metrics: Metrics::default(),
            openapi: document.to_string().into(),
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
            buffers: Semaphore::new(BUFFERED_MAX / BUFFER_UNIT),
            sessions: TaskTracker::new(),
            crowds: Crowds::default(),
        }))
    }
}

impl std::ops::Deref for App {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0
    }
}
