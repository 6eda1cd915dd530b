//! The runner interface over a unix socket.
//!
//! One connection carries one call: a frame with a hello and the [`Request`], then frames with the answer, then
//! the end. The hello names what the runner must be able to enforce ([`needs`]). Lists come in several frames. A connection to a guest is answered with the descriptor of
//! the guest's own socket (SCM_RIGHTS), so the privileged process neither sees nor copies what is
//! said on it; a guest stream that is not a socket is relayed over the same connection instead. A
//! snapshot is exported the same way, and imported from a descriptor that comes with the request.
//!
//! Only the uids the server was given may call, whatever the socket's mode says. A caller that goes
//! away cancels questions, never changes: those run to their end.

use cove_model::approval::Decision;
use cove_model::secret::{OrgKeys, OrgSecrets};
use cove_model::{
    ApprovalId, NetworkPolicy, OrgId, ResourcesPatch, SandboxId, SnapshotId, VolumeId,
};
use serde::{Deserialize, Serialize};

use crate::{
    BudgetGrant, CreateRequest, EgressQuery, ImageOwner, ImageSource, Refusals, Reinstate,
    RollbackRequest, SnapshotRequest, VolumeRequest,
};

mod bounds;
mod client;
mod frame;
pub mod needs;
#[cfg(test)]
mod recorded;
mod server;

pub use client::{Client, Dial};
pub use frame::{FRAME_MAX, LIST_BYTES_MAX};
pub use needs::SIDE;
pub use server::{CALLS_MAX, LISTS_MAX, bind, serve, serve_as};

/// Fields that a call does not know are ignored: they inform. What restricts (specs, limits, policies, owners)
/// knows all of its fields, and names a feature besides.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
enum Request {
    /// Asks for the runner's version and features.
    Hello,
    Create {
        request: Box<CreateRequest>,
    },
    Get {
        id: SandboxId,
    },
    List,
    Start {
        id: SandboxId,
    },
    Stop {
        id: SandboxId,
        grace_ms: u64,
    },
    Delete {
        id: SandboxId,
    },
    Reinstate {
        request: Box<Reinstate>,
    },
    Resize {
        id: SandboxId,
        patch: ResourcesPatch,
    },
    Sample {
        id: SandboxId,
    },
    Samples,
    Connect {
        id: SandboxId,
    },
    Events {
        after: u64,
        wait_ms: u64,
    },
    Visitors {
        wait_ms: u64,
    },
    Visitor {
        id: SandboxId,
    },
    Freeze {
        id: SandboxId,
    },
    Pause {
        id: SandboxId,
    },
    Resume {
        id: SandboxId,
    },
    Snapshot {
        request: SnapshotRequest,
    },
    Snapshots,
    GetSnapshot {
        id: SnapshotId,
    },
    DeleteSnapshot {
        id: SnapshotId,
    },
    Rollback {
        request: RollbackRequest,
    },
    ExportSnapshot {
        id: SnapshotId,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        plain: bool,
    },
    /// The file comes as a descriptor with this frame.
    ImportSnapshot {
        id: SnapshotId,
    },
    ImageFromSnapshot {
        id: SnapshotId,
        name: String,
        owner: ImageOwner,
    },
    SetNetwork {
        id: SandboxId,
        policy: NetworkPolicy,
    },
    Egress {
        query: EgressQuery,
    },
    LogRefusals {
        id: SandboxId,
        refusals: Refusals,
    },
    CreateVolume {
        request: VolumeRequest,
    },
    Volumes,
    AdoptVolume {
        id: VolumeId,
        owner: String,
    },
    DeleteVolume {
        id: VolumeId,
    },
    ConnectVolume {
        id: VolumeId,
    },
    Images,
    AddImage {
        source: ImageSource,
        owner: ImageOwner,
    },
    ImageJob {
        id: String,
    },
    RemoveImage {
        id: String,
    },
    MakeSecretKeys {
        org: OrgId,
    },
    RewrapSecretKeys {
        keys: OrgKeys,
    },
    SetSecrets {
        secrets: OrgSecrets,
    },
    ExposedSecrets {
        id: SandboxId,
    },
    SecretUses,
    BudgetsWanted {
        wait_ms: u64,
    },
    GrantBudgets {
        grants: Vec<BudgetGrant>,
    },
    Approvals {
        org: OrgId,
    },
    DecideApproval {
        org: OrgId,
        id: ApprovalId,
        decision: Decision,
    },
    Identity,
    Check,
    Tiers,
    Inventory,
    Host,
}

impl Request {
    /// Whether the call must run to its end once it was received.
    fn changes_something(&self) -> bool {
        match self {
            Self::Create { .. }
            | Self::Start { .. }
            | Self::Stop { .. }
            | Self::Delete { .. }
            | Self::Reinstate { .. }
            | Self::Resize { .. }
            | Self::Freeze { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Snapshot { .. }
            | Self::DeleteSnapshot { .. }
            | Self::Rollback { .. }
            | Self::ImportSnapshot { .. }
            | Self::ImageFromSnapshot { .. }
            | Self::SetNetwork { .. }
            | Self::LogRefusals { .. }
            | Self::SetSecrets { .. }
            | Self::SecretUses
            | Self::GrantBudgets { .. }
            | Self::DecideApproval { .. }
            | Self::CreateVolume { .. }
            | Self::AdoptVolume { .. }
            | Self::DeleteVolume { .. }
            | Self::AddImage { .. }
            | Self::RemoveImage { .. } => true,
            Self::Hello
            | Self::Get { .. }
            | Self::List
            | Self::Sample { .. }
            | Self::Samples
            | Self::Connect { .. }
            | Self::Visitors { .. }
            | Self::Visitor { .. }
            | Self::Events { .. }
            | Self::Snapshots
            | Self::GetSnapshot { .. }
            | Self::ExportSnapshot { .. }
            | Self::Egress { .. }
            | Self::Volumes
            | Self::ConnectVolume { .. }
            | Self::Images
            | Self::ImageJob { .. }
            | Self::MakeSecretKeys { .. }
            | Self::RewrapSecretKeys { .. }
            | Self::ExposedSecrets { .. }
            | Self::BudgetsWanted { .. }
            | Self::Approvals { .. }
            | Self::Identity
            | Self::Check
            | Self::Tiers
            | Self::Inventory
            | Self::Host => false,
        }
    }
}
