//! The rows of the control plane's database, as values.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cove_model::{
    BootTime, EventKind, HostId, ImageId, KeyId, OrgId, Resources, SandboxId, SandboxSpec,
    SnapshotId, State, Steady,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

mod build;
mod node;
mod object;
mod secret;
mod snapshot;
mod template;
mod volume;

pub use build::*;
pub use cove_model::{ObjectCopy, Scope, SnapshotKind};
pub use node::*;
pub use object::*;
pub use secret::*;
pub use snapshot::*;
pub use template::*;
pub use volume::*;

/// What a database was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Operations {
    /// Those that change nothing.
    pub reads: u64,
    pub writes: u64,
}

/// What an organisation may hold at once. CPU in thousandths, so that sums are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Sandboxes that exist, running or not.
    pub sandboxes: u64,
    /// Held by sandboxes that run or are meant to.
    pub cpu_milli: u64,
    /// Held by sandboxes that run or are meant to, counted at their ceiling.
    pub memory_mb: u64,
    /// Held by sandboxes that exist, by volumes with all of their size, and by snapshots as far as they share it
    /// with nothing else.
    pub disk_mb: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            sandboxes: 10_000,
            cpu_milli: 10_000_000,
            memory_mb: 16 * 1024 * 1024,
            disk_mb: 256 * 1024 * 1024,
        }
    }
}

/// What a sandbox, or all of an organisation's together, hold of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Holding {
    pub sandboxes: u64,
    pub cpu_milli: u64,
    pub memory_mb: u64,
    pub disk_mb: u64,
}

impl Holding {
    /// A sandbox that runs, or is meant to.
    pub fn running(resources: &Resources) -> Self {
        Self {
            sandboxes: 1,
            // Rounded up, so that many small fractions cannot add up to nothing.
            cpu_milli: (resources.cpu * 1000.0).ceil() as u64,
            memory_mb: resources.memory_ceiling_mb(),
            disk_mb: resources.disk_mb,
        }
    }

    /// A sandbox of which only the disk is kept.
    pub fn stopped(resources: &Resources) -> Self {
        Self {
            cpu_milli: 0,
            memory_mb: 0,
            ..Self::running(resources)
        }
    }

    /// A sandbox that is gone.
    pub fn nothing() -> Self {
        Self::default()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Organisation {
    pub id: OrgId,
    /// Unique.
    pub name: String,
    pub quota: Quota,
    pub used: Holding,
    /// Taints of hosts that its sandboxes may tolerate.
    pub tolerations: BTreeSet<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// What came of the removal of an organisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrganisationRemoval {
    /// It is a tombstone under the name it had, and its keys are revoked.
    Removed { name: String },
    /// Nothing was changed: it has this many of these.
    Holds(Vec<(OrganisationHolding, u64)>),
}

/// What keeps an organisation from being removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrganisationHolding {
    Sandboxes,
    /// Those that somebody asked for; automatic ones go by themselves.
    Snapshots,
    Templates,
    Volumes,
    Secrets,
    /// Names it gave to images of its own.
    Images,
    /// Under way.
    Builds,
    /// Fetches of images, under way.
    Pulls,
}

/// An API key without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Key {
    pub id: KeyId,
    pub org: OrgId,
    pub name: String,
    pub scopes: Vec<Scope>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub expires_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub revoked_at: Option<OffsetDateTime>,
    /// Kept coarsely.
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_used_at: Option<OffsetDateTime>,
    /// The key made at first start.
    pub root: bool,
    /// The only sandbox it is good for.
    pub sandbox: Option<SandboxId>,
}

/// What the owner wants of a sandbox; the lifecycle state says what is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Desired {
    Running,
    Stopped,
    Deleted,
}

impl Desired {
    pub const ALL: [Desired; 3] = [Desired::Running, Desired::Stopped, Desired::Deleted];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Deleted => "deleted",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.as_str() == text)
    }
}

/// What the host reported about a sandbox when it made it, kept so that commands need not ask again.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostFacts {
    pub image: Option<ImageId>,
    pub image_env: Vec<(String, String)>,
    pub image_user: Option<String>,
    pub image_workdir: Option<String>,
    /// Limits in force, where they differ from the spec's.
    pub limits: Option<Resources>,
    /// What stands for each secret inside, by the secrets' names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub placeholders: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRecord {
    pub id: SandboxId,
    pub org: OrgId,
    /// Where it is.
    pub host: HostId,
    /// As asked for, with later changes; the name and labels in it are the current ones.
    pub spec: SandboxSpec,
    pub desired: Desired,
    pub state: State,
    pub reason: Option<String>,
    /// Grows with every change; a writer that read an older one loses.
    pub generation: u64,
    pub facts: HostFacts,
    pub holds: Holding,
    pub created_at: OffsetDateTime,
    /// The same two moments on the axis of time that passed.
    pub created_steady: Steady,
    pub active_steady: Steady,
    pub updated_at: OffsetDateTime,
    pub started_at: Option<OffsetDateTime>,
    /// When it stopped or failed; absent while it does anything else. The store keeps it.
    pub stopped_at: Option<OffsetDateTime>,
    /// Kept coarsely; see the lifecycle ticker.
    pub last_active_at: OffsetDateTime,
    pub deleted_at: Option<OffsetDateTime>,
    /// The snapshot it began from, when it did not begin from an image.
    pub origin: Option<SnapshotId>,
    /// The snapshot its present state grew from: the last one taken of it or rolled back to.
    pub head: Option<SnapshotId>,
}

/// A change of a sandbox's row; what is absent stays.
#[derive(Debug, Clone, Default)]
pub struct SandboxChange {
    /// Refuse with [`crate::StoreError::Stale`] when the row has another generation.
    pub expected_generation: Option<u64>,
    pub spec: Option<SandboxSpec>,
    pub desired: Option<Desired>,
    pub state: Option<State>,
    pub reason: Option<Option<String>>,
    pub facts: Option<HostFacts>,
    /// Refused with [`crate::StoreError::Quota`] when it grows past the organisation's quota.
    pub holds: Option<Holding>,
    pub started_at: Option<Option<OffsetDateTime>>,
    pub last_active: Option<Moment>,
    /// The row becomes a tombstone: its name is free again and no list shows it.
    pub deleted_at: Option<OffsetDateTime>,
    pub head: Option<Option<SnapshotId>>,
}

/// A caller's promise that two requests with this key are one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub key: String,
    /// Of the whole request, so that reuse for another one is noticed.
    pub request_hash: String,
}

/// Where the making of something with an idempotency key ended up.
#[derive(Debug, Clone, PartialEq)]
pub enum Inserted<Id> {
    /// The row is there, durable.
    New,
    /// The same request made this one before; it may be gone by now.
    Replayed(Id),
    /// The key belongs to another request.
    KeyReused,
}

pub type Created = Inserted<SandboxId>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxRef<'a> {
    Id(&'a SandboxId),
    Name(&'a str),
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct SandboxFilter {
    pub states: Vec<State>,
    /// Exact name.
    pub name: Option<String>,
    /// All of them must match.
    pub labels: BTreeMap<String, String>,
    /// Else the newest come first.
    pub oldest_first: bool,
}

/// How much of a list, and from where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// At most [`crate::PAGE_MAX`]; 0 means [`crate::PAGE_DEFAULT`].
    pub limit: u32,
    /// From an earlier [`Page::next_cursor`].
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Absent on the last page.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    pub fn map<U>(self, change: impl FnMut(T) -> U) -> Page<U> {
        Page {
            items: self.items.into_iter().map(change).collect(),
            next_cursor: self.next_cursor,
        }
    }
}

/// An event as the control plane keeps it: with a sequence of its own, which outlives hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredEvent {
    /// Grows within the installation; readers resume from it.
    pub sequence: u64,
    pub org: OrgId,
    pub sandbox: SandboxId,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    #[serde(flatten)]
    pub kind: EventKind,
}

/// How far the events of one host were read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostPosition {
    pub sequence: u64,
    /// Which start of the host's process had them.
    pub life: String,
}

/// That the events of a host were read from one position to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAdvance {
    pub host: HostId,
    /// Where the reader began; the default where there was no position.
    pub from: HostPosition,
    pub to: HostPosition,
}

/// Who does what only one process should do at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkRecord {
    /// The installation of the process: its data directory.
    pub owner: String,
    pub token: String,
    /// Counts up while the process lives.
    pub beats: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    pub org: OrgId,
    pub sandbox: SandboxId,
    pub at: OffsetDateTime,
    pub kind: EventKind,
}

/// Who did what, and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Given by the store; 0 in a record not yet written.
    pub sequence: u64,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub org: OrgId,
    /// Absent when the system itself acted (an idle policy, a reconcile).
    pub key: Option<KeyId>,
    /// `sandbox.create`, `file.write`, …
    pub action: String,
    /// What it was done to: an id, or the name the caller gave when there is none.
    pub target: Option<String>,
    /// The address the request came from.
    pub source: Option<String>,
    pub request_id: Option<String>,
    /// `ok`, the code of the error, or for calls into a sandbox: `pending` (it goes on), `not_done` (the
    /// guest was never asked), `unknown` (nobody lived or waited to hear).
    pub result: String,
    pub detail: Option<String>,
    /// Given by the store: see [`crate::audit_hash`]. Empty in a record not yet written, and in those
    /// from before there were chains.
    #[serde(default)]
    pub hash: String,
}

/// A journal of audit records that are on their way to the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditJournal {
    pub host: String,
    pub journal: String,
}

/// A record and its place in its journal.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalEntry {
    pub position: u64,
    pub record: AuditRecord,
}

/// A moment by both clocks: as a date, and on the axis of time that passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    pub at: OffsetDateTime,
    pub steady: Steady,
}

/// The clocks of a machine, read together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootReading {
    /// Stays the same over its boots.
    pub machine: String,
    pub at: OffsetDateTime,
    pub boot_time: BootTime,
}

/// How readings of one boot lie on the axis of time that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SteadyAxis {
    pub boot: String,
    /// Where the axis was at the boot.
    pub offset_us: i64,
    /// Since when the axis is exact; what spans this point is estimated from the wall clock.
    pub began: Steady,
}

/// Raw counters of one sandbox at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct UsageSample {
    pub sandbox: SandboxId,
    pub org: OrgId,
    /// The date says which hour it counts for, the rest how long.
    pub at: Moment,
    /// What spans this point is estimated.
    pub exact_since: Steady,
    pub running: bool,
    /// How long it has been running; the first figures of a sandbox stand for that too.
    pub running_for: Option<Duration>,
    /// Until when it ran, when it no longer does and somebody saw its end: memory is charged up to
    /// there.
    pub ran_until: Option<Steady>,
    pub cpu_usec: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub egress_bytes: u64,
}

/// What a snapshot alone holds at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotSample {
    pub snapshot: SnapshotId,
    pub org: OrgId,
    pub at: Moment,
    pub exact_since: Steady,
    /// Absent when it is gone: what it held is charged up to now, and no more after that.
    pub disk_bytes: Option<u64>,
}

/// What was used, in units that add up exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    pub cpu_usec: u64,
    /// MiB times milliseconds.
    pub memory_mib_ms: u64,
    pub disk_mib_ms: u64,
    pub egress_bytes: u64,
    /// Milliseconds that were charged by the difference of dates, because the host was restarted meanwhile.
    pub estimated_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxUsage {
    pub sandbox: SandboxId,
    #[serde(flatten)]
    pub usage: Usage,
}

/// From `from` (inclusive) to `to` (exclusive), by the hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    pub from: OffsetDateTime,
    pub to: OffsetDateTime,
}

/// An organisation's own word for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageGrant {
    pub name: String,
    pub image: ImageId,
    /// Everybody's, not only this organisation's.
    pub shared: bool,
}

/// A fetch of an image that an organisation asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageJobRecord {
    /// The host's name for it; organisations that asked for the same in the same way share one.
    pub id: String,
    pub org: OrgId,
    /// The one that fetches.
    pub host: HostId,
    /// What was asked for.
    pub name: String,
    /// For everybody, not only this organisation.
    pub shared: bool,
    pub created_at: OffsetDateTime,
    /// How it ended, in words of the control plane; absent while it may be under way.
    pub outcome: Option<String>,
}

/// A port that may be visited without a key: by links, or by everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortShare {
    pub sandbox: SandboxId,
    pub port: u16,
    pub org: OrgId,
    /// Counts how often links were taken back; those of an earlier count are worthless.
    pub epoch: u64,
    /// Open to everybody, for ever or until a moment.
    pub public: bool,
    pub public_until: Option<OffsetDateTime>,
}

/// A public key whose holder may use an organisation's sandboxes over SSH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshKey {
    pub id: KeyId,
    pub org: OrgId,
    pub name: String,
    /// Kind and key, as in a `.pub` file, without the comment.
    pub public_key: String,
    /// `SHA256:…`, as OpenSSH shows it.
    pub fingerprint: String,
    pub created_at: OffsetDateTime,
    pub expires_at: Option<OffsetDateTime>,
}

/// What old rows a sweep removes: those before a time, and the oldest beyond a number. Of events and
/// audit records each organisation has that number to itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Retention {
    pub idempotency_before: Steady,
    /// Of image jobs.
    pub jobs_before: OffsetDateTime,
    pub events_before: OffsetDateTime,
    pub events_max: u64,
    pub audit_before: OffsetDateTime,
    pub audit_max: u64,
    /// Rows of sandboxes that are gone. Their usage becomes part of their organisation's.
    pub tombstones_before: OffsetDateTime,
    pub tombstones_max: u64,
}
