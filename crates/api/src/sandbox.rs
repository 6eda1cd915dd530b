//! Sandboxes on the wire.

use std::collections::BTreeMap;

use cove_model::network::Entry;
pub use cove_model::secret::SecretGrant;
use cove_model::spec::SpecError;
pub use cove_model::{Accel, Grant, IdentitySpec, NetworkMode, State};
use cove_model::{IdlePolicy, NetworkPolicy, Placement, Resources, ResourcesPatch, SandboxSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::lifecycle::{Lease, Lifecycle, LifecycleRequest};
use crate::volume::Mount;

/// Body of `POST /v1/sandboxes`. Everything has a default.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateSandbox {
    /// Name or id of an image; default: `debian`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::IMAGE_REF_MAX))]
    pub image: Option<String>,
    /// Name or id of a snapshot to begin from, in place of an image. Limits, user and directory that are
    /// not given are then those it was taken with, and `env` is put over its variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::REFERENCE_MAX))]
    pub snapshot: Option<String>,
    /// With `snapshot`: continue its processes; without, it boots from its disk.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// A template to begin from, in place of an image or a snapshot: `name`, `name:tag`, `name:version` or its id.
    /// Everything that is not given is then the template's, each field of `resources`, `network` and `lifecycle` by itself,
    /// and `env` is put over its variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::REFERENCE_MAX))]
    pub template: Option<String>,
    /// Unique in the organisation: 1 to 63 lowercase letters, digits or dashes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: Option<String>,
    /// The isolation tier: `container`, `gvisor`, `vm`, or `auto` for the strongest that the host has and the operator allows; default: the operator's choice, `container` unless changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::ISOLATION_MAX))]
    pub isolation: Option<String>,
    /// With isolation `vm`: what executes the machine's instructions. Default: `kvm`, refused on hosts where it does not
    /// boot; `software` is emulation, slow, and never chosen by itself. Absent with `snapshot` or `template` and without
    /// `isolation`: as there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accel: Option<Accel>,
    /// Limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourcesRequest>,
    /// Environment variables of all commands.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = cove_limits::ENV_ENTRIES_MAX))]
    pub env: BTreeMap<String, String>,
    /// Network policy; default: no network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkRequest>,
    /// When to freeze, pause, stop or delete it automatically; default: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<LifecycleRequest>,
    /// Labels: key and value pairs for searches.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = cove_limits::LABELS_MAX))]
    pub labels: BTreeMap<String, String>,
    /// User that commands run as; default: the image's user, else root.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Working directory of commands; default: the image's directory, else the user's home.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub workdir: Option<String>,
    /// Identity of the sandbox: tokens from `http://cove.internal:16910/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<cove_model::IdentitySpec>,
    /// Secrets that it may use: inside are placeholders, values are put into requests outside. Their hosts must be
    /// in `network.allow`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = cove_limits::SECRETS_PER_SANDBOX_MAX))]
    pub secrets: Vec<SecretGrant>,
    /// Forbid gaining privileges through setuid programs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_new_privs: bool,
    /// Volumes to mount. They are no part of its disk, nor of its snapshots. Absent with `snapshot`: those that the
    /// snapshot's sandbox had; with `template`: the template's; `[]`: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = cove_limits::VOLUME_MOUNTS_MAX))]
    pub volumes: Option<Vec<Mount>>,
    /// Which hosts it may be on. Absent with `snapshot` or `template`: as there; `{}`: any host without taints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// Requested limits; absent fields have their default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResourcesRequest {
    /// CPUs, in fractions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::CPU_MIN, max = cove_limits::CPU_MAX))]
    pub cpu: Option<f64>,
    /// Memory in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::MEMORY_MIN_MB, max = cove_limits::MEMORY_MAX_MB))]
    pub memory_mb: Option<u64>,
    /// Limit up to which memory may grow by itself, in MiB; absent: it does not grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::MEMORY_MIN_MB, max = cove_limits::MEMORY_MAX_MB))]
    pub memory_max_mb: Option<u64>,
    /// Disk in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::DISK_MIN_MB, max = cove_limits::DISK_MAX_MB))]
    pub disk_mb: Option<u64>,
    /// Maximum number of processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::PIDS_MIN, max = cove_limits::PIDS_MAX))]
    pub pids: Option<u64>,
    /// Maximum number of open files per process.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::OPEN_FILES_MIN, max = cove_limits::OPEN_FILES_MAX))]
    pub open_files: Option<u64>,
    /// Disk reads in MB per second; absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::IO_MIN_MB_S, max = cove_limits::IO_MAX_MB_S))]
    pub io_read_mb_s: Option<u64>,
    /// Disk writes in MB per second; absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::IO_MIN_MB_S, max = cove_limits::IO_MAX_MB_S))]
    pub io_write_mb_s: Option<u64>,
}

/// Network policy of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// Mode of the policy: nothing, a list, or everything.
    pub mode: NetworkMode,
    /// Domains, CIDRs and optional ports; with mode `allowlist`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = cove_limits::ALLOW_ENTRIES_MAX),
        inner(length(min = 1, max = cove_limits::ALLOW_ENTRY_BYTES_MAX))
    )]
    pub allow: Option<Vec<String>>,
    /// Upload limit in megabits per second; absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::BANDWIDTH_MAX_MBIT))]
    pub bandwidth_up_mbit: Option<u32>,
    /// Download limit, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::BANDWIDTH_MAX_MBIT))]
    pub bandwidth_down_mbit: Option<u32>,
}

/// What a new sandbox may reach. Fields that are absent are the template's, else the defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkRequest {
    /// Default: `none`. A given mode replaces the template's `allow` too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<NetworkMode>,
    /// Domains, CIDRs and optional ports; with mode `allowlist`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = cove_limits::ALLOW_ENTRIES_MAX),
        inner(length(min = 1, max = cove_limits::ALLOW_ENTRY_BYTES_MAX))
    )]
    pub allow: Option<Vec<String>>,
    /// Upload limit in megabits per second; `null`: no limit.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_or_absent"
    )]
    #[schemars(with = "Option<u32>", range(min = 1, max = cove_limits::BANDWIDTH_MAX_MBIT))]
    pub bandwidth_up_mbit: Option<Option<u32>>,
    /// Download limit, likewise.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_or_absent"
    )]
    #[schemars(with = "Option<u32>", range(min = 1, max = cove_limits::BANDWIDTH_MAX_MBIT))]
    pub bandwidth_down_mbit: Option<Option<u32>>,
}

impl NetworkRequest {
    fn over(self, base: NetworkPolicy) -> Result<NetworkPolicy, SpecError> {
        let allow = self.allow.map(Entry::list).transpose()?;
        let (mode, allow) = match (self.mode, allow) {
            (None, None) => (base.mode, base.allow),
            (mode, allow) => (mode.unwrap_or(base.mode), allow),
        };
        Ok(NetworkPolicy {
            mode,
            allow,
            bandwidth_up_mbit: self.bandwidth_up_mbit.unwrap_or(base.bandwidth_up_mbit),
            bandwidth_down_mbit: self.bandwidth_down_mbit.unwrap_or(base.bandwidth_down_mbit),
        })
    }
}

/// What a policy does not limit is left to the template.
impl From<Network> for NetworkRequest {
    fn from(network: Network) -> Self {
        Self {
            mode: Some(network.mode),
            allow: network.allow,
            bandwidth_up_mbit: network.bandwidth_up_mbit.map(Some),
            bandwidth_down_mbit: network.bandwidth_down_mbit.map(Some),
        }
    }
}

/// Body of `PATCH /v1/sandboxes/{id}`: what is absent stays. Labels and lifecycle are replaced whole.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PatchSandbox {
    /// New name; `null` removes the name.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_or_absent"
    )]
    #[schemars(with = "Option<String>", length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: Option<Option<String>>,
    /// New labels; they replace all present ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = cove_limits::LABELS_MAX))]
    pub labels: Option<BTreeMap<String, String>>,
    /// New lifecycle rules; they replace all present ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// New limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourcesChange>,
    /// New policy; it replaces the present one, and connections that it forbids are closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Refuse with `stale` if the sandbox has another generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_generation: Option<u64>,
}

/// Distinguishes `null` from absent: whatever is there, `null` too, is `Some`.
pub(crate) fn null_or_absent<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

/// A live change of limits; absent fields stay.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResourcesChange {
    /// CPUs, in fractions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::CPU_MIN, max = cove_limits::CPU_MAX))]
    pub cpu: Option<f64>,
    /// Memory in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::MEMORY_MIN_MB, max = cove_limits::MEMORY_MAX_MB))]
    pub memory_mb: Option<u64>,
    /// How far memory may grow by itself, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::MEMORY_MIN_MB, max = cove_limits::MEMORY_MAX_MB))]
    pub memory_max_mb: Option<u64>,
    /// Disk in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::DISK_MIN_MB, max = cove_limits::DISK_MAX_MB))]
    pub disk_mb: Option<u64>,
    /// Maximum number of processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::PIDS_MIN, max = cove_limits::PIDS_MAX))]
    pub pids: Option<u64>,
}

/// Query of `GET /v1/sandboxes`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ListSandboxes {
    /// Maximum number of items; default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::PAGE_MAX))]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::CURSOR_MAX))]
    pub cursor: Option<String>,
    /// Only sandboxes in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Only the sandbox with this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: Option<String>,
    /// `key=value` pairs, separated by commas; all must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::LABEL_QUERY_MAX))]
    pub labels: Option<String>,
}

/// A sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Sandbox {
    /// Id.
    pub id: String,
    /// Name, unique in the organisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// State.
    pub state: State,
    /// Why it is in this state, if that is not obvious.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Image, as requested.
    pub image: String,
    /// Id of the image, once the host has resolved the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// Isolation tier; never `auto`.
    pub isolation: String,
    /// What executes its instructions: hardware virtualisation, or emulation in software. With isolation `vm` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accel: Option<Accel>,
    /// Limits.
    pub resources: ResourcesView,
    /// Environment variables of all commands.
    pub env: BTreeMap<String, String>,
    /// Network policy.
    pub network: Network,
    /// Lifecycle rules.
    pub lifecycle: Lifecycle,
    /// Its lease; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// User that commands run as, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Working directory of commands, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Programs cannot gain privileges through setuid.
    pub no_new_privs: bool,
    /// Its identity; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<cove_model::IdentitySpec>,
    /// Secrets that it may use by placeholders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretGrant>,
    /// Mounted volumes; no part of its disk, nor of its snapshots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Mount>,
    /// Which hosts it may be on.
    #[serde(default, skip_serializing_if = "Placement::is_empty")]
    pub placement: Placement,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// Time of the last start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Time of the stop; absent unless it is stopped or has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<Timestamp>,
    /// Time of the last activity; idle times count from here.
    pub last_active_at: Timestamp,
    /// Increases with every change.
    pub generation: u64,
    /// The snapshot that it started from; absent if it started from an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<String>,
    /// The snapshot that its current state is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// Warnings for the caller; only in the answer to a create.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Limits in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourcesView {
    /// CPUs, in fractions.
    pub cpu: f64,
    /// Memory in MiB.
    pub memory_mb: u64,
    /// How far memory may grow by itself, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_max_mb: Option<u64>,
    /// Disk in MiB.
    pub disk_mb: u64,
    /// Maximum number of processes and threads.
    pub pids: u64,
    /// Maximum number of open files per process.
    pub open_files: u64,
    /// Disk reads in MB per second; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_read_mb_s: Option<u64>,
    /// Disk writes in MB per second; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_write_mb_s: Option<u64>,
}

/// Body of `POST …/stop`; optional.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StopSandbox {
    /// Time processes get between SIGTERM and SIGKILL. Absent: the server's setting `stop_grace_ms`, 10 seconds by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = cove_limits::STOP_GRACE_MAX_MS))]
    pub grace_ms: Option<u64>,
}

impl CreateSandbox {
    /// The spec this asks for over the defaults, over what a snapshot was taken with, or over a template. What it is
    /// called and who it is comes from the request alone. The allow list is parsed here; the rest is not yet checked.
    /// Volumes are the base's: the caller puts those there that the request names.
    pub fn into_spec_over(self, mut base: SandboxSpec) -> Result<SandboxSpec, SpecError> {
        base.add_env(self.env);
        // A template's maker gave these for its sandboxes; a snapshot only had them at the time.
        let (network, lifecycle) = match self.template {
            Some(_) => (base.network, base.lifecycle),
            None => (NetworkPolicy::default(), IdlePolicy::default()),
        };
        // Whoever names another tier than the base's does not mean the base's acceleration.
        let accel = match &self.isolation {
            Some(_) => self.accel,
            None => self.accel.or(base.accel),
        };
        Ok(SandboxSpec {
            image: self.image.unwrap_or(base.image),
            name: self.name,
            accel,
            isolation: self.isolation.unwrap_or(base.isolation),
            resources: self.resources.unwrap_or_default().over(base.resources),
            env: base.env,
            network: self.network.unwrap_or_default().over(network)?,
            lifecycle: self.lifecycle.unwrap_or_default().over(lifecycle),
            labels: self.labels,
            user: self.user.or(base.user),
            workdir: self.workdir.or(base.workdir),
            no_new_privs: self.no_new_privs || base.no_new_privs,
            identity: self.identity,
            secrets: self.secrets,
            volumes: base.volumes,
            placement: self.placement.unwrap_or(base.placement),
        })
    }
}

impl ResourcesRequest {
    fn over(self, base: Resources) -> Resources {
        Resources {
            cpu: self.cpu.unwrap_or(base.cpu),
            memory_mb: self.memory_mb.unwrap_or(base.memory_mb),
            memory_max_mb: self.memory_max_mb.or(base.memory_max_mb),
            disk_mb: self.disk_mb.unwrap_or(base.disk_mb),
            pids: self.pids.unwrap_or(base.pids),
            open_files: self.open_files.unwrap_or(base.open_files),
            io_read_mb_s: self.io_read_mb_s.or(base.io_read_mb_s),
            io_write_mb_s: self.io_write_mb_s.or(base.io_write_mb_s),
        }
    }
}

impl From<ResourcesChange> for ResourcesPatch {
    fn from(change: ResourcesChange) -> Self {
        Self {
            cpu: change.cpu,
            memory_mb: change.memory_mb,
            memory_max_mb: change.memory_max_mb,
            disk_mb: change.disk_mb,
            pids: change.pids,
        }
    }
}

impl From<&Resources> for ResourcesView {
    fn from(resources: &Resources) -> Self {
        Self {
            cpu: resources.cpu,
            memory_mb: resources.memory_mb,
            memory_max_mb: resources.memory_max_mb,
            disk_mb: resources.disk_mb,
            pids: resources.pids,
            open_files: resources.open_files,
            io_read_mb_s: resources.io_read_mb_s,
            io_write_mb_s: resources.io_write_mb_s,
        }
    }
}

impl TryFrom<Network> for NetworkPolicy {
    type Error = SpecError;
    fn try_from(network: Network) -> Result<Self, SpecError> {
        Ok(Self {
            mode: network.mode,
            allow: network.allow.map(Entry::list).transpose()?,
            bandwidth_up_mbit: network.bandwidth_up_mbit,
            bandwidth_down_mbit: network.bandwidth_down_mbit,
        })
    }
}

impl From<&NetworkPolicy> for Network {
    fn from(policy: &NetworkPolicy) -> Self {
        Self {
            mode: policy.mode,
            allow: policy.allow.as_deref().map(written),
            bandwidth_up_mbit: policy.bandwidth_up_mbit,
            bandwidth_down_mbit: policy.bandwidth_down_mbit,
        }
    }
}

fn written(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(Entry::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_body_asks_for_the_default_sandbox() {
        let create: CreateSandbox = serde_json::from_str("{}").unwrap();
        assert_eq!(
            create.into_spec_over(SandboxSpec::default()).unwrap(),
            SandboxSpec::default()
        );
    }

    #[test]
    fn unknown_fields_are_refused_at_every_level() {
        for body in [
            r#"{"imagee":"x"}"#,
            r#"{"resources":{"ram":1}}"#,
            r#"{"network":{"mode":"none","deny":[]}}"#,
            r#"{"placement":{"host":"node-1"}}"#,
            r#"{"lifecycle":{"stop_after":1}}"#,
        ] {
            assert!(
                serde_json::from_str::<CreateSandbox>(body).is_err(),
                "{body} was accepted"
            );
        }
    }

    #[test]
    fn a_patch_tells_null_from_absent() {
        let absent: PatchSandbox = serde_json::from_str("{}").unwrap();
        assert_eq!(absent.name, None);
        let null: PatchSandbox = serde_json::from_str(r#"{"name":null}"#).unwrap();
        assert_eq!(null.name, Some(None));
    }

    #[test]
    fn what_is_not_said_is_taken_from_a_snapshot_but_reach_and_name_never() {
        let mut base = SandboxSpec {
            name: Some("old".into()),
            user: Some("dev".into()),
            env: [("A".to_owned(), "b".to_owned())].into(),
            ..SandboxSpec::default()
        };
        base.resources.memory_mb = 77;
        base.network.mode = NetworkMode::Open;
        base.lifecycle.stop_after_s = Some(5);
        let spec = CreateSandbox::default()
            .into_spec_over(base.clone())
            .unwrap();
        assert_eq!(spec.resources.memory_mb, 77);
        assert_eq!((&spec.user, &spec.env), (&base.user, &base.env));
        let asked = CreateSandbox {
            env: [("A", "c"), ("B", "d")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..CreateSandbox::default()
        };
        base.env.insert("OLD".into(), "kept".into());
        let over = asked.into_spec_over(base).unwrap();
        let over: Vec<_> = over
            .env
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        assert_eq!(over, [("A", "c"), ("B", "d"), ("OLD", "kept")]);
        assert_eq!(spec.name, None);
        assert_eq!(spec.network, NetworkPolicy::default());
        assert_eq!(spec.lifecycle, cove_model::IdlePolicy::default());
    }

    #[test]
    fn reach_and_lifecycle_are_taken_from_a_template_unless_they_are_given() {
        let mut base = SandboxSpec::default();
        base.network.mode = NetworkMode::Open;
        base.lifecycle.stop_after_s = Some(5);
        let create = |network| CreateSandbox {
            template: Some("web".into()),
            network,
            ..CreateSandbox::default()
        };
        let spec = create(None).into_spec_over(base.clone()).unwrap();
        assert_eq!(spec.network, base.network);
        assert_eq!(spec.lifecycle, base.lifecycle);
        let given = create(Some(Network::default().into()));
        let spec = given.into_spec_over(base).unwrap();
        assert_eq!(spec.network, NetworkPolicy::default());
    }

    #[test]
    fn one_field_of_network_or_lifecycle_leaves_the_others_of_the_template() {
        let base = SandboxSpec {
            network: NetworkPolicy {
                mode: NetworkMode::Open,
                bandwidth_down_mbit: Some(7),
                ..NetworkPolicy::default()
            },
            lifecycle: cove_model::IdlePolicy {
                pause_after_s: Some(100),
                max_lifetime_s: Some(3600),
                auto_resume: false,
                ..cove_model::IdlePolicy::default()
            },
            ..SandboxSpec::default()
        };
        let over = |body: &str| {
            let create: CreateSandbox = serde_json::from_str(body).unwrap();
            let create = CreateSandbox {
                template: Some("web".into()),
                ..create
            };
            create.into_spec_over(base.clone()).unwrap()
        };
        let one = over(r#"{"network":{"bandwidth_up_mbit":5},"lifecycle":{"pause_after_s":60}}"#);
        assert_eq!(one.network.mode, NetworkMode::Open);
        assert_eq!(one.network.bandwidth_up_mbit, Some(5));
        assert_eq!(one.network.bandwidth_down_mbit, Some(7));
        assert_eq!(one.lifecycle.pause_after_s, Some(60));
        assert_eq!(one.lifecycle.max_lifetime_s, Some(3600));
        assert!(!one.lifecycle.auto_resume);
        let none = over(
            r#"{"network":{"mode":"none","bandwidth_down_mbit":null},
                "lifecycle":{"max_lifetime_s":null,"auto_resume":true}}"#,
        );
        assert_eq!(none.network, NetworkPolicy::default());
        assert_eq!(none.lifecycle.max_lifetime_s, None);
        assert_eq!(none.lifecycle.pause_after_s, Some(100));
        assert!(none.lifecycle.auto_resume);
        assert_eq!(over(r#"{"network":{},"lifecycle":{}}"#), base);
    }

    #[test]
    fn a_list_that_cannot_be_parsed_is_no_policy() {
        let network = |entries: Vec<&str>| Network {
            mode: NetworkMode::Allowlist,
            allow: Some(entries.into_iter().map(str::to_owned).collect()),
            ..Network::default()
        };
        let good = network(vec!["Example.com", "10.1.2.3/32"]);
        let policy = NetworkPolicy::try_from(good.clone()).unwrap();
        assert_eq!(Network::from(&policy), good);
        for bad in [
            "exa mple.com",
            "https://a.com",
            "127.0.0.1",
            "terminate:a.com",
            "",
        ] {
            let error = NetworkPolicy::try_from(network(vec!["a.com", bad])).unwrap_err();
            let wanted = format!("network.allow: entry '{bad}': ");
            assert!(error.to_string().starts_with(&wanted), "{error}");
        }
        let many = network(vec!["a.com"; cove_limits::ALLOW_ENTRIES_MAX + 1]);
        assert!(NetworkPolicy::try_from(many).is_err());
    }

    #[test]
    fn every_field_of_the_body_reaches_the_spec() {
        let body = serde_json::json!({
            "image": "python", "name": "a", "isolation": "vm", "accel": "software", "no_new_privs": true,
            "resources": {"cpu": 2.0, "memory_mb": 64, "memory_max_mb": 128, "disk_mb": 99, "pids": 50,
                "open_files": 100, "io_read_mb_s": 5, "io_write_mb_s": 6},
            "env": {"A": "b"}, "network": {"mode": "allowlist", "allow": ["example.org"]},
            "lifecycle": {"stop_after_s": 1, "delete_after_s": 2, "max_lifetime_s": 3},
            "labels": {"k": "v"}, "user": "dev", "workdir": "/srv",
        });
        let create: CreateSandbox = serde_json::from_value(body.clone()).unwrap();
        assert_eq!(
            serde_json::to_value(create.into_spec_over(SandboxSpec::default()).unwrap()).unwrap(),
            body
        );
    }

    #[test]
    fn emulation_is_inherited_only_where_the_request_names_no_tier() {
        let base = SandboxSpec {
            isolation: "vm".into(),
            accel: Some(Accel::Software),
            ..SandboxSpec::default()
        };
        let over = |isolation: Option<&str>, accel| {
            let create = CreateSandbox {
                isolation: isolation.map(Into::into),
                accel,
                ..CreateSandbox::default()
            };
            create.into_spec_over(base.clone()).unwrap()
        };
        assert_eq!(over(None, None).accel, Some(Accel::Software));
        assert_eq!(over(None, Some(Accel::Kvm)).accel, Some(Accel::Kvm));
        for isolation in ["vm", "container", "auto"] {
            assert_eq!(over(Some(isolation), None).accel, None);
        }
        // With another tier, or with one that is not known yet, it is refused.
        for isolation in ["container", "gvisor", "auto"] {
            let spec = over(Some(isolation), Some(Accel::Software));
            let refused = spec.check().unwrap_err().to_string();
            assert!(
                refused.contains("accel") && refused.contains(isolation),
                "{refused}"
            );
        }
        over(Some("vm"), Some(Accel::Software)).check().unwrap();
    }
}
