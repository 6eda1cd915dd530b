//! The nouns of the runner's interface.

use cove_model::{ImageId, Refusal, Resources, SandboxId, SandboxSpec, State};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CreateRequest {
    pub id: SandboxId,
    pub spec: SandboxSpec,
}

/// A sandbox as its host knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxView {
    pub id: SandboxId,
    pub state: State,
    /// Why it is in this state, when that is not plain from the state.
    pub reason: Option<String>,
    pub spec: SandboxSpec,
    /// Limits in force now; elastic memory may have grown above the spec's.
    pub limits: Resources,
    pub image: ImageId,
    /// What the image says commands should have, under what the spec says.
    pub image_env: Vec<(String, String)>,
    pub image_user: Option<String>,
    pub image_workdir: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
}

/// What a sandbox has used, from the host's books. Counters grow over its whole life, restarts of
/// the sandbox and of the engine included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub running: bool,
    pub cpu_usec: u64,
    pub memory_bytes: u64,
    pub memory_peak_bytes: u64,
    pub memory_limit_bytes: u64,
    pub pids: u64,
    pub oom_kills: u64,
    pub disk_bytes: u64,
    pub disk_limit_bytes: u64,
    pub network_sent_bytes: u64,
    pub network_received_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageView {
    pub id: ImageId,
    pub names: Vec<String>,
    pub digest: Option<String>,
    pub size_bytes: u64,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// `registry`, `bootstrap` or `import`.
    pub source: String,
    pub in_use_by: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ImageSource {
    /// Pull from an OCI registry.
    Registry {
        reference: String,
        username: Option<String>,
        password: Option<String>,
    },
    /// Bootstrap the default Debian image.
    Debian,
    /// A directory or tarball on the runner's own machine (operators only).
    Local { name: String, path: String },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageJob {
    pub id: String,
    pub name: String,
    pub state: JobState,
    /// One line for a person: the stage now.
    pub stage: String,
    pub done_bytes: u64,
    pub total_bytes: Option<u64>,
    pub warnings: Vec<String>,
    pub image: Option<ImageView>,
    pub error: Option<RunnerError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Running,
    Done,
    Failed,
}

/// What the host has, has promised and lacks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    pub cpus: u32,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub disk_free_bytes: u64,
    pub promised_cpu: f64,
    pub promised_memory_bytes: u64,
    pub promised_disk_bytes: u64,
    pub sandboxes: u64,
    pub running: u64,
    pub tiers: Vec<TierReport>,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierReport {
    pub name: String,
    pub usable: bool,
    pub capabilities: Vec<String>,
}

/// One line of `cove doctor`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub name: String,
    pub level: Level,
    pub message: String,
    /// What to do about it; absent when all is well.
    pub fix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Ok,
    /// Works, with less.
    Warning,
    /// Sandboxes cannot run.
    Error,
}

/// Refusals and failures of a runner. Serialisable, so that they cross the socket whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum RunnerError {
    #[error("there is no {what} '{id}'")]
    NotFound { what: String, id: String },
    #[error("{what} '{id}' exists already")]
    AlreadyExists { what: String, id: String },
    #[error("{message}")]
    Invalid { message: String },
    /// The lifecycle refuses the request now.
    #[error("cannot {request} a sandbox that is {state}")]
    Conflict { request: String, state: State },
    #[error("{message}")]
    InUse { message: String },
    /// The host is short of something; trying later may work.
    #[error("the host has not enough {resource}: {message}")]
    NoCapacity { resource: String, message: String },
    /// This host or tier cannot do that at all.
    #[error("{message}")]
    Unsupported { message: String },
    #[error("the guest does not answer: {message}")]
    GuestUnreachable { message: String },
    #[error("the runner cannot be reached: {message}")]
    Unreachable { message: String },
    #[error("{message}")]
    Internal { message: String },
}

impl From<Refusal> for RunnerError {
    fn from(refusal: Refusal) -> Self {
        Self::Conflict {
            request: refusal.request.to_owned(),
            state: refusal.state,
        }
    }
}
