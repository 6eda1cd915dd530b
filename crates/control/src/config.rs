//! What an operator may set, and the clock everything reads.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cove_model::network::Cidr;
use cove_model::{IsolationPolicy, LeaseTimes};
use cove_store::Quota;
use time::OffsetDateTime;

use crate::identity::IdentityConfig;
use crate::objects::ObjectsConfig;
use crate::previews::LinkKey;
use crate::secrets::SandboxAuthorities;
use cove_model::RateLimit;

#[derive(Debug, Clone)]
pub struct ControlConfig {
    /// Wraps the key of the fleet's certificate authority. Without one there are no nodes.
    pub fleet_key: Option<Arc<cove_vault::HostKeys>>,
    /// For organisations that are made without one of their own.
    pub default_quota: Quota,
    /// Of what all hosts may promise, such an organisation has no more than this share, unless it is the home one.
    pub quota_share: f64,
    /// Sandboxes that a host takes.
    pub sandboxes_max: u64,
    /// Requests of each key by itself; 0 per second means no limit.
    pub rate_limit: RateLimit,
    /// How often figures are taken for metering.
    pub meter_every: Duration,
    /// How often idle policies are looked at.
    pub lifecycle_every: Duration,
    /// How often the database is compared with what the host has.
    pub reconcile_every: Duration,
    /// How long a snapshot that the host does not know may be somebody's request on its way. After that it
    /// is taken for given up.
    pub snapshot_grace: Duration,
    /// How long a caller waits for an earlier change of the same sandbox or snapshot.
    pub change_wait: Duration,
    /// How long a list of events waits for the hosts to tell what has just happened on them.
    pub events_wait: Duration,
    /// How long the guest of an idle sandbox has to say what it is doing.
    pub guest_patience: Duration,
    /// How often a process shows other ones on the same database that it goes on with a build or an upload.
    pub work_beat_every: Duration,
    /// How often old rows are removed.
    pub sweep_every: Duration,
    /// Below this share of one CPU over a lifecycle period a sandbox counts as idle.
    pub idle_cpu: f64,
    /// Below this many bytes in or out over a lifecycle period a sandbox counts as idle.
    pub idle_network_bytes: u64,
    /// How long network bytes keep a sandbox from being idle: an agent may be waiting for its model.
    pub network_quiet: Duration,
    /// What processes get between SIGTERM and SIGKILL when a stop does not say.
    pub stop_grace_ms: u64,
    /// Of leases whose requests give no times.
    pub lease_times: LeaseTimes,
    pub idempotency_kept: Duration,
    pub events_kept: Duration,
    /// Of each organisation.
    pub events_max: u64,
    pub audit_kept: Duration,
    /// Of each organisation.
    pub audit_max: u64,
    /// The folder of the journal that calls into sandboxes are announced in. Without one they are kept
    /// in memory until the database has them.
    pub audit_journal: Option<PathBuf>,
    /// Where contexts of builds lie while they are used, in files without names. Absent: the system's place for
    /// temporary files.
    pub build_dir: Option<PathBuf>,
    /// Private ranges that every organisation's policies may list; the others are the home one's alone.
    pub tenant_private_ranges: Vec<Cidr>,
    /// A create pulls a missing image that it names with a tag, a digest or a path.
    pub pull_on_create: bool,
    /// The hosts have a registry for images that name none.
    pub has_default_registry: bool,
    /// Which isolation tiers organisations may use.
    pub isolation: IsolationPolicy,
    /// How long rows of deleted sandboxes stay (their usage stays for ever).
    pub tombstones_kept: Duration,
    pub tombstones_max: u64,
    /// Signs what lets visitors in without a key. Those signed with another one are worthless.
    pub link_key: LinkKey,
    /// Who issues identity tokens.
    pub identity: IdentityConfig,
    /// Object storage, where there is one.
    pub objects: Option<ObjectsConfig>,
    /// Certificate authorities that sandboxes trust beside those of their images.
    pub authorities: Option<Arc<SandboxAuthorities>>,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            fleet_key: None,
            default_quota: Quota::default(),
            quota_share: 0.5,
            sandboxes_max: Quota::default().sandboxes,
            rate_limit: RateLimit {
                per_second: 2_000.0,
                burst: 4_000.0,
            },
            meter_every: Duration::from_secs(15),
            lifecycle_every: Duration::from_secs(5),
            reconcile_every: Duration::from_secs(60),
            snapshot_grace: Duration::from_secs(30),
            change_wait: Duration::from_secs(30),
            events_wait: Duration::from_secs(1),
            guest_patience: Duration::from_secs(3),
            work_beat_every: Duration::from_secs(5),
            sweep_every: Duration::from_secs(600),
            idle_cpu: 0.02,
            idle_network_bytes: 1024,
            network_quiet: Duration::from_secs(15 * 60),
            stop_grace_ms: cove_limits::STOP_GRACE_DEFAULT_MS,
            lease_times: LeaseTimes::default(),
            idempotency_kept: Duration::from_secs(24 * 3600),
            events_kept: Duration::from_secs(7 * 24 * 3600),
            events_max: 100_000,
            audit_kept: Duration::from_secs(90 * 24 * 3600),
            audit_max: 1_000_000,
            audit_journal: None,
            build_dir: None,
            tenant_private_ranges: Vec::new(),
            pull_on_create: true,
            has_default_registry: true,
            isolation: IsolationPolicy::default(),
            tombstones_kept: Duration::from_secs(7 * 24 * 3600),
            tombstones_max: 100_000,
            link_key: LinkKey::random(),
            identity: IdentityConfig::default(),
            objects: None,
            authorities: None,
        }
    }
}

/// Where the control plane reads the time, so that tests can turn it.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> OffsetDateTime;
    /// Which boot of the host this is.
    fn boot_id(&self) -> String;
    /// Microseconds since that boot. Setting the clock does not change it.
    fn boot_micros(&self) -> u64;
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    fn boot_id(&self) -> String {
        cove_runner_api::clock::boot_id().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the host's boot id; usage across this start is estimated");
            format!("unknown-{:016x}", rand::random::<u64>())
        })
    }

    fn boot_micros(&self) -> u64 {
        cove_runner_api::clock::boot_micros()
    }
}
