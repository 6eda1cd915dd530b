//! The control plane's database: who exists, what they asked for, what they used and what was done.
//!
//! [`Store`] is the interface; SQLite and PostgreSQL are behind it, with the same statements and the
//! same test suite. A method that has returned is durable: it survives SIGKILL and power loss. Checks
//! that must not race (quotas, unique names, idempotency) happen inside the transaction that acts.
#![forbid(unsafe_code)]

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cove_model::secret::OrgKeys;
use cove_model::{
    BuildId, HostId, HostTraits, ImageId, KeyId, OrgId, SandboxId, SecretId, SnapshotId,
    TemplateId, TraitsChange, VolumeId,
};
use time::OffsetDateTime;

mod chain;
mod cursor;
mod migrate;
mod newest;
mod objects;
mod ops;
mod postgres;
mod schema;
mod sql;
mod sqlite;
mod store;
pub mod types;

pub use chain::{AUDIT_GENESIS, AuditHead, ChainBreak, ChainCheck, audit_hash};
pub use cove_limits::{PAGE_DEFAULT, PAGE_MAX};
pub use cursor::cursor_behind;
pub use objects::ObjectTables;
pub use types::*;

fn kept(template: &str, others: u64) -> String {
    match others {
        0 => format!("the template {template} begins from the snapshot"),
        1 => format!("the template {template} and one other begin from the snapshot"),
        _ => format!("the template {template} and {others} others begin from the snapshot"),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{what} does not exist")]
    NotFound { what: &'static str },
    #[error("{what} exists already")]
    Exists { what: &'static str },
    #[error("another request has changed the row meanwhile")]
    Stale,
    #[error(
        "the organisation's quota of {resource} is {limit}; {used} are in use and {asked} more were requested"
    )]
    Quota {
        resource: &'static str,
        limit: u64,
        used: u64,
        asked: u64,
    },
    #[error("the root key belongs to the machine of the server")]
    RootKey,
    #[error("this is the organisation's last key that may make others")]
    LastAdminKey,
    #[error("there are too many {what} already")]
    TooMany { what: &'static str },
    #[error("{}", kept(template, *others))]
    Kept { template: String, others: u64 },
    #[error("the template has {versions} versions")]
    SeveralVersions { versions: u64 },
    #[error("the cursor does not belong to this list")]
    BadCursor,
    /// A program of a later release has changed the tables.
    #[error(
        "the database has schema {found}, which needs a program of schema {oldest} or later; this program ({}) has \
         schema {known}", env!("CARGO_PKG_VERSION")
    )]
    Newer { found: i64, oldest: i64, known: i64 },
    #[error("the address of the database is invalid: {0}")]
    Address(String),
    #[error("TLS with the database failed")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the database cannot be reached")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the database is read-only")]
    ReadOnly,
    #[error("the database failed")]
    Database(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The database has things of a host that is not among those given.
    #[error("the database belongs to host {known}")]
    OtherHost { known: HostId },
    /// Rows from before there were hosts can only be given to the one host there was.
    #[error("the database does not say which host its sandboxes are on, and there are several")]
    NoHost,
    #[error("the node was removed from the fleet meanwhile")]
    NodeRemoved,
    #[error("cannot decode a stored {what}")]
    Corrupt { what: &'static str },
}

#[async_trait]
pub trait Store: ObjectTables {
    /// Whether the database answers and takes writes. Every method here ends within a few seconds; one
    /// that finds the database down answers `Unavailable` or `ReadOnly` at once.
    async fn check(&self) -> Result<(), StoreError>;
    /// What is known already, without asking the database.
    fn available(&self) -> Result<(), StoreError>;
    /// What the database was asked for since this was opened.
    fn operations(&self) -> Operations;

    /// These are the hosts of the installation; call it before anything that reads rows. New ones are added.
    /// A database that knows another one is refused with [`StoreError::OtherHost`]. The first time, rows
    /// from before there were hosts are given to the only one.
    async fn register_hosts(&self, hosts: &[HostId], at: OffsetDateTime) -> Result<(), StoreError>;
    async fn hosts(&self) -> Result<Vec<HostId>, StoreError>;

    /// `None` before the first join token was made.
    async fn fleet(&self) -> Result<Option<FleetRecord>, StoreError>;
    /// Makes this the fleet, unless there is one; answers the one there is.
    async fn keep_fleet(&self, fleet: &FleetRecord) -> Result<FleetRecord, StoreError>;
    /// All that joined and were not removed, by name.
    async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError>;
    async fn create_join_token(
        &self,
        token: &JoinTokenRecord,
        now: OffsetDateTime,
    ) -> Result<(), StoreError>;
    async fn join_token(&self, id: &str) -> Result<Option<JoinTokenRecord>, StoreError>;
    /// Uses the token up and adds the node, or neither.
    async fn join_node(
        &self,
        token: &str,
        node: &NodeRecord,
        now: OffsetDateTime,
    ) -> Result<Joined, StoreError>;
    async fn cordon_node(&self, host: &HostId, cordoned: bool) -> Result<(), StoreError>;
    /// Of a node. Answers what its traits are then.
    async fn change_traits(
        &self,
        host: &HostId,
        change: &TraitsChange,
    ) -> Result<HostTraits, StoreError>;
    async fn renew_node(&self, host: &HostId, expires: OffsetDateTime) -> Result<(), StoreError>;
    /// Nothing happens while it has something: what, and how many, is answered then.
    async fn remove_node(
        &self,
        host: &HostId,
        at: OffsetDateTime,
    ) -> Result<Option<(&'static str, u64)>, StoreError>;
    /// Moves a sandbox that is still being made to another host. `Stale` when it is not there any more. Like everything
    /// that makes a row for a host, `NodeRemoved` for a node that was removed.
    async fn place_sandbox(
        &self,
        id: &SandboxId,
        from: &HostId,
        to: &HostId,
    ) -> Result<(), StoreError>;

    async fn create_organisation(&self, org: &Organisation) -> Result<(), StoreError>;
    async fn organisation(&self, id: &OrgId) -> Result<Option<Organisation>, StoreError>;
    async fn organisation_by_name(&self, name: &str) -> Result<Option<Organisation>, StoreError>;
    async fn organisations(&self, page: &PageRequest) -> Result<Page<Organisation>, StoreError>;
    /// Those that were removed too, under the names they had.
    async fn organisations_ever(
        &self,
        page: &PageRequest,
    ) -> Result<Page<Organisation>, StoreError>;
    /// Revokes its keys, forgets its SSH keys and makes its row a tombstone, whose name is free again; or nothing of it
    /// while it holds something. Nothing can be made in it afterwards.
    async fn remove_organisation(
        &self,
        id: &OrgId,
        at: OffsetDateTime,
    ) -> Result<OrganisationRemoval, StoreError>;
    /// What is held already stays, also above the new quota.
    /// `Stale` when it is not `from` any more, where that is given.
    async fn set_quota(
        &self,
        id: &OrgId,
        from: Option<Quota>,
        to: Quota,
    ) -> Result<Organisation, StoreError>;
    /// Adds taints that its sandboxes may tolerate, and takes others away.
    async fn tolerate(
        &self,
        id: &OrgId,
        change: &BTreeMap<String, bool>,
    ) -> Result<Organisation, StoreError>;

    /// `hash` is the lowercase hexadecimal SHA-256 of the token.
    async fn create_key(&self, key: &Key, hash: &str) -> Result<(), StoreError>;
    /// Makes this the root key; an earlier root key with another hash is revoked.
    async fn put_root_key(&self, key: &Key, hash: &str) -> Result<Key, StoreError>;
    async fn key_by_hash(&self, hash: &str) -> Result<Option<Key>, StoreError>;
    async fn key(&self, id: &KeyId) -> Result<Option<Key>, StoreError>;
    async fn keys(&self, org: &OrgId, page: &PageRequest) -> Result<Page<Key>, StoreError>;
    /// Not the root key, and not the last key of an organisation that may make others.
    async fn revoke_key(
        &self,
        org: &OrgId,
        id: &KeyId,
        at: OffsetDateTime,
    ) -> Result<Key, StoreError>;
    async fn touch_keys(&self, used: &[(KeyId, OffsetDateTime)]) -> Result<(), StoreError>;

    /// Takes the quota, inserts the row and claims the idempotency key, or does none of it. Like
    /// [`Store::note_sandbox`], it survives a power loss only with what is written after it.
    async fn create_sandbox(
        &self,
        record: &SandboxRecord,
        idempotency: Option<&IdempotencyKey>,
    ) -> Result<Created, StoreError>;
    /// Not those that are gone.
    async fn sandbox(
        &self,
        org: &OrgId,
        which: SandboxRef<'_>,
    ) -> Result<Option<SandboxRecord>, StoreError>;
    /// Whoever owns it, gone or not.
    async fn any_sandbox(&self, id: &SandboxId) -> Result<Option<SandboxRecord>, StoreError>;
    /// Newest first, not those that are gone.
    async fn sandboxes(
        &self,
        org: &OrgId,
        filter: &SandboxFilter,
        page: &PageRequest,
    ) -> Result<Page<SandboxRecord>, StoreError>;
    /// Of all organisations on one host, not those that are gone.
    async fn sandboxes_on(
        &self,
        host: &HostId,
        page: &PageRequest,
    ) -> Result<Page<SandboxRecord>, StoreError>;
    async fn change_sandbox(
        &self,
        id: &SandboxId,
        change: &SandboxChange,
        at: OffsetDateTime,
    ) -> Result<SandboxRecord, StoreError>;
    /// The same, for a step on the way to something that is flushed: it survives the end of this
    /// process at once, a power loss together with the next flushed write. Events, figures and last
    /// uses are kept like this too.
    async fn note_sandbox(
        &self,
        id: &SandboxId,
        change: &SandboxChange,
        at: OffsetDateTime,
    ) -> Result<SandboxRecord, StoreError>;
    /// Only ever forwards.
    async fn touch_sandboxes(&self, active: &[(SandboxId, Moment)]) -> Result<(), StoreError>;
    /// Tombstones of those that were on a host, the last first.
    async fn buried_sandboxes(
        &self,
        host: &HostId,
        limit: u32,
    ) -> Result<Vec<SandboxRecord>, StoreError>;
    /// Whether a create with this key was made before, and of what; `None` if the key is free.
    async fn claimed_sandbox(
        &self,
        org: &OrgId,
        key: &IdempotencyKey,
    ) -> Result<Option<Created>, StoreError>;
    /// The same of a volume.
    async fn claimed_volume(
        &self,
        org: &OrgId,
        key: &IdempotencyKey,
    ) -> Result<Option<VolumeCreated>, StoreError>;
    /// Lets the request behind a create that failed be tried again.
    async fn forget_idempotency(&self, org: &OrgId, sandbox: &SandboxId) -> Result<(), StoreError>;

    /// Takes the quota, inserts the row and claims the idempotency key, or does none of it.
    async fn create_snapshot(
        &self,
        record: &SnapshotRecord,
        idempotency: Option<&IdempotencyKey>,
    ) -> Result<SnapshotCreated, StoreError>;
    /// Not those that are gone.
    async fn snapshot(
        &self,
        org: &OrgId,
        which: SnapshotRef<'_>,
    ) -> Result<Option<SnapshotRecord>, StoreError>;
    /// Whoever owns it, gone or not.
    async fn any_snapshot(&self, id: &SnapshotId) -> Result<Option<SnapshotRecord>, StoreError>;
    /// Newest first.
    async fn snapshots(
        &self,
        org: &OrgId,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Page<SnapshotRecord>, StoreError>;
    /// Of all organisations on one host, not those that are gone.
    async fn snapshots_on(
        &self,
        host: &HostId,
        page: &PageRequest,
    ) -> Result<Page<SnapshotRecord>, StoreError>;
    /// Marking it for its end is refused with [`StoreError::Kept`] while a template begins from it.
    async fn change_snapshot(
        &self,
        id: &SnapshotId,
        change: &SnapshotChange,
    ) -> Result<SnapshotRecord, StoreError>;
    /// Takes away what never came to be; its idempotency key is free again.
    async fn forget_snapshot(&self, id: &SnapshotId) -> Result<(), StoreError>;
    /// Living sandboxes that began from a snapshot of this one, oldest first.
    async fn forks(&self, sandbox: &SandboxId, limit: u32) -> Result<Vec<SandboxId>, StoreError>;

    /// Charges what was used since each sandbox's last sample and moves its marks, in one go. A
    /// sample that is older than the last one changes nothing.
    /// With the organisation's quota, count and names checked. Durable.
    async fn create_volume(
        &self,
        record: &VolumeRecord,
        idempotency: Option<&IdempotencyKey>,
    ) -> Result<VolumeCreated, StoreError>;
    async fn volume(
        &self,
        org: &OrgId,
        which: VolumeRef<'_>,
    ) -> Result<Option<VolumeRecord>, StoreError>;
    /// Of any organisation, gone ones too, as far as they are remembered.
    async fn any_volume(&self, id: &VolumeId) -> Result<Option<VolumeRecord>, StoreError>;
    async fn volumes(
        &self,
        org: &OrgId,
        page: &PageRequest,
    ) -> Result<Page<VolumeRecord>, StoreError>;
    async fn volumes_on(
        &self,
        host: &HostId,
        page: &PageRequest,
    ) -> Result<Page<VolumeRecord>, StoreError>;
    /// From being made to being there.
    async fn ready_volume(&self, id: &VolumeId) -> Result<VolumeRecord, StoreError>;
    async fn measured_volume(&self, id: &VolumeId, used_bytes: u64) -> Result<(), StoreError>;
    /// Marks it for its end, unless sandboxes have it.
    async fn doom_volume(&self, org: &OrgId, id: &VolumeId) -> Result<VolumeDoomed, StoreError>;
    /// The host has nothing of it any more: the row becomes a tombstone.
    async fn bury_volume(&self, id: &VolumeId, at: OffsetDateTime) -> Result<(), StoreError>;
    /// Marks one that was never finished for its end; not found when it is not being made any more.
    async fn abandon_volume(&self, id: &VolumeId) -> Result<VolumeRecord, StoreError>;
    /// Takes the mark for its end back.
    async fn spare_volume(&self, id: &VolumeId) -> Result<VolumeRecord, StoreError>;
    /// Takes the row away of one that never came to be.
    async fn forget_volume(&self, id: &VolumeId) -> Result<(), StoreError>;
    async fn volume_users(&self, id: &VolumeId) -> Result<Vec<VolumeUser>, StoreError>;
    async fn apply_volume_samples(&self, samples: &[VolumeSample]) -> Result<(), StoreError>;

    /// Numbers it, points its tags at it and pins its snapshot, or does none of it.
    async fn create_template(
        &self,
        new: &NewTemplate,
        idempotency: Option<&IdempotencyKey>,
    ) -> Result<TemplateCreated, StoreError>;
    async fn template(
        &self,
        org: &OrgId,
        which: &TemplateKey,
    ) -> Result<Option<TemplateRecord>, StoreError>;
    /// Versions, newest first; of one name, or of all.
    async fn templates(
        &self,
        org: &OrgId,
        name: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<TemplateRecord>, StoreError>;
    async fn tag_template(
        &self,
        org: &OrgId,
        id: &TemplateId,
        tag: &str,
    ) -> Result<TemplateRecord, StoreError>;
    /// With a version, only if the tag points at that.
    async fn untag_template(
        &self,
        org: &OrgId,
        name: &str,
        tag: &str,
        version: Option<u64>,
    ) -> Result<(), StoreError>;
    /// What there is of a name, with so many of its tags.
    async fn template_hint(
        &self,
        org: &OrgId,
        name: &str,
        tags: u32,
    ) -> Result<Option<TemplateHint>, StoreError>;
    /// What was there, and the snapshots that are free of them.
    async fn delete_templates(
        &self,
        org: &OrgId,
        which: &TemplatesDoomed,
    ) -> Result<Vec<(TemplateId, SnapshotId)>, StoreError>;

    async fn apply_samples(&self, samples: &[UsageSample]) -> Result<(), StoreError>;
    /// The same for the disk of snapshots. It counts for the organisation, not for any sandbox.
    async fn apply_snapshot_samples(&self, samples: &[SnapshotSample]) -> Result<(), StoreError>;
    async fn usage(&self, org: &OrgId, period: Period) -> Result<Usage, StoreError>;
    async fn usage_by_sandbox(
        &self,
        org: &OrgId,
        period: Period,
        page: &PageRequest,
    ) -> Result<Page<SandboxUsage>, StoreError>;
    async fn usage_of(&self, sandbox: &SandboxId) -> Result<Usage, StoreError>;

    /// Appends and remembers how far a host's own event log was read, in one go. Answers `Stale` and changes nothing if
    /// the log was read further meanwhile, or again from its beginning.
    async fn append_events(
        &self,
        events: &[NewEvent],
        advance: Option<HostAdvance>,
    ) -> Result<Vec<StoredEvent>, StoreError>;
    async fn host_position(&self, host: &HostId) -> Result<Option<HostPosition>, StoreError>;
    /// Oldest first, after `sequence`.
    async fn events(
        &self,
        org: &OrgId,
        sandbox: Option<&SandboxId>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, StoreError>;
    /// Of one sandbox, newest first.
    async fn latest_events(
        &self,
        sandbox: &SandboxId,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, StoreError>;
    /// Of one organisation: sequences of the oldest event kept and of the last one ever given out.
    /// Each organisation has its own sequence.
    async fn event_bounds(&self, org: &OrgId) -> Result<(Option<u64>, u64), StoreError>;

    /// Adds records to the chains of their organisations. Those up to the last position that this
    /// journal has reached already are left out, so a batch may be given again after an error.
    async fn append_audit(
        &self,
        journal: &AuditJournal,
        entries: &[JournalEntry],
    ) -> Result<(), StoreError>;
    /// Oldest first, after `sequence`.
    async fn audit_after(
        &self,
        org: &OrgId,
        sequence: u64,
        limit: u32,
    ) -> Result<Vec<AuditRecord>, StoreError>;
    /// Absent for an organisation that never had a record.
    async fn audit_head(&self, org: &OrgId) -> Result<Option<AuditHead>, StoreError>;
    /// Newest first.
    async fn audit(&self, org: &OrgId, page: &PageRequest)
    -> Result<Page<AuditRecord>, StoreError>;

    /// Lets `org`, or everybody, use this image, and makes `name` their word for it. What an organisation
    /// uses alone counts to its disk quota, once, and is refused beyond it. Answers with the image that
    /// they have no word for any more because this one has taken its last.
    async fn grant_image(
        &self,
        org: Option<&OrgId>,
        name: &str,
        image: &ImageId,
        held_disk_mb: u64,
    ) -> Result<Option<ImageId>, StoreError>;
    /// The image is no more: takes everybody's words for it back.
    async fn forget_image(&self, image: &ImageId) -> Result<(), StoreError>;
    /// Takes all words of `org`, or of everybody, for this image back; answers whether there were any.
    /// An organisation goes on paying for it until [`Store::release_image`].
    async fn withdraw_image(
        &self,
        org: Option<&OrgId>,
        image: &ImageId,
    ) -> Result<bool, StoreError>;
    /// Images that organisations pay for without a word for them: the next some after this one, in
    /// the order of organisation and image.
    async fn loose_images(
        &self,
        after: Option<(OrgId, ImageId)>,
    ) -> Result<Vec<(OrgId, ImageId)>, StoreError>;
    /// Whether anybody but `org` has a word for this image or pays for it.
    async fn image_is_held_by_others(
        &self,
        org: &OrgId,
        image: &ImageId,
    ) -> Result<bool, StoreError>;
    /// Gives back what `org` pays for an image, unless it has a word for it.
    async fn release_image(&self, org: &OrgId, image: &ImageId) -> Result<(), StoreError>;
    /// What `org` has a word for itself, and what everybody has.
    async fn image_grants(&self, org: &OrgId) -> Result<Vec<ImageGrant>, StoreError>;
    /// Whether anybody has a word for this image.
    async fn image_is_granted(&self, image: &ImageId) -> Result<bool, StoreError>;

    /// The host has this image now.
    async fn put_image_on(&self, host: &HostId, image: &ImageId) -> Result<(), StoreError>;
    /// The host does not have this image any more.
    async fn remove_image_from(&self, host: &HostId, image: &ImageId) -> Result<(), StoreError>;
    /// The host has these images and no others.
    async fn set_images_on(&self, host: &HostId, images: &[ImageId]) -> Result<(), StoreError>;
    /// The hosts that have this image.
    async fn image_hosts(&self, image: &ImageId) -> Result<Vec<HostId>, StoreError>;

    /// Adds it, or writes how it ended; what ended once does not end differently.
    async fn put_image_job(&self, job: &ImageJobRecord) -> Result<(), StoreError>;
    /// Of one organisation, or, without one, of whoever has it.
    async fn image_job(
        &self,
        org: Option<&OrgId>,
        id: &str,
    ) -> Result<Option<ImageJobRecord>, StoreError>;
    /// Those whose end was never written, newest first.
    async fn unfinished_image_jobs(&self) -> Result<Vec<ImageJobRecord>, StoreError>;

    /// Adds a build, or writes how far it is; what is over does not change. Of those of the organisation that are
    /// over, the newest `keep` stay.
    async fn put_build(&self, build: &BuildRecord, keep: u32) -> Result<(), StoreError>;
    async fn build(&self, org: &OrgId, id: &BuildId) -> Result<Option<BuildRecord>, StoreError>;
    /// Newest first.
    async fn builds(&self, org: &OrgId, most: u32) -> Result<Vec<BuildRecord>, StoreError>;
    /// `owner` does this from now on, whoever did before. `token` is of this try alone.
    async fn take_work(&self, id: &str, owner: &str, token: &str) -> Result<(), StoreError>;
    /// Shows that a try goes on. `Stale` if another process has taken the work.
    async fn beat_work(&self, id: &str, token: &str) -> Result<(), StoreError>;
    /// Ends a try; what another process has taken stays.
    async fn end_work(&self, id: &str, token: &str) -> Result<(), StoreError>;
    async fn work(&self, id: &str) -> Result<Option<WorkRecord>, StoreError>;
    /// Those whose end was never written.
    async fn unfinished_builds(&self) -> Result<Vec<BuildRecord>, StoreError>;
    /// The snapshot of a state that an earlier build of the organisation made, if it is still there.
    async fn cached_step(&self, org: &OrgId, key: &str) -> Result<Option<SnapshotId>, StoreError>;
    /// Keeps the state after a step. Beyond `most`, those of the organisation used longest ago are forgotten.
    async fn keep_step(
        &self,
        org: &OrgId,
        key: &str,
        snapshot: &SnapshotId,
        at: OffsetDateTime,
        most: u32,
    ) -> Result<(), StoreError>;
    /// A build has used these states.
    async fn touch_steps(
        &self,
        org: &OrgId,
        keys: &[String],
        at: OffsetDateTime,
    ) -> Result<(), StoreError>;
    /// Forgets all states of an organisation; answers how many.
    async fn clear_steps(&self, org: &OrgId) -> Result<u64, StoreError>;
    /// Whether the cache of builds has this snapshot.
    async fn is_cached(&self, snapshot: &SnapshotId) -> Result<bool, StoreError>;

    /// Adds it, or opens to everybody what was shared by links before; as it is then.
    async fn share_port(&self, share: &PortShare) -> Result<PortShare, StoreError>;
    /// Of one port of a sandbox, or of all that are shared or ever were.
    async fn port_shares(
        &self,
        sandbox: &SandboxId,
        port: Option<u16>,
    ) -> Result<Vec<PortShare>, StoreError>;
    /// Makes every link given out for the port worthless, and closes it to everybody.
    async fn unshare_port(&self, sandbox: &SandboxId, port: u16) -> Result<(), StoreError>;

    async fn create_ssh_key(&self, key: &SshKey) -> Result<(), StoreError>;
    async fn ssh_keys(&self, org: &OrgId, page: &PageRequest) -> Result<Page<SshKey>, StoreError>;
    /// Of every organisation that has it, expired or not.
    async fn ssh_keys_by_fingerprint(&self, fingerprint: &str) -> Result<Vec<SshKey>, StoreError>;
    async fn remove_ssh_key(&self, org: &OrgId, id: &KeyId) -> Result<(), StoreError>;

    /// Keeps the keys of an organisation unless it has some; answers those that it has.
    async fn keep_secret_keys(&self, keys: &OrgKeys) -> Result<OrgKeys, StoreError>;
    /// The same keys in another wrapping; `Stale` when they are not the same.
    async fn rewrap_secret_keys(&self, keys: &OrgKeys) -> Result<(), StoreError>;
    async fn secret_keys(&self, org: &OrgId) -> Result<Option<OrgKeys>, StoreError>;
    async fn all_secret_keys(&self) -> Result<Vec<OrgKeys>, StoreError>;
    /// The next version of a secret, or its first; `Stale` when its version is not the next.
    async fn put_secret(&self, secret: &SecretRecord) -> Result<SecretRecord, StoreError>;
    async fn secret(&self, org: &OrgId, name: &str) -> Result<Option<SecretRecord>, StoreError>;
    async fn secrets(
        &self,
        org: &OrgId,
        page: &PageRequest,
    ) -> Result<Page<SecretRecord>, StoreError>;
    async fn remove_secret(&self, org: &OrgId, name: &str) -> Result<(), StoreError>;
    async fn note_secret_uses(&self, org: &OrgId, uses: &[SecretUsage]) -> Result<(), StoreError>;
    /// Who used it, the latest first.
    async fn secret_uses(&self, org: &OrgId, name: &str) -> Result<Vec<SecretUsage>, StoreError>;
    /// Gives a host part of a budget, which counts as used from now on. Takers at once get no more than there is.
    async fn take_budget(&self, want: &BudgetTaken) -> Result<BudgetGiven, StoreError>;
    /// Takes back what a host was given, never more than that.
    async fn return_budgets(
        &self,
        host: &HostId,
        returned: &[BudgetReturned],
    ) -> Result<(), StoreError>;
    /// What was used of all budgets that sandboxes of the organisation share, on this day and in all.
    async fn spent_budgets(&self, org: &OrgId, day: u32) -> Result<Vec<BudgetSpent>, StoreError>;
    /// What single sandboxes used of the secret's budgets.
    async fn spent_by_sandbox(
        &self,
        org: &OrgId,
        secret: &SecretId,
    ) -> Result<Vec<BudgetSpent>, StoreError>;

    /// Notes a reading of a machine's clocks and answers how readings of its boot lie on the axis of time that passed.
    /// Within a boot that is exact. A machine that was away continues where others have brought the axis; if there
    /// was no other, its own wall clock counts, and never backwards.
    async fn read_steady(&self, reading: &BootReading) -> Result<SteadyAxis, StoreError>;

    async fn setting(&self, name: &str) -> Result<Option<String>, StoreError>;
    async fn put_setting(&self, name: &str, value: &str) -> Result<(), StoreError>;

    /// Removes what is past its time; answers how many rows went.
    async fn sweep(&self, retention: &Retention) -> Result<u64, StoreError>;
}

/// Opens the database an operator named: `postgres://…` or `postgresql://…`, else the path of an
/// SQLite file (with `sqlite:` before it or without).
#[boxed]
pub async fn open(address: &str) -> Result<Arc<dyn Store>, StoreError> {
    if address.starts_with("postgres://") || address.starts_with("postgresql://") {
        let postgres = postgres::Postgres::open(address).await?;
        let store: Arc<dyn Store> = Arc::new(store::SqlStore::new(postgres));
        return Ok(store);
    }
    let path = address.strip_prefix("sqlite:").unwrap_or(address);
    if path.contains("://") {
        return Err(StoreError::Address(
            "expected postgres://… or the path of an SQLite file".into(),
        ));
    }
    open_sqlite(Path::new(path)).await
}

/// For the end of a server: afterwards the database file alone holds everything.
pub fn checkpoint_sqlite(path: &Path) -> Result<(), StoreError> {
    sqlite::checkpoint(path)
}

/// Opens or makes an SQLite file.
#[boxed]
pub async fn open_sqlite(path: &Path) -> Result<Arc<dyn Store>, StoreError> {
    open_sqlite_within(path, sqlite::OPERATION_TIMEOUT).await
}

/// The same for whoever would rather wait longer for a slow disk than be refused: one operation may take so long.
#[boxed]
pub async fn open_sqlite_within(
    path: &Path,
    operation_max: Duration,
) -> Result<Arc<dyn Store>, StoreError> {
    let path = path.to_owned();
    let sqlite = tokio::task::spawn_blocking(move || sqlite::Sqlite::open(&path, operation_max))
        .await
        .map_err(|error| StoreError::Unavailable(error.into()))??;
    let store: Arc<dyn Store> = Arc::new(store::SqlStore::new(sqlite));
    Ok(store)
}
