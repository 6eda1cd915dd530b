//! The handle on the server around a dialect.

use std::time::Duration;

use cove_control::Control;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::streams::Streams;

/// Cheap to clone.
#[derive(Clone)]
pub struct Front {
    pub control: Control,
    /// Cancelled when the server begins to end: streams that can be resumed say so and stop.
    pub draining: CancellationToken,
    /// Cancelled soon after: who follows a command ends, the command goes on.
    pub leaving: CancellationToken,
    /// Cancelled when everything else must end too.
    pub closing: CancellationToken,
    /// What each organisation holds open.
    pub streams: Streams,
    /// For the whole of a body that is read into memory.
    pub body_timeout: Duration,
    /// Between two pieces of an upload.
    pub upload_idle: Duration,
    /// Whether the server itself speaks TLS.
    pub secure: bool,
    /// Conversations that left HTTP behind.
    pub sessions: TaskTracker,
    /// Where ports inside are reached from outside; without it they are not.
    pub previews: Option<PreviewPlace>,
    /// Where the SSH gateway is, if there is one.
    pub ssh: Option<SshAddress>,
}

/// Host and port of the SSH gateway, as clients dial it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshAddress {
    pub host: String,
    pub port: u16,
}

impl SshAddress {
    /// What a person types.
    pub fn command(&self, user: &str) -> String {
        /// The port clients take when none is given.
        const USUAL_PORT: u16 = 22;
        match self.port {
            USUAL_PORT => format!("ssh {user}@{}", self.host),
            port => format!("ssh -p {port} {user}@{}", self.host),
        }
    }
}

/// `{port}-{id}.{authority}`, with `-` for the `_` of an id, is a port of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewPlace {
    pub secure: bool,
    /// The domain, and the port where it is not the scheme's own.
    pub authority: String,
}
