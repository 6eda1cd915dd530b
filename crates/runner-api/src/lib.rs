//! What the control plane asks of a host: the [`RunnerApi`] trait, its types, and its wire.
//!
//! The engine implements the trait on the host; the control plane holds a [`wire::Client`] that
//! speaks it over a unix socket to the privileged runner process. A runner never parses what a guest
//! says: [`RunnerApi::connect`] hands over a connected stream (over the socket: its descriptor), and
//! the unprivileged side speaks the guest protocol on it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use async_trait::async_trait;
use cove_model::approval::{Approval, Decision};
use cove_model::secret::{OrgKeys, OrgSecrets};
use cove_model::{
    ApprovalId, Event, NetworkPolicy, OrgId, ResourcesPatch, SandboxId, SnapshotId, VolumeId,
};

pub mod clock;
pub mod snapshot_file;
pub mod stream;
pub mod types;
pub mod wire;

pub use stream::{ByteStream, GuestStream};
pub use types::*;

/// Where a volume is for whoever reaches it by [`RunnerApi::connect_volume`].
pub const VOLUME_FILES: &str = "/volume";

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
    /// Takes one that was set aside back into service, stopped where its record was lost. Done already for one
    /// that is in service.
    async fn reinstate(&self, request: Reinstate) -> Result<SandboxView, RunnerError>;
    async fn resize(
        &self,
        id: &SandboxId,
        patch: ResourcesPatch,
    ) -> Result<SandboxView, RunnerError>;
    /// Figures from the host itself (cgroup, quota), not from the guest.
    async fn sample(&self, id: &SandboxId) -> Result<Sample, RunnerError>;
    /// All running sandboxes' figures at once, for metering.
    async fn samples(&self) -> Result<Vec<(SandboxId, Sample)>, RunnerError>;
    /// A new connection to the sandbox's guest.
    async fn connect(&self, id: &SandboxId) -> Result<GuestStream, RunnerError>;
    /// Sandboxes of which somebody waits at the metadata endpoint inside, waiting up to `wait_ms` for the first.
    async fn visitors(&self, wait_ms: u64) -> Result<Vec<SandboxId>, RunnerError>;
    /// The next who waits there: a connection from inside that sandbox and no other, unread. `NotFound` when
    /// nobody waits any more.
    async fn visitor(&self, id: &SandboxId) -> Result<GuestStream, RunnerError>;
    /// Events after `sequence`, waiting up to `wait_ms` for the first. `EventBatch::lost` when the
    /// ring no longer had some.
    async fn events(&self, after: u64, wait_ms: u64) -> Result<EventBatch, RunnerError>;

    /// Processes stop where they are; memory is kept.
    async fn freeze(&self, id: &SandboxId) -> Result<SandboxView, RunnerError>;
    /// Memory goes to disk; nothing of it is left running. Done already for what is paused.
    async fn pause(&self, id: &SandboxId) -> Result<SandboxView, RunnerError>;
    /// Brings a frozen or paused sandbox back; for a running one it is done already. Callers that come
    /// while it is under way share it.
    async fn resume(&self, id: &SandboxId) -> Result<SandboxView, RunnerError>;
    /// Answers once the snapshot is on disk.
    async fn snapshot(&self, request: SnapshotRequest) -> Result<SnapshotView, RunnerError>;
    async fn snapshots(&self) -> Result<Vec<SnapshotView>, RunnerError>;
    /// `InUse` while it is being made, also for what a rollback under way keeps.
    async fn get_snapshot(&self, id: &SnapshotId) -> Result<SnapshotView, RunnerError>;
    /// Idempotent. What grew from it is not touched. `InUse` while it is being made.
    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), RunnerError>;
    async fn rollback(&self, request: RollbackRequest) -> Result<RolledBack, RunnerError>;
    /// One portable file, streamed. The other end is read-only. `plain`: the file system is not compressed, for whoever
    /// keeps what two files have in common once.
    async fn export_snapshot(
        &self,
        id: &SnapshotId,
        plain: bool,
    ) -> Result<GuestStream, RunnerError>;
    /// Takes in what [`RunnerApi::export_snapshot`] of any host wrote; `id` is the new snapshot's.
    async fn import_snapshot(
        &self,
        id: SnapshotId,
        file: GuestStream,
    ) -> Result<Imported, RunnerError>;
    /// Makes a snapshot an image of its own, flattened, under `name`; with memory when it has some.
    async fn image_from_snapshot(
        &self,
        id: &SnapshotId,
        name: &str,
        owner: ImageOwner,
    ) -> Result<ImageJob, RunnerError>;
    /// In force when this returns; connections that it forbids are cut.
    async fn set_network(
        &self,
        id: &SandboxId,
        policy: NetworkPolicy,
    ) -> Result<SandboxView, RunnerError>;
    /// What the network policy decided, in order.
    async fn egress(&self, query: EgressQuery) -> Result<EgressBatch, RunnerError>;
    /// Adds what a sandbox without a network reports to its log. Nothing for one that has a network by now.
    async fn log_refusals(&self, id: &SandboxId, refusals: Refusals) -> Result<(), RunnerError>;

    async fn create_volume(&self, request: VolumeRequest) -> Result<VolumeView, RunnerError>;
    async fn volumes(&self) -> Result<Vec<VolumeView>, RunnerError>;
    /// Gives one that no database knows to an organisation.
    async fn adopt_volume(&self, id: &VolumeId, owner: &str) -> Result<VolumeView, RunnerError>;
    /// Idempotent. `InUse`, with those who use it, while a sandbox of this host has it in its settings.
    async fn delete_volume(&self, id: &VolumeId) -> Result<(), RunnerError>;
    /// A connection to a guest that has nothing but this volume, at [`VOLUME_FILES`], and no programs: it answers
    /// file calls only.
    async fn connect_volume(&self, id: &VolumeId) -> Result<GuestStream, RunnerError>;

    async fn images(&self) -> Result<Vec<ImageView>, RunnerError>;
    /// Starts the work if it is not under way; answers at once with the job's state. Callers poll
    /// with [`RunnerApi::image_job`] for progress.
    async fn add_image(
        &self,
        source: ImageSource,
        owner: ImageOwner,
    ) -> Result<ImageJob, RunnerError>;
    async fn image_job(&self, id: &str) -> Result<ImageJob, RunnerError>;
    /// Refused while a sandbox uses it.
    async fn remove_image(&self, id: &str) -> Result<(), RunnerError>;

    /// New keys of an organisation for its secrets, wrapped by the host's key.
    async fn make_secret_keys(&self, org: &OrgId) -> Result<OrgKeys, RunnerError>;
    /// The same keys, wrapped by the newest key of the host.
    async fn rewrap_secret_keys(&self, keys: OrgKeys) -> Result<OrgKeys, RunnerError>;

    /// All secrets of an organisation as they are now. In force when this returns: connections that used others
    /// are being cut. A host forgets them when its runner ends.
    async fn set_secrets(&self, secrets: OrgSecrets) -> Result<(), RunnerError>;
    /// The values of secrets that are exposed in a sandbox, by name. Secrets of any other use are never told.
    async fn exposed_secrets(
        &self,
        id: &SandboxId,
    ) -> Result<BTreeMap<String, String>, RunnerError>;
    /// What was used since the last time.
    async fn secret_uses(&self) -> Result<SecretUses, RunnerError>;
    /// What sandboxes need of budgets of secrets, as soon as there is something, told once. What a host has of a
    /// budget was granted to it; without a grant nothing with such a secret is sent.
    async fn budgets_wanted(&self, wait_ms: u64) -> Result<BudgetsWanted, RunnerError>;
    async fn grant_budgets(&self, grants: Vec<BudgetGrant>) -> Result<(), RunnerError>;
    /// Requests of an organisation's sandboxes with a secret that asks, and what was decided about them.
    async fn approvals(&self, org: &OrgId) -> Result<Vec<Approval>, RunnerError>;
    /// In force when this returns. Control says who may decide; the sandbox never does.
    async fn decide_approval(
        &self,
        org: &OrgId,
        id: &ApprovalId,
        decision: Decision,
    ) -> Result<(), RunnerError>;

    /// Which host this is, from its data directory. A caller that draws conclusions from what a host does not
    /// have asks this first.
    async fn identity(&self) -> Result<HostIdentity, RunnerError>;
    /// Whether the host can take work at all, cheaply; refused with the reason.
    async fn check(&self) -> Result<(), RunnerError>;
    /// The isolation tiers of this host: `usable` where what a tier needs is installed. Cheap: nothing is tried.
    async fn tiers(&self) -> Result<Vec<TierReport>, RunnerError>;
    /// What the host may promise and has promised. Cheap: it is asked again and again.
    async fn inventory(&self) -> Result<HostInventory, RunnerError>;
    /// Everything `cove doctor` tells. May boot machines to find out what works.
    async fn host(&self) -> Result<HostReport, RunnerError>;
}

/// A batch of events and where to go on.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct EventBatch {
    pub events: Vec<Event>,
    /// Pass as `after` next time.
    pub next: u64,
    pub lost: bool,
    /// Which start of the runner's process these are from; another one may not know what the one before
    /// it had to tell.
    #[serde(default)]
    pub life: String,
}
