//! The nouns of the runner's interface.

use std::collections::BTreeMap;

pub use cove_model::egress::{
    EgressBatch, EgressEntry, EgressProtocol, EgressQuery, EgressVerdict, Refusals, RefusedName,
};
use cove_model::secret::BudgetUnit;
use cove_model::{
    BootTime, ErrorCode, HostId, ImageId, OrgId, Refusal, Resources, SandboxId, SandboxSpec,
    SnapshotId, State, VolumeId,
};
pub use cove_model::{JobState, Level};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CreateRequest {
    pub id: SandboxId,
    /// The organisation whose sandbox it is, by which what the host shares is divided. Without one it
    /// counts for itself, and as the operator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<SandboxOwner>,
    pub spec: SandboxSpec,
    /// The state to begin from instead of the image's; `spec.image` is then not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<FromSnapshot>,
}

/// Whose a sandbox is, as the control side says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxOwner {
    pub org: String,
    /// It is the operator's own organisation, whose policies may open the operator's networks.
    pub home: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FromSnapshot {
    pub snapshot: SnapshotId,
    /// Go on with its processes; without, it boots from its disk.
    pub memory: bool,
}

/// A snapshot of a sandbox in any settled state: running (with memory on request), paused (its
/// memory comes along for nothing) or stopped (disk only).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SnapshotRequest {
    /// The caller's, so that a retry after a lost answer finds the first try.
    pub id: SnapshotId,
    pub sandbox: SandboxId,
    pub memory: bool,
    /// Refuse with [`RunnerError::Unchanged`] when nothing was written since the last one.
    pub unless_unchanged: bool,
}

/// A snapshot as its host knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SnapshotView {
    pub id: SnapshotId,
    /// Where it was taken; that sandbox may be gone.
    pub sandbox: SandboxId,
    /// What the sandbox's state had grown from.
    pub parent: Option<SnapshotId>,
    pub memory: bool,
    pub image: ImageId,
    /// The settings when it was taken; those of a fork or a rollback are reported anew.
    pub spec: SandboxSpec,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// What deleting it would free.
    pub exclusive_bytes: u64,
    /// What it shares with others.
    pub shared_bytes: u64,
    /// Of `shared_bytes`, what only snapshots hold and this one counts for. Each byte counts with one of
    /// them.
    #[serde(default)]
    pub counted_bytes: u64,
    /// Memory images, part of `exclusive_bytes`.
    pub memory_bytes: u64,
    /// How long the sandbox stood still for it.
    pub stopped_us: u64,
    /// Why its memory cannot be restored on this host, when it has some and it cannot.
    pub unfit: Option<String>,
    /// Why it cannot be used at all and is only kept; all but the id is a guess then.
    #[serde(default)]
    pub set_aside: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RollbackRequest {
    pub sandbox: SandboxId,
    pub to: SnapshotId,
    /// The id that the state before the rollback is kept under.
    pub keep: SnapshotId,
    /// Restore memory too; refused when the snapshot has none.
    pub memory: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolledBack {
    pub sandbox: SandboxView,
    pub kept: SnapshotView,
}

/// A volume to make. Repeating the request with the same id finishes what was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRequest {
    pub id: VolumeId,
    /// The organisation whose it is: sandboxes of others cannot mount it.
    pub owner: String,
    pub size_mb: u64,
    /// Begin as a copy of this volume of the same organisation as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<VolumeId>,
    /// Nobody writes to it, ever.
    #[serde(default)]
    pub read_only: bool,
}

/// A volume as its host knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeView {
    pub id: VolumeId,
    /// Absent where its record was lost: nobody can mount it then.
    pub owner: Option<String>,
    pub size_mb: u64,
    pub read_only: bool,
    /// What it holds, what it has from the volume that it is a copy of included. Absent where that cannot be told now.
    pub used_bytes: Option<u64>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// What came of an import.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Imported {
    pub snapshot: SnapshotView,
    /// Why the memory in the file was left out, when it was.
    pub memory_refused: Option<String>,
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
    /// What stands for each secret inside, by the secrets' names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub placeholders: BTreeMap<String, String>,
    /// It cannot be used and is only kept, for the reason given; all but the id may be a guess then.
    #[serde(default)]
    pub set_aside: bool,
}

/// What came of secrets on a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretUses {
    /// Which start of the runner's process this is from; another one knows no secrets yet.
    pub life: String,
    pub uses: Vec<SecretUseReport>,
    /// Sandboxes with a request that is held until somebody decides about it: they are not idle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<SandboxId>,
}

/// How often a sandbox used a secret since that was last asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretUseReport {
    pub org: OrgId,
    /// The secret's name.
    pub secret: String,
    pub sandbox: SandboxId,
    pub count: u64,
    /// Milliseconds since 1970.
    pub last_used_ms: u64,
}

/// What a host needs of budgets of secrets, and what it gives back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetsWanted {
    pub needs: Vec<BudgetNeed>,
    pub back: Vec<BudgetBack>,
}

/// Requests on the host wait for a part of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetNeed {
    pub org: OrgId,
    /// The secret's name.
    pub secret: String,
    pub of: BudgetUnit,
    /// A sandbox that asks.
    pub sandbox: SandboxId,
    /// It is for what this sandbox may use by itself, not for what all share.
    pub own: bool,
    pub need: u64,
    /// What could be used soon besides.
    pub more: u64,
}

/// A part of a budget that nobody used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetBack {
    pub org: OrgId,
    pub secret: String,
    pub of: BudgetUnit,
    /// Whose own it was; absent for what all share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// The day that it was given for, since 1970.
    pub day: u32,
    pub amount: u64,
}

/// A part of a budget that a host may use: it is counted as used already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetGrant {
    pub org: OrgId,
    pub secret: String,
    pub of: BudgetUnit,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    pub amount: u64,
    /// What is left besides.
    pub left: u64,
    /// Days since 1970.
    pub day: u32,
    /// How long it may be used.
    pub lasts_ms: u64,
    /// When what is left is more again, milliseconds since 1970; absent where it never is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renews_ms: Option<u64>,
}

/// What a sandbox that was set aside is to be, where its own record does not say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reinstate {
    pub id: SandboxId,
    /// The organisation whose it is.
    #[serde(default)]
    pub owner: Option<SandboxOwner>,
    pub spec: SandboxSpec,
    pub image: ImageId,
    pub parent: Option<SnapshotId>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// What a sandbox has used, from the host. Counters grow over its whole life, restarts of
/// the sandbox and of the engine included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The same moment by the clock that nobody sets.
    #[serde(default)]
    pub boot_time: Option<BootTime>,
    pub running: bool,
    /// How long it has been running, when it is.
    #[serde(default)]
    pub running_us: Option<u64>,
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
    /// Empty from a host of an earlier version.
    #[serde(default, skip_serializing_if = "ImageConfig::is_empty")]
    pub config: ImageConfig,
}

/// How an image wants its processes started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    pub env: Vec<(String, String)>,
    pub user: Option<String>,
    pub workdir: Option<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
}

impl ImageConfig {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
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
    /// Bootstrap the code interpreter's image.
    CodeInterpreter,
    /// An image without any file.
    Scratch,
    /// A directory or tarball on the runner's own machine (operators only).
    Local { name: String, path: String },
}

/// On whose behalf an image is added. Decides what a registry may be asked, which layers count as
/// fetched, and whose share of the host's image jobs it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ImageOwner {
    /// The home organisation: whoever owns the host.
    Operator,
    Tenant {
        org: OrgId,
        /// What its quota of disk has room for.
        room_bytes: u64,
    },
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

/// Which host a runner works for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIdentity {
    pub host: HostId,
}

/// What a host may promise and has promised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInventory {
    /// In all, overcommitment included.
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub promised_cpu_milli: u64,
    pub promised_memory_bytes: u64,
    pub promised_disk_bytes: u64,
    pub sandboxes: u64,
    pub running: u64,
    /// As in a list of tiers.
    pub tiers: Vec<TierReport>,
    /// Ids and names of the images that are there.
    pub images: Vec<String>,
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
    /// How many are prepared ahead of need.
    #[serde(default)]
    pub warm: u64,
    pub tiers: Vec<TierReport>,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierReport {
    pub name: String,
    /// In a report of the host: machines boot. In a list of tiers: what the tier needs is installed.
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
    /// Nothing was written since the last snapshot.
    #[error("nothing changed since the last snapshot")]
    Unchanged,
    /// Something inside cannot be captured; the sandbox goes on.
    #[error("{process} cannot be captured: {reason}")]
    Uncapturable { process: String, reason: String },
    /// Captured memory asks for what this host lacks.
    #[error("this host cannot restore that memory: {message}")]
    Unfit { message: String },
    /// The host is short of something; trying later may work.
    #[error("the host does not have enough {resource}: {message}")]
    NoCapacity { resource: String, message: String },
    /// This host or tier cannot do that at all.
    #[error("{message}")]
    Unsupported { message: String },
    /// The runner is older than what the request restricts; it would be weakened.
    #[error("the runner of this host lacks the features: {}", .features.join(", "))]
    MissingFeature { features: Vec<String> },
    #[error("the guest does not answer: {message}")]
    GuestUnreachable { message: String },
    #[error("the runner cannot be reached: {message}")]
    Unreachable { message: String },
    #[error("{message}")]
    Internal { message: String },
}

impl RunnerError {
    /// The code that callers of the API see.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound { .. } => ErrorCode::NotFound,
            Self::AlreadyExists { .. } => ErrorCode::AlreadyExists,
            Self::Invalid { .. } => ErrorCode::InvalidRequest,
            Self::Conflict { .. } => ErrorCode::Conflict,
            Self::InUse { .. } => ErrorCode::InUse,
            Self::Unchanged => ErrorCode::Unchanged,
            Self::Uncapturable { .. } => ErrorCode::NotCapturable,
            Self::Unfit { .. } => ErrorCode::UnfitHost,
            Self::NoCapacity { .. } => ErrorCode::NoCapacity,
            Self::Unsupported { .. } | Self::MissingFeature { .. } => ErrorCode::Unsupported,
            Self::GuestUnreachable { .. } => ErrorCode::GuestUnreachable,
            Self::Unreachable { .. } => ErrorCode::RunnerUnreachable,
            Self::Internal { .. } => ErrorCode::Internal,
        }
    }
}

impl From<Refusal> for RunnerError {
    fn from(refusal: Refusal) -> Self {
        Self::Conflict {
            request: refusal.request.to_owned(),
            state: refusal.state,
        }
    }
}

impl From<cove_wire::Missing> for RunnerError {
    fn from(missing: cove_wire::Missing) -> Self {
        Self::MissingFeature {
            features: missing.features,
        }
    }
}

impl From<cove_wire::Refusal> for RunnerError {
    fn from(refusal: cove_wire::Refusal) -> Self {
        match refusal {
            cove_wire::Refusal::Missing(missing) => missing.into(),
            version @ cove_wire::Refusal::Version { .. } => Self::Unsupported {
                message: version.to_string(),
            },
        }
    }
}
