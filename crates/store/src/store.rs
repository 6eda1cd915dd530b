//! The [`Store`] over either database: every method is one operation.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;
use cove_model::secret::OrgKeys;
use cove_model::{
    BuildId, HostId, HostTraits, ImageId, KeyId, OrgId, SandboxId, SecretId, SnapshotId,
    TemplateId, TraitsChange, VolumeId,
};
use time::OffsetDateTime;

use crate::ops::{
    audit, budgets, builds, events, hosts, idempotency, image_jobs, images, keys, nodes,
    organisations, sandboxes, secrets, shares, snapshots, ssh_keys, steady, sweep, templates,
    usage, volumes, work,
};
use crate::sql::{Backend, Durability, Op};
use crate::{
    AuditHead, AuditJournal, AuditRecord, BootReading, BudgetGiven, BudgetReturned, BudgetSpent,
    BudgetTaken, BuildRecord, Created, FleetRecord, HostAdvance, HostPosition, IdempotencyKey,
    ImageGrant, ImageJobRecord, JoinTokenRecord, Joined, JournalEntry, Key, Moment, NewEvent,
    NewTemplate, NodeRecord, Operations, Organisation, OrganisationRemoval, Page, PageRequest,
    Period, PortShare, Quota, Retention, SandboxChange, SandboxFilter, SandboxRecord, SandboxRef,
    SandboxUsage, SecretRecord, SecretUsage, SnapshotChange, SnapshotCreated, SnapshotFilter,
    SnapshotRecord, SnapshotRef, SnapshotSample, SshKey, SteadyAxis, Store, StoreError,
    StoredEvent, TemplateCreated, TemplateHint, TemplateKey, TemplateRecord, TemplatesDoomed,
    Usage, UsageSample, VolumeCreated, VolumeDoomed, VolumeRecord, VolumeRef, VolumeSample,
    VolumeUser, WorkRecord,
};

pub struct SqlStore<B> {
    backend: B,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl<B: Backend> SqlStore<B> {
    pub fn new(backend: B) -> Self {
        Self {
            backend,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        }
    }

    pub(crate) async fn read<O: Op>(&self, op: O) -> Result<O::Out, StoreError> {
        self.reads.fetch_add(1, Relaxed);
        self.backend.read(op).await
    }

    async fn write<O: Op>(&self, op: O, durability: Durability) -> Result<O::Out, StoreError> {
        self.writes.fetch_add(1, Relaxed);
        self.backend.write(op, durability).await
    }

    pub(crate) async fn flushed<O: Op>(&self, op: O) -> Result<O::Out, StoreError> {
        self.write(op, Durability::Flushed).await
    }

    /// For what nobody is promised, or only together with something that is flushed after it.
    pub(crate) async fn written<O: Op>(&self, op: O) -> Result<O::Out, StoreError> {
        self.write(op, Durability::Written).await
    }
}

#[async_trait]
impl<B: Backend> Store for SqlStore<B> {
    async fn check(&self) -> Result<(), StoreError> {
        self.backend.check().await
    }

    fn available(&self) -> Result<(), StoreError> {
        self.backend.available()
    }

    fn operations(&self) -> Operations {
        Operations {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
        }
    }

    async fn register_hosts(&self, hosts: &[HostId], at: OffsetDateTime) -> Result<(), StoreError> {
        let hosts = hosts.to_vec();
        self.flushed(hosts::Register { hosts, at }).await
    }

    async fn hosts(&self) -> Result<Vec<HostId>, StoreError> {
        self.read(hosts::All).await
    }

    async fn fleet(&self) -> Result<Option<FleetRecord>, StoreError> {
        self.read(nodes::Fleet).await
    }

    async fn keep_fleet(&self, fleet: &FleetRecord) -> Result<FleetRecord, StoreError> {
        self.flushed(nodes::KeepFleet(fleet.clone())).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        self.read(nodes::All).await
    }

    async fn create_join_token(
        &self,
        token: &JoinTokenRecord,
        now: OffsetDateTime,
    ) -> Result<(), StoreError> {
        let token = token.clone();
        self.flushed(nodes::CreateToken { token, now }).await
    }

    async fn join_token(&self, id: &str) -> Result<Option<JoinTokenRecord>, StoreError> {
        self.read(nodes::Token(id.to_owned())).await
    }

    async fn join_node(
        &self,
        token: &str,
        node: &NodeRecord,
        now: OffsetDateTime,
    ) -> Result<Joined, StoreError> {
        let (token, node) = (token.to_owned(), node.clone());
        self.flushed(nodes::Join { token, node, now }).await
    }

    async fn cordon_node(&self, host: &HostId, cordoned: bool) -> Result<(), StoreError> {
        self.flushed(nodes::Cordon(host.clone(), cordoned)).await
    }

    async fn change_traits(
        &self,
        host: &HostId,
        change: &TraitsChange,
    ) -> Result<HostTraits, StoreError> {
        let change = nodes::ChangeTraits(host.clone(), change.clone());
        self.flushed(change).await
    }

    async fn renew_node(&self, host: &HostId, expires: OffsetDateTime) -> Result<(), StoreError> {
        self.written(nodes::Renewed(host.clone(), expires)).await
    }

    async fn remove_node(
        &self,
        host: &HostId,
        at: OffsetDateTime,
    ) -> Result<Option<(&'static str, u64)>, StoreError> {
        self.flushed(nodes::Remove(host.clone(), at)).await
    }

    async fn place_sandbox(
        &self,
        id: &SandboxId,
        from: &HostId,
        to: &HostId,
    ) -> Result<(), StoreError> {
        let place = nodes::Place {
            sandbox: id.clone(),
            from: from.clone(),
            to: to.clone(),
        };
        self.written(place).await
    }

    async fn create_organisation(&self, org: &Organisation) -> Result<(), StoreError> {
        self.flushed(organisations::Create(org.clone())).await
    }

    async fn organisation(&self, id: &OrgId) -> Result<Option<Organisation>, StoreError> {
        self.read(organisations::Get::ById(id.clone())).await
    }

    async fn organisation_by_name(&self, name: &str) -> Result<Option<Organisation>, StoreError> {
        let get = organisations::Get::ByName(name.to_owned());
        self.read(get).await
    }

    async fn organisations(&self, page: &PageRequest) -> Result<Page<Organisation>, StoreError> {
        let (page, removed) = (page.clone(), false);
        self.read(organisations::List { page, removed }).await
    }

    async fn organisations_ever(
        &self,
        page: &PageRequest,
    ) -> Result<Page<Organisation>, StoreError> {
        let (page, removed) = (page.clone(), true);
        self.read(organisations::List { page, removed }).await
    }

    async fn remove_organisation(
        &self,
        id: &OrgId,
        at: OffsetDateTime,
    ) -> Result<OrganisationRemoval, StoreError> {
        let id = id.clone();
        self.flushed(organisations::Remove { id, at }).await
    }

    async fn set_quota(
        &self,
        id: &OrgId,
        from: Option<Quota>,
        to: Quota,
    ) -> Result<Organisation, StoreError> {
        let id = id.clone();
        self.flushed(organisations::SetQuota { id, from, to }).await
    }

    async fn tolerate(
        &self,
        id: &OrgId,
        change: &BTreeMap<String, bool>,
    ) -> Result<Organisation, StoreError> {
        let change = organisations::Tolerate(id.clone(), change.clone());
        self.flushed(change).await
    }

    async fn create_key(&self, key: &Key, hash: &str) -> Result<(), StoreError> {
        let create = keys::Create(key.clone(), hash.to_owned());
        self.flushed(create).await
    }

    async fn put_root_key(&self, key: &Key, hash: &str) -> Result<Key, StoreError> {
        let put = keys::PutRoot(key.clone(), hash.to_owned());
        self.flushed(put).await
    }

    async fn key_by_hash(&self, hash: &str) -> Result<Option<Key>, StoreError> {
        self.read(keys::ByHash(hash.to_owned())).await
    }

    async fn key(&self, id: &KeyId) -> Result<Option<Key>, StoreError> {
        self.read(keys::ById(id.clone())).await
    }

    async fn keys(&self, org: &OrgId, page: &PageRequest) -> Result<Page<Key>, StoreError> {
        self.read(keys::List(org.clone(), page.clone())).await
    }

    async fn revoke_key(
        &self,
        org: &OrgId,
        id: &KeyId,
        at: OffsetDateTime,
    ) -> Result<Key, StoreError> {
        let (org, id) = (org.clone(), id.clone());
        self.flushed(keys::Revoke { org, id, at }).await
    }

    async fn touch_keys(&self, used: &[(KeyId, OffsetDateTime)]) -> Result<(), StoreError> {
        self.written(keys::Touch(used.to_vec())).await
    }

    async fn create_sandbox(
        &self,
        record: &SandboxRecord,
        idempotency: Option<&IdempotencyKey>,
    ) -> Result<Created, StoreError> {
        let create = sandboxes::Create {
            record: record.clone(),
            idempotency: idempotency.cloned(),
        };
        self.written(create).await
    }

    async fn sandbox(
        &self,
        org: &OrgId,
        which: SandboxRef<'_>,
    ) -> Result<Option<SandboxRecord>, StoreError> {
        let get = match which {
            SandboxRef::Id(id) => sandboxes::Get::ById(org.clone(), id.clone()),
            SandboxRef::Name(name) => sandboxes::Get::ByName(org.clone(), name.to_owned()),
        };
        self.read(get).await
    }

    async fn any_sandbox(&self, id: &SandboxId) -> Result<Option<SandboxRecord>, StoreError> {
        self.read(sandboxes::Get::Any(id.clone())).await
    }

    async fn sandboxes(
        &self,
        org: &OrgId,
        filter: &SandboxFilter,
        page: &PageRequest,
    ) -> Result<Page<SandboxRecord>, StoreError> {
        let list = sandboxes::List {
            whose: sandboxes::Whose::Org(org.clone()),
            filter: filter.clone(),
            page: page.clone(),
        };
        self.read(list).await
    }

    async fn sandboxes_on(
        &self,
        host: &HostId,
        page: &PageRequest,
    ) -> Result<Page<SandboxRecord>, StoreError> {
        let list = sandboxes::List {
            whose: sandboxes::Whose::Host(host.clone()),
            filter: SandboxFilter::default(),
            page: page.clone(),
        };
        self.read(list).await
    }

    async fn change_sandbox(
        &self,
        id: &SandboxId,
        change: &SandboxChange,
        at: OffsetDateTime,
    ) -> Result<SandboxRecord, StoreError> {
        let change = sandboxes::Change {
            id: id.clone(),
            change: change.clone(),
            at,
        };
        self.flushed(change).await
    }

    async fn note_sandbox(
        &self,
        id: &SandboxId,
        change: &SandboxChange,
        at: OffsetDateTime,
    ) -> Result<SandboxRecord, StoreError> {
        let change = sandboxes::Change {
            id: id.clone(),
            change: change.clone(),
            at,
        };
        self.written(change).await
    }

    async fn touch_sandboxes(&self, active: &[(SandboxId, Moment)]) -> Result<(), StoreError> {
        self.written(sandboxes::Touch(active.to_vec())).await
    }

    async fn buried_sandboxes(
        &self,
        host: &HostId,
        limit: u32,
    ) -> Result<Vec<SandboxRecord>, StoreError> {
        self.read(sandboxes::Buried(host.clone(), limit)).await
    }

    async fn claimed_sandbox(
        &self,
        org: &OrgId,
        key: &IdempotencyKey,
    ) -> Result<Option<Created>, StoreError> {
        self.read(idempotency::Earlier::new(org, key)).await
    }

    async fn claimed_volume(
        &self,
        org: &OrgId,
        key: &IdempotencyKey,
    ) -> Result<Option<VolumeCreated>, StoreError> {
        self.read(idempotency::Earlier::new(org, key)).await
    }

    async fn forget_idempotency(&self, org: &OrgId, sandbox: &SandboxId) -> Result<(), StoreError> {
        let forget = sandboxes::ForgetIdempotency(org.clone(), sandbox.clone());
        self.written(forget).await
    }

    async fn create_snapshot(
        &self,
        record: &SnapshotRecord,
        idempotency: Option<&IdempotencyKey>,
    ) -> Result<SnapshotCreated, StoreError> {
        let create = snapshots::Create {
            record: record.clone(),
            idempotency: idempotency.cloned(),
        };
        self.flushed(create).await
    }

    async fn snapshot(
        &self,
        org: &OrgId,
        which: SnapshotRef<'_>,
    ) -> Result<Option<SnapshotRecord>, StoreError> {
        let get = match which {
            SnapshotRef::Id(id) => snapshots::Get::ById(org.clone(), id.clone()),
            SnapshotRef::Name(name) => snapshots::Get::ByName(org.clone(), name.to_owned()),
        };
        self.read(get).await
    }

    async fn any_snapshot(&self, id: &SnapshotId) -> Result<Option<SnapshotRecord>, StoreError> {
        self.read(snapshots::Get::Any(id.clone())).await
    }

    async fn snapshots(
        &self,
        org: &OrgId,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Page<SnapshotRecord>, StoreError> {
        let list = snapshots::List {
            whose: sandboxes::Whose::Org(org.clone()),
            filter: filter.clone(),
            page: page.clone(),
        };
        self.read(list).await
    }

    async fn snapshots_on(
        &self,
        host: &HostId,
        page: &PageRequest,
    ) -> Result<Page<SnapshotRecord>, StoreError> {
        let list = snapshots::List {
            whose: sandboxes::Whose::Host(host.clone()),
            filter: SnapshotFilter::default(),
            page: page.clone(),
        };
        self.read(list).await
    }

    async fn change_snapshot(
        &self,
        id: &SnapshotId,
        change: &SnapshotChange,
    ) -> Result<SnapshotRecord, StoreError> {
        let change = snapshots::Change {
            id: id.clone(),
            change: change.clone(),
        };
        self.flushed(change).await
    }

    async fn forget_snapshot(&self, id: &SnapshotId) -> Result<(), StoreError> {
        self.flushed(snapshots::Forget(id.clone())).await
    }

    async fn forks(&self, sandbox: &SandboxId, limit: u32) -> Result<Vec<SandboxId>, StoreError> {
        let forks = snapshots::Forks(sandbox.clone(), limit.into());
        self.read(forks).await
    }

    async fn create_volume(
        &self,
        record: &VolumeRecord,
        idempotency: Option<&IdempotencyKey>,
    ) -> Result<VolumeCreated, StoreError> {
        let create = volumes::Create {
            record: record.clone(),
            idempotency: idempotency.cloned(),
        };
        self.flushed(create).await
    }

    async fn volume(
        &self,
        org: &OrgId,
        which: VolumeRef<'_>,
    ) -> Result<Option<VolumeRecord>, StoreError> {
        let get = match which {
            VolumeRef::Id(id) => volumes::Get::ById(org.clone(), id.clone()),
            VolumeRef::Name(name) => volumes::Get::ByName(org.clone(), name.to_owned()),
        };
        self.read(get).await
    }

    async fn any_volume(&self, id: &VolumeId) -> Result<Option<VolumeRecord>, StoreError> {
        self.read(volumes::Get::Any(id.clone())).await
    }

    async fn volumes(
        &self,
        org: &OrgId,
        page: &PageRequest,
    ) -> Result<Page<VolumeRecord>, StoreError> {
        let list = volumes::List {
            whose: sandboxes::Whose::Org(org.clone()),
            page: page.clone(),
        };
        self.read(list).await
    }

    async fn volumes_on(
        &self,
        host: &HostId,
        page: &PageRequest,
    ) -> Result<Page<VolumeRecord>, StoreError> {
        let list = volumes::List {
            whose: sandboxes::Whose::Host(host.clone()),
            page: page.clone(),
        };
        self.read(list).await
    }

    async fn ready_volume(&self, id: &VolumeId) -> Result<VolumeRecord, StoreError> {
        self.flushed(volumes::Ready(id.clone())).await
    }

    async fn measured_volume(&self, id: &VolumeId, used_bytes: u64) -> Result<(), StoreError> {
        let measured = volumes::Measured(id.clone(), used_bytes);
        self.written(measured).await
    }

    async fn doom_volume(&self, org: &OrgId, id: &VolumeId) -> Result<VolumeDoomed, StoreError> {
        let doom = volumes::Doom(org.clone(), id.clone());
        self.flushed(doom).await
    }

    async fn bury_volume(&self, id: &VolumeId, at: OffsetDateTime) -> Result<(), StoreError> {
        self.flushed(volumes::Bury(id.clone(), at)).await
    }

    async fn abandon_volume(&self, id: &VolumeId) -> Result<VolumeRecord, StoreError> {
        self.flushed(volumes::Abandon(id.clone())).await
    }

    async fn spare_volume(&self, id: &VolumeId) -> Result<VolumeRecord, StoreError> {
        self.flushed(volumes::Spare(id.clone())).await
    }

    async fn forget_volume(&self, id: &VolumeId) -> Result<(), StoreError> {
        self.flushed(volumes::Forget(id.clone())).await
    }

    async fn volume_users(&self, id: &VolumeId) -> Result<Vec<VolumeUser>, StoreError> {
        self.read(volumes::Users(id.clone())).await
    }

    async fn create_template(
        &self,
        new: &NewTemplate,
        idempotency: Option<&IdempotencyKey>,
    ) -> Result<TemplateCreated, StoreError> {
        let create = templates::Create {
            new: new.clone(),
            idempotency: idempotency.cloned(),
        };
        self.flushed(create).await
    }

    async fn template(
        &self,
        org: &OrgId,
        which: &TemplateKey,
    ) -> Result<Option<TemplateRecord>, StoreError> {
        self.read(templates::Get(org.clone(), which.clone())).await
    }

    async fn templates(
        &self,
        org: &OrgId,
        name: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<TemplateRecord>, StoreError> {
        let list = templates::List {
            org: org.clone(),
            name: name.map(Into::into),
            page: page.clone(),
        };
        self.read(list).await
    }

    async fn tag_template(
        &self,
        org: &OrgId,
        id: &TemplateId,
        tag: &str,
    ) -> Result<TemplateRecord, StoreError> {
        let tag = templates::Tag {
            org: org.clone(),
            id: id.clone(),
            tag: tag.into(),
        };
        self.flushed(tag).await
    }

    async fn untag_template(
        &self,
        org: &OrgId,
        name: &str,
        tag: &str,
        version: Option<u64>,
    ) -> Result<(), StoreError> {
        let untag = templates::Untag {
            org: org.clone(),
            name: name.into(),
            tag: tag.into(),
            version,
        };
        self.flushed(untag).await
    }

    async fn template_hint(
        &self,
        org: &OrgId,
        name: &str,
        tags: u32,
    ) -> Result<Option<TemplateHint>, StoreError> {
        let hint = templates::Hint(org.clone(), name.into(), tags.into());
        self.read(hint).await
    }

    async fn delete_templates(
        &self,
        org: &OrgId,
        which: &TemplatesDoomed,
    ) -> Result<Vec<(TemplateId, SnapshotId)>, StoreError> {
        let delete = templates::Delete {
            org: org.clone(),
            which: which.clone(),
        };
        self.flushed(delete).await
    }

    async fn apply_volume_samples(&self, samples: &[VolumeSample]) -> Result<(), StoreError> {
        self.written(usage::ApplyVolumes(samples.to_vec())).await
    }

    async fn apply_samples(&self, samples: &[UsageSample]) -> Result<(), StoreError> {
        self.written(usage::Apply(samples.to_vec())).await
    }

    async fn apply_snapshot_samples(&self, samples: &[SnapshotSample]) -> Result<(), StoreError> {
        self.written(usage::ApplySnapshots(samples.to_vec())).await
    }

    async fn usage(&self, org: &OrgId, period: Period) -> Result<Usage, StoreError> {
        self.read(usage::OfOrganisation(org.clone(), period)).await
    }

    async fn usage_by_sandbox(
        &self,
        org: &OrgId,
        period: Period,
        page: &PageRequest,
    ) -> Result<Page<SandboxUsage>, StoreError> {
        let by_sandbox = usage::BySandbox {
            org: org.clone(),
            period,
            page: page.clone(),
        };
        self.read(by_sandbox).await
    }

    async fn usage_of(&self, sandbox: &SandboxId) -> Result<Usage, StoreError> {
        self.read(usage::OfSandbox(sandbox.clone())).await
    }

    async fn append_events(
        &self,
        events: &[NewEvent],
        advance: Option<HostAdvance>,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let events = events.to_vec();
        let append = events::Append { events, advance };
        self.written(append).await
    }

    async fn host_position(&self, host: &HostId) -> Result<Option<HostPosition>, StoreError> {
        self.read(events::Position(host.clone())).await
    }

    async fn events(
        &self,
        org: &OrgId,
        sandbox: Option<&SandboxId>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let list = events::After {
            org: org.clone(),
            sandbox: sandbox.cloned(),
            after,
            limit,
        };
        self.read(list).await
    }

    async fn latest_events(
        &self,
        sandbox: &SandboxId,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.read(events::Latest(sandbox.clone(), limit)).await
    }

    async fn event_bounds(&self, org: &OrgId) -> Result<(Option<u64>, u64), StoreError> {
        self.read(events::Bounds(org.clone())).await
    }

    async fn append_audit(
        &self,
        journal: &AuditJournal,
        entries: &[JournalEntry],
    ) -> Result<(), StoreError> {
        let append = audit::Append {
            journal: journal.clone(),
            entries: entries.to_vec(),
        };
        self.flushed(append).await
    }

    async fn audit_after(
        &self,
        org: &OrgId,
        sequence: u64,
        limit: u32,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        let after = audit::After {
            org: org.clone(),
            sequence,
            limit,
        };
        self.read(after).await
    }

    async fn audit_head(&self, org: &OrgId) -> Result<Option<AuditHead>, StoreError> {
        self.read(audit::Head(org.clone())).await
    }

    async fn audit(
        &self,
        org: &OrgId,
        page: &PageRequest,
    ) -> Result<Page<AuditRecord>, StoreError> {
        self.read(audit::List(org.clone(), page.clone())).await
    }

    async fn grant_image(
        &self,
        org: Option<&OrgId>,
        name: &str,
        image: &ImageId,
        held_disk_mb: u64,
    ) -> Result<Option<ImageId>, StoreError> {
        let grant = images::Grant {
            org: org.cloned(),
            name: name.to_owned(),
            image: image.clone(),
            held_disk_mb,
        };
        self.flushed(grant).await
    }

    async fn forget_image(&self, image: &ImageId) -> Result<(), StoreError> {
        self.flushed(images::Forget(image.clone())).await
    }

    async fn put_image_on(&self, host: &HostId, image: &ImageId) -> Result<(), StoreError> {
        self.flushed(hosts::PutImage(host.clone(), image.clone()))
            .await
    }

    async fn remove_image_from(&self, host: &HostId, image: &ImageId) -> Result<(), StoreError> {
        self.flushed(hosts::RemoveImage(host.clone(), image.clone()))
            .await
    }

    async fn set_images_on(&self, host: &HostId, images: &[ImageId]) -> Result<(), StoreError> {
        self.written(hosts::SetImages(host.clone(), images.to_vec()))
            .await
    }

    async fn image_hosts(&self, image: &ImageId) -> Result<Vec<HostId>, StoreError> {
        self.read(hosts::WithImage(image.clone())).await
    }

    async fn withdraw_image(
        &self,
        org: Option<&OrgId>,
        image: &ImageId,
    ) -> Result<bool, StoreError> {
        let withdraw = images::Withdraw(org.cloned(), image.clone());
        self.flushed(withdraw).await
    }

    async fn loose_images(
        &self,
        after: Option<(OrgId, ImageId)>,
    ) -> Result<Vec<(OrgId, ImageId)>, StoreError> {
        self.read(images::Loose(after)).await
    }

    async fn image_is_held_by_others(
        &self,
        org: &OrgId,
        image: &ImageId,
    ) -> Result<bool, StoreError> {
        let held = images::HeldByOthers(org.clone(), image.clone());
        self.read(held).await
    }

    async fn release_image(&self, org: &OrgId, image: &ImageId) -> Result<(), StoreError> {
        let release = images::Release(org.clone(), image.clone());
        self.flushed(release).await
    }

    async fn image_grants(&self, org: &OrgId) -> Result<Vec<ImageGrant>, StoreError> {
        self.read(images::Of(org.clone())).await
    }

    async fn image_is_granted(&self, image: &ImageId) -> Result<bool, StoreError> {
        self.read(images::IsGranted(image.clone())).await
    }

    async fn put_image_job(&self, job: &ImageJobRecord) -> Result<(), StoreError> {
        self.flushed(image_jobs::Put(job.clone())).await
    }

    async fn image_job(
        &self,
        org: Option<&OrgId>,
        id: &str,
    ) -> Result<Option<ImageJobRecord>, StoreError> {
        let get = image_jobs::Get(org.cloned(), id.to_owned());
        self.read(get).await
    }

    async fn unfinished_image_jobs(&self) -> Result<Vec<ImageJobRecord>, StoreError> {
        self.read(image_jobs::Unfinished).await
    }

    async fn put_build(&self, build: &BuildRecord, keep: u32) -> Result<(), StoreError> {
        let build = build.clone();
        self.flushed(builds::Put { build, keep }).await
    }

    async fn build(&self, org: &OrgId, id: &BuildId) -> Result<Option<BuildRecord>, StoreError> {
        self.read(builds::Get(org.clone(), id.clone())).await
    }

    async fn builds(&self, org: &OrgId, most: u32) -> Result<Vec<BuildRecord>, StoreError> {
        self.read(builds::List(org.clone(), most)).await
    }

    async fn take_work(&self, id: &str, owner: &str, token: &str) -> Result<(), StoreError> {
        let take = work::Take {
            id: id.to_owned(),
            owner: owner.to_owned(),
            token: token.to_owned(),
        };
        self.written(take).await
    }

    async fn beat_work(&self, id: &str, token: &str) -> Result<(), StoreError> {
        self.written(work::Beat(id.to_owned(), token.to_owned()))
            .await
    }

    async fn end_work(&self, id: &str, token: &str) -> Result<(), StoreError> {
        self.written(work::End(id.to_owned(), token.to_owned()))
            .await
    }

    async fn work(&self, id: &str) -> Result<Option<WorkRecord>, StoreError> {
        self.read(work::Get(id.to_owned())).await
    }

    async fn unfinished_builds(&self) -> Result<Vec<BuildRecord>, StoreError> {
        self.read(builds::Unfinished).await
    }

    async fn cached_step(&self, org: &OrgId, key: &str) -> Result<Option<SnapshotId>, StoreError> {
        self.read(builds::Cached(org.clone(), key.to_owned())).await
    }

    async fn keep_step(
        &self,
        org: &OrgId,
        key: &str,
        snapshot: &SnapshotId,
        at: OffsetDateTime,
        most: u32,
    ) -> Result<(), StoreError> {
        let keep = builds::Keep {
            org: org.clone(),
            key: key.to_owned(),
            snapshot: snapshot.clone(),
            at,
            most,
        };
        self.written(keep).await
    }

    async fn touch_steps(
        &self,
        org: &OrgId,
        keys: &[String],
        at: OffsetDateTime,
    ) -> Result<(), StoreError> {
        let touch = builds::Touch(org.clone(), keys.to_vec(), at);
        self.written(touch).await
    }

    async fn clear_steps(&self, org: &OrgId) -> Result<u64, StoreError> {
        self.written(builds::Clear(org.clone())).await
    }

    async fn is_cached(&self, snapshot: &SnapshotId) -> Result<bool, StoreError> {
        self.read(builds::IsCached(snapshot.clone())).await
    }

    async fn share_port(&self, share: &PortShare) -> Result<PortShare, StoreError> {
        self.flushed(shares::Put(share.clone())).await
    }

    async fn port_shares(
        &self,
        sandbox: &SandboxId,
        port: Option<u16>,
    ) -> Result<Vec<PortShare>, StoreError> {
        self.read(shares::Get(sandbox.clone(), port)).await
    }

    async fn unshare_port(&self, sandbox: &SandboxId, port: u16) -> Result<(), StoreError> {
        self.flushed(shares::Revoke(sandbox.clone(), port)).await
    }

    async fn create_ssh_key(&self, key: &SshKey) -> Result<(), StoreError> {
        self.flushed(ssh_keys::Create(key.clone())).await
    }

    async fn ssh_keys(&self, org: &OrgId, page: &PageRequest) -> Result<Page<SshKey>, StoreError> {
        self.read(ssh_keys::List(org.clone(), page.clone())).await
    }

    async fn ssh_keys_by_fingerprint(&self, fingerprint: &str) -> Result<Vec<SshKey>, StoreError> {
        let by = ssh_keys::ByFingerprint(fingerprint.to_owned());
        self.read(by).await
    }

    async fn remove_ssh_key(&self, org: &OrgId, id: &KeyId) -> Result<(), StoreError> {
        self.flushed(ssh_keys::Remove(org.clone(), id.clone()))
            .await
    }

    async fn keep_secret_keys(&self, keys: &OrgKeys) -> Result<OrgKeys, StoreError> {
        self.flushed(secrets::KeepKeys(keys.clone())).await
    }

    async fn rewrap_secret_keys(&self, keys: &OrgKeys) -> Result<(), StoreError> {
        self.flushed(secrets::RewrapKeys(keys.clone())).await
    }

    async fn secret_keys(&self, org: &OrgId) -> Result<Option<OrgKeys>, StoreError> {
        self.read(secrets::Keys(org.clone())).await
    }

    async fn all_secret_keys(&self) -> Result<Vec<OrgKeys>, StoreError> {
        self.read(secrets::AllKeys).await
    }

    async fn put_secret(&self, secret: &SecretRecord) -> Result<SecretRecord, StoreError> {
        self.flushed(secrets::Put(secret.clone())).await
    }

    async fn secret(&self, org: &OrgId, name: &str) -> Result<Option<SecretRecord>, StoreError> {
        self.read(secrets::Get(org.clone(), name.to_owned())).await
    }

    async fn secrets(
        &self,
        org: &OrgId,
        page: &PageRequest,
    ) -> Result<Page<SecretRecord>, StoreError> {
        self.read(secrets::List(org.clone(), page.clone())).await
    }

    async fn remove_secret(&self, org: &OrgId, name: &str) -> Result<(), StoreError> {
        self.flushed(secrets::Remove(org.clone(), name.to_owned()))
            .await
    }

    async fn note_secret_uses(&self, org: &OrgId, uses: &[SecretUsage]) -> Result<(), StoreError> {
        self.written(secrets::NoteUses(org.clone(), uses.to_vec()))
            .await
    }

    async fn secret_uses(&self, org: &OrgId, name: &str) -> Result<Vec<SecretUsage>, StoreError> {
        self.read(secrets::Uses(org.clone(), name.to_owned())).await
    }

    async fn take_budget(&self, want: &BudgetTaken) -> Result<BudgetGiven, StoreError> {
        // A host that was told and uses it must not find it again after a power loss.
        self.flushed(budgets::Take(want.clone())).await
    }

    async fn return_budgets(
        &self,
        host: &HostId,
        returned: &[BudgetReturned],
    ) -> Result<(), StoreError> {
        let back = budgets::Return(host.clone(), returned.to_vec());
        self.written(back).await
    }

    async fn spent_budgets(&self, org: &OrgId, day: u32) -> Result<Vec<BudgetSpent>, StoreError> {
        self.read(budgets::Spent(org.clone(), day)).await
    }

    async fn spent_by_sandbox(
        &self,
        org: &OrgId,
        secret: &SecretId,
    ) -> Result<Vec<BudgetSpent>, StoreError> {
        let spent = budgets::SpentBySandbox(org.clone(), secret.clone());
        self.read(spent).await
    }

    async fn read_steady(&self, reading: &BootReading) -> Result<SteadyAxis, StoreError> {
        self.written(steady::Read(reading.clone())).await
    }

    async fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.read(events::Setting(name.to_owned())).await
    }

    async fn put_setting(&self, name: &str, value: &str) -> Result<(), StoreError> {
        let put = events::PutSetting(name.to_owned(), value.to_owned());
        self.flushed(put).await
    }

    async fn sweep(&self, retention: &Retention) -> Result<u64, StoreError> {
        self.written(sweep::Sweep(retention.clone())).await
    }
}
