//! What a runner must be able to enforce for a request to mean what it says.
//!
//! Every field of what restricts a sandbox is looked at here by name, so that a new one does not compile before
//! somebody has decided which feature it needs. Control names them in its hello; a runner that lacks one refuses
//! the request before it reads it.

use cove_model::secret::SecretBinding;
use cove_model::{NetworkPolicy, Resources, ResourcesPatch, SandboxSpec};
use cove_wire::{Feature, Needs, Side};

use super::Request;
use crate::{CreateRequest, ImageOwner, ImageSource, Reinstate};

/// Limits of CPU, memory, disk, processes and open files.
pub const LIMITS: Feature = Feature::new("limits");
/// Memory that grows up to a maximum.
pub const MEMORY_GROWTH: Feature = Feature::new("memory-growth");
/// Limits of reading from and writing to the pool's device.
pub const IO_LIMITS: Feature = Feature::new("io-limits");
/// The modes of a network policy and its allow list.
pub const NETWORK_POLICY: Feature = Feature::new("network-policy");
/// Limits of what a sandbox sends and receives.
pub const BANDWIDTH: Feature = Feature::new("bandwidth");
/// No rights by programs that are setuid.
pub const NO_NEW_PRIVS: Feature = Feature::new("no-new-privs");
/// What the host shares is divided by organisation, and only the operator's reaches the operator's networks.
pub const SANDBOX_OWNER: Feature = Feature::new("sandbox-owner");
/// Whose layers an image may use, and what its owner has room for.
pub const IMAGE_OWNER: Feature = Feature::new("image-owner");
/// Passwords of registries are given to the registry alone.
pub const REGISTRY_SECRET: Feature = Feature::new("registry-secret");

/// What answers for a sandbox inside it, at an address that no other reaches.
pub const METADATA: Feature = Feature::new("metadata");

/// Placeholders inside, values outside, and only where each secret is bound to.
pub const SECRETS: Feature = Feature::new("secrets");

/// Secrets whose use waits until somebody agrees to it.
pub const APPROVALS: Feature = Feature::new("approvals");

/// Secrets that have a budget.
pub const BUDGETS: Feature = Feature::new("budgets");

/// Volumes with their owner and size, mounted where a sandbox asked for them, read-only where it asked for that.
pub const VOLUMES: Feature = Feature::new("volumes");

/// Which acceleration a virtual machine has; without it a runner might take another than was asked for.
pub const ACCEL: Feature = Feature::new("accel");

/// What a runner of this build enforces.
pub const FEATURES: &[Feature] = &[
    LIMITS,
    MEMORY_GROWTH,
    IO_LIMITS,
    NETWORK_POLICY,
    BANDWIDTH,
    NO_NEW_PRIVS,
    SANDBOX_OWNER,
    IMAGE_OWNER,
    REGISTRY_SECRET,
    METADATA,
    SECRETS,
    APPROVALS,
    BUDGETS,
    VOLUMES,
    ACCEL,
];

/// Version 0 had no hello. Control and runner of one host are of one build, but a runner understands requests of
/// the version before.
pub const SIDE: Side = Side {
    wire: "runner",
    version: 1,
    oldest: 0,
    features: FEATURES,
};

impl Request {
    pub(super) fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        match self {
            Self::Create { request } => {
                let CreateRequest {
                    owner,
                    spec: described,
                    id: _,
                    from: _,
                } = &**request;
                needs.add_if(owner.is_some(), SANDBOX_OWNER);
                spec(described, &mut needs);
            }
            Self::Reinstate { request } => {
                let Reinstate {
                    owner,
                    spec: described,
                    id: _,
                    image: _,
                    parent: _,
                    created_at: _,
                } = &**request;
                needs.add_if(owner.is_some(), SANDBOX_OWNER);
                spec(described, &mut needs);
            }
            Self::Resize { patch, id: _ } => {
                let ResourcesPatch {
                    memory_max_mb,
                    cpu: _,
                    memory_mb: _,
                    disk_mb: _,
                    pids: _,
                } = patch;
                needs
                    .add(LIMITS)
                    .add_if(memory_max_mb.is_some(), MEMORY_GROWTH);
            }
            Self::SetSecrets { secrets } => {
                needs.add(SECRETS);
                for secret in &secrets.secrets {
                    let SecretBinding {
                        ask,
                        limits,
                        hosts: _,
                        usage: _,
                    } = &secret.binding;
                    needs
                        .add_if(*ask, APPROVALS)
                        .add_if(!limits.is_empty(), BUDGETS);
                }
            }
            Self::ExposedSecrets { id: _ } => {
                needs.add(SECRETS);
            }
            Self::BudgetsWanted { wait_ms: _ } | Self::GrantBudgets { grants: _ } => {
                needs.add(BUDGETS);
            }
            Self::Approvals { org: _ }
            | Self::DecideApproval {
                org: _,
                id: _,
                decision: _,
            } => {
                needs.add(APPROVALS);
            }
            Self::SetNetwork { policy, id: _ } => network(policy, &mut needs),
            Self::CreateVolume { request: _ } | Self::AdoptVolume { id: _, owner: _ } => {
                needs.add(VOLUMES);
            }
            Self::AddImage { source, owner } => {
                image_owner(owner, &mut needs);
                match source {
                    ImageSource::Registry {
                        password,
                        reference: _,
                        username: _,
                    } => {
                        needs.add_if(password.is_some(), REGISTRY_SECRET);
                    }
                    ImageSource::Debian
                    | ImageSource::CodeInterpreter
                    | ImageSource::Scratch
                    | ImageSource::Local { .. } => {}
                }
            }
            Self::ImageFromSnapshot {
                owner,
                id: _,
                name: _,
            } => image_owner(owner, &mut needs),
            // These say which sandbox, snapshot or image, and restrict nothing.
            Self::Hello
            | Self::Get { .. }
            | Self::List
            | Self::Start { .. }
            | Self::Stop { .. }
            | Self::Delete { .. }
            | Self::Sample { .. }
            | Self::Visitors { .. }
            | Self::Visitor { .. }
            | Self::Samples
            | Self::Connect { .. }
            | Self::Events { .. }
            | Self::Freeze { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Snapshot { .. }
            | Self::Snapshots
            | Self::GetSnapshot { .. }
            | Self::DeleteSnapshot { .. }
            | Self::Rollback { .. }
            | Self::ExportSnapshot { .. }
            | Self::ImportSnapshot { .. }
            | Self::Egress { .. }
            // A runner that keeps no such entries does not know the call.
            | Self::LogRefusals { .. }
            | Self::Volumes
            | Self::DeleteVolume { .. }
            | Self::ConnectVolume { .. }
            | Self::Images
            | Self::ImageJob { .. }
            | Self::RemoveImage { .. }
            // A runner that cannot make keys does not know the call.
            | Self::MakeSecretKeys { .. }
            | Self::RewrapSecretKeys { .. }
            | Self::SecretUses
            | Self::Identity
            | Self::Check
            // A runner that has one tier alone does not know the call; `auto` is refused then.
            | Self::Tiers
            | Self::Inventory
            | Self::Host => {}
        }
        needs
    }
}

fn spec(spec: &SandboxSpec, needs: &mut Needs) {
    let SandboxSpec {
        resources:
            Resources {
                memory_max_mb,
                io_read_mb_s,
                io_write_mb_s,
                cpu: _,
                memory_mb: _,
                disk_mb: _,
                pids: _,
                open_files: _,
            },
        network: policy,
        no_new_privs,
        identity,
        secrets,
        volumes,
        accel,
        image: _,
        name: _,
        isolation: _,
        env: _,
        // Control sees to them.
        lifecycle: _,
        placement: _,
        labels: _,
        // For control, which says it with each command.
        user: _,
        workdir: _,
    } = spec;
    let io = io_read_mb_s.is_some() || io_write_mb_s.is_some();
    needs
        .add(LIMITS)
        .add_if(memory_max_mb.is_some(), MEMORY_GROWTH)
        .add_if(io, IO_LIMITS)
        .add_if(*no_new_privs, NO_NEW_PRIVS)
        .add_if(identity.is_some(), METADATA)
        .add_if(!secrets.is_empty(), SECRETS)
        .add_if(!volumes.is_empty(), VOLUMES)
        .add_if(accel.is_some(), ACCEL);
    network(policy, needs);
}

fn network(policy: &NetworkPolicy, needs: &mut Needs) {
    let NetworkPolicy {
        bandwidth_up_mbit,
        bandwidth_down_mbit,
        mode: _,
        allow: _,
    } = policy;
    let bandwidth = bandwidth_up_mbit.is_some() || bandwidth_down_mbit.is_some();
    needs.add(NETWORK_POLICY).add_if(bandwidth, BANDWIDTH);
}

fn image_owner(owner: &ImageOwner, needs: &mut Needs) {
    let tenant = matches!(owner, ImageOwner::Tenant { .. });
    needs.add_if(tenant, IMAGE_OWNER);
}
