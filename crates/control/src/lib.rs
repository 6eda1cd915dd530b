//! The control plane: tenants and their keys, quotas, the lifecycle of sandboxes, metering, events
//! and audit. No HTTP here and no privileges: it speaks to a host through [`RunnerApi`] and keeps
//! its books in a [`Store`].
//!
//! [`Control`] is the handle everything goes through. Each call takes the [`Principal`] that
//! [`Control::authenticate`] made, and answers for that organisation only: what belongs to another
//! one does not exist. What the owner wants is durable before the host is asked for it, so a crash
//! at any moment leaves something [`Control::prepare`] can finish or undo.
#![forbid(unsafe_code)]

use std::sync::Arc;

use cove_runner::RunnerApi;
use cove_store::Store;

mod activity;
mod audit;
pub mod config;
pub mod error;
pub mod events;
pub mod guest;
mod images;
pub mod keys;
mod lifecycle;
mod meter;
mod organisations;
pub mod principal;
pub mod rate;
mod reconcile;
pub mod sandboxes;
#[cfg(feature = "testing")]
pub mod testing;

pub use config::{Clock, ControlConfig, SystemClock};
pub use cove_protocol::client::{Guest, GuestError};
pub use cove_runner::{HostReport, ImageJob, ImageSource, ImageView, JobState, Sample};
pub use cove_store::{
    AuditRecord, Holding, Key, Organisation, Page, PageRequest, Period, Quota, SandboxFilter,
    SandboxUsage, Scope, StoredEvent, Usage,
};
pub use error::{ControlError, ErrorCode};
pub use events::{EventItem, EventSubscription};
pub use guest::{CommandLine, CommandRequest, GuestAccess, GuestAction};
pub use keys::{ApiToken, CreateKey, NewKey, TokenHash};
pub use principal::{Origin, Principal};
pub use rate::RateLimit;
pub use sandboxes::{CreateSandbox, Created, Sandbox, SandboxPatch};

/// The organisation that runs the installation.
pub const HOME_ORGANISATION: &str = "default";

/// The control plane. Cheap to clone.
#[derive(Clone)]
pub struct Control(Arc<Inner>);

struct Inner {
    config: ControlConfig,
    store: Arc<dyn Store>,
    runner: Arc<dyn RunnerApi>,
    clock: Arc<dyn Clock>,
}

impl Control {
    pub fn new(
        config: ControlConfig,
        store: Arc<dyn Store>,
        runner: Arc<dyn RunnerApi>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self(Arc::new(Inner {
            config,
            store,
            runner,
            clock,
        }))
    }

    /// Call once before anything else: makes the home organisation and brings the books and the
    /// host into agreement after whatever happened before. Needs the store; a runner that does not
    /// answer yet is met again by [`Control::run`].
    pub async fn prepare(&self) -> Result<(), ControlError> {
        todo!()
    }

    /// The background work (events, metering, idle policies, reconciling, sweeping) until
    /// `shutdown`; everything pending is written before it returns.
    pub async fn run(&self, shutdown: tokio_util::sync::CancellationToken) {
        shutdown.cancelled().await;
    }

    /// Whether the store and the runner answer, for readiness checks.
    pub async fn ready(&self) -> Result<(), ControlError> {
        todo!()
    }
}
