//! What every handler shares.

use std::sync::Arc;

use bytes::Bytes;
use cove_control::{Control, TableSize};
use cove_dialect::{Front, SshAddress, Streams};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::ServerConfig;
use crate::lines::RefusedLines;
use crate::metrics::Metrics;
use crate::preview::{Crowds, PreviewUrl};

/// Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Shared>);

pub struct Shared {
    pub(crate) control: Control,
    pub(crate) config: ServerConfig,
    pub(crate) metrics: Metrics,
    pub(crate) refused_lines: RefusedLines,
    /// The contract, written once.
    pub(crate) openapi: Bytes,
    /// Cancelled when the server begins to end: streams that can be resumed say so and stop.
    pub(crate) draining: CancellationToken,
    /// Cancelled soon after: who follows a command ends, the command goes on.
    pub(crate) leaving: CancellationToken,
    /// Cancelled when everything else must end too.
    pub(crate) closing: CancellationToken,
    /// The same, for what speaks another dialect.
    pub(crate) front: Front,
    /// Conversations that left HTTP behind.
    pub(crate) sessions: TaskTracker,
    /// Visits under way, by sandbox.
    pub(crate) crowds: Crowds,
}

impl App {
    pub fn new(control: Control, config: ServerConfig) -> Self {
        let document = cove_api::openapi::document(env!("CARGO_PKG_VERSION"));
        let [draining, leaving, closing] = std::array::from_fn(|_| CancellationToken::new());
        let sessions = TaskTracker::new();
        let front = Front {
            control: control.clone(),
            draining: draining.clone(),
            leaving: leaving.clone(),
            closing: closing.clone(),
            streams: Streams::default(),
            body_timeout: config.body_timeout,
            upload_idle: config.upload_idle,
            secure: config.tls.is_some(),
            sessions: sessions.clone(),
            previews: config.previews.as_ref().map(PreviewUrl::shown),
            ssh: config.ssh.as_ref().map(|place| SshAddress {
                host: place.host.clone(),
                port: place.port,
            }),
        };
        Self(Arc::new(Shared {
            control,
            front,
            config,
            metrics: Metrics::default(),
            refused_lines: RefusedLines::default(),
            openapi: document.to_string().into(),
            draining,
            leaving,
            closing,
            sessions,
            crowds: Crowds::default(),
        }))
    }

    /// Tables of this server and of the control plane below it, and how many entries each has.
    pub fn table_sizes(&self) -> Vec<TableSize> {
        let mut all = self.control.table_sizes();
        all.extend(self.control.cache_sizes());
        all.push(("visits", self.crowds.len()));
        all.push(("sessions", self.sessions.len()));
        all.push(("streams", self.front.streams.holders()));
        all
    }

    /// What organisations hold open, counted here as well as by every handler.
    pub fn streams(&self) -> Streams {
        self.front.streams.clone()
    }
}

impl std::ops::Deref for App {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0
    }
}
