//! Volumes of organisations: directories that outlive sandboxes and are mounted in any number of them.
//!
//! A volume is a volume of the pool with a limit of its own, and a record beside it. It is made in `staging`, and gets
//! its name when its record is written: a record without a directory was never acknowledged and is forgotten, a
//! directory without a record is kept and belongs to nobody until an operator decides. A copy counts what it came with
//! against its size, as disks of sandboxes do (see `inherited`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_isolation::MountedVolume;
use cove_model::{OrgId, SandboxSpec, VolumeId};
use cove_pool::{Access, Kind, Pool, PoolError, VolumeId as PoolId};
use cove_runner_api::{RunnerError, VolumeRequest, VolumeView};
use parking_lot::{Mutex, MutexGuard, RwLock};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use tokio::task::spawn_blocking;

use crate::commitments::{Commitments, DiskPromise};
use crate::engine::{Engine, Inner};
use crate::error::{from_pool, from_write, internal};
use crate::files::{Durability, Files};
use crate::inherited::room;
use crate::snapshots::staging;
use crate::volumes::Draft;

/// The root of a new volume: users of sandboxes are seldom root, and a volume is theirs to share.
const ROOT_MODE: u32 = 0o777;
/// What counting a copy may take; beyond it all that its source was charged counts.
const COUNT_MAX: Duration = Duration::from_secs(10);
/// What counting all volumes may take where the pool does not keep figures; those beyond it have none this time.
const LIST_COUNT_MAX: Duration = Duration::from_secs(10);
/// Volumes of a host, those that are being made or deleted included.
const VOLUMES_OF_HOST_MAX: usize = 100_000;
/// Users of a volume that a refusal names.
const USERS_NAMED: usize = 5;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VolumeRecord {
    pub id: VolumeId,
    pub owner: String,
    pub size_mb: u64,
    pub read_only: bool,
    /// The volume it is a copy of.
    pub from: Option<VolumeId>,
    /// What it held when it was made; charged to whoever wrote it, and counted against its size.
    pub inherited_bytes: u64,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

impl VolumeRecord {
    /// What the kernel may charge it.
    pub fn quota_bytes(&self) -> u64 {
        room(self.size_mb, self.inherited_bytes)
    }
}

struct Entry {
    record: VolumeRecord,
    _promise: DiskPromise,
}

pub struct DataVolumes {
    files: Files,
    all: RwLock<BTreeMap<VolumeId, Entry>>,
    /// Those being made or deleted. Also held while a sandbox that mounts volumes is admitted, so that none of
    /// them goes meanwhile.
    busy: Mutex<BTreeSet<VolumeId>>,
}

pub fn pool_id(id: &VolumeId) -> PoolId {
    PoolId::new(Kind::Volume, id.as_str()).expect("ids are made of letters a volume name may have")
}

fn no_volume(id: &VolumeId) -> RunnerError {
    RunnerError::NotFound {
        what: "volume".into(),
        id: id.to_string(),
    }
}

impl DataVolumes {
    /// Takes over what is there. Blocking.
    pub fn open(
        dir: PathBuf,
        pool: &Pool,
        limits: bool,
        commitments: &Arc<Commitments>,
    ) -> io::Result<Self> {
        let files = Files::open(dir)?;
        let found = files.load::<VolumeRecord>()?;
        for damaged in &found.damaged {
            tracing::error!(
                volume = damaged.name,
                reason = damaged.reason,
                "the record of a volume is damaged; the volume is kept"
            );
        }
        let mut all = BTreeMap::new();
        for (name, record) in found.intact {
            let volume = pool_id(&record.id);
            if record.id.as_str() != name {
                tracing::error!(name, volume = %record.id, "a record belongs to another volume");
                continue;
            }
            if matches!(pool.exists(&volume), Ok(false)) {
                let _ = files.remove(&name);
                continue;
            }
            if limits && !record.read_only {
                // An engine before this one may have been killed before it set the limit, or while it held it down.
                if let Err(error) = pool.force_limit(&volume, record.quota_bytes()) {
                    tracing::error!(volume = %record.id, %error, "the size of a volume is not enforced");
                }
            }
            let promise = commitments.adopt_disk(record.size_mb << 20);
            let entry = Entry {
                record,
                _promise: promise,
            };
            all.insert(entry.record.id.clone(), entry);
        }
        Ok(Self {
            files,
            all: RwLock::new(all),
            busy: Mutex::default(),
        })
    }

    pub fn get(&self, id: &VolumeId) -> Option<VolumeRecord> {
        self.all.read().get(id).map(|entry| entry.record.clone())
    }

    /// Those that can be written to.
    pub fn writable(&self) -> Vec<VolumeRecord> {
        let all = self.all.read();
        let records = all.values().map(|entry| &entry.record);
        records
            .filter(|record| !record.read_only)
            .cloned()
            .collect()
    }

    /// It is there, and nobody is making or deleting it.
    pub fn can_be_served(&self, id: &VolumeId) -> bool {
        !self.busy.lock().contains(id) && self.all.read().contains_key(id)
    }

    /// While this is held no volume goes that a sandbox is about to name.
    pub fn turn(&self) -> MutexGuard<'_, BTreeSet<VolumeId>> {
        self.busy.lock()
    }

    /// Refuses volumes that are not there, are another organisation's, or cannot be written to as asked.
    pub fn check(
        &self,
        spec: &SandboxSpec,
        owner: &str,
        busy: &BTreeSet<VolumeId>,
    ) -> Result<(), RunnerError> {
        for mount in &spec.volumes {
            let record = self.get(&mount.volume).filter(|found| found.owner == owner);
            let record = record
                .filter(|_| !busy.contains(&mount.volume))
                .ok_or_else(|| no_volume(&mount.volume))?;
            if record.read_only && !mount.read_only {
                return Err(RunnerError::Invalid {
                    message: format!(
                        "volume {} is read-only: mount it with read_only",
                        mount.volume
                    ),
                });
            }
        }
        Ok(())
    }

    fn insert(&self, record: VolumeRecord, promise: DiskPromise) {
        let entry = Entry {
            record,
            _promise: promise,
        };
        let id = entry.record.id.clone();
        self.all.write().insert(id, entry);
    }

    fn claim(&self, id: &VolumeId) -> Result<(), RunnerError> {
        let mut busy = self.busy.lock();
        let (all, is_there) = {
            let all = self.all.read();
            (all.len(), all.contains_key(id))
        };
        if !is_there && all + busy.len() >= VOLUMES_OF_HOST_MAX {
            return Err(RunnerError::NoCapacity {
                resource: "volumes".into(),
                message: format!("a host has at most {VOLUMES_OF_HOST_MAX}"),
            });
        }
        match busy.insert(id.clone()) {
            true => Ok(()),
            false => Err(RunnerError::InUse {
                message: format!("volume {id} is being made or deleted"),
            }),
        }
    }

    fn release(&self, id: &VolumeId) {
        self.busy.lock().remove(id);
    }
}

impl Engine {
    pub(crate) async fn make_volume(
        &self,
        request: VolumeRequest,
    ) -> Result<VolumeView, RunnerError> {
        check_size(request.size_mb)?;
        check_owner(&request.owner)?;
        let inner = Arc::clone(&self.inner);
        inner.data_volumes.claim(&request.id)?;
        // A caller that goes away must not leave it half made.
        let task = spawn_blocking(move || {
            let made = inner.make_volume(&request);
            inner.data_volumes.release(&request.id);
            inner.volume_view(&made?)
        });
        task.await.map_err(internal)?
    }

    pub(crate) async fn adopt_into(
        &self,
        id: &VolumeId,
        owner: String,
    ) -> Result<VolumeView, RunnerError> {
        check_owner(&owner)?;
        let (inner, id) = (Arc::clone(&self.inner), id.clone());
        inner.data_volumes.claim(&id)?;
        let task = spawn_blocking(move || {
            let given = inner.give_volume(&id, &owner);
            inner.data_volumes.release(&id);
            inner.volume_view(&given?)
        });
        task.await.map_err(internal)?
    }

    pub(crate) async fn list_volumes(&self) -> Result<Vec<VolumeView>, RunnerError> {
        let inner = Arc::clone(&self.inner);
        let task = spawn_blocking(move || {
            let listed = inner.pool.list(Kind::Volume).map_err(from_pool)?;
            let mut views = Vec::with_capacity(listed.len());
            let deadline = Instant::now() + LIST_COUNT_MAX;
            for found in listed {
                let Ok(id) = found.id.name().parse::<VolumeId>() else {
                    continue;
                };
                // One that is being made has no record in memory yet, and one that is being deleted none any more.
                let is_busy = inner.data_volumes.turn().contains(&id);
                let record = inner.data_volumes.get(&id);
                if record.is_none() && is_busy || matches!(inner.pool.exists(&found.id), Ok(false))
                {
                    continue;
                }
                let used = inner.used_by(&id, deadline);
                views.push(match record {
                    Some(record) => view_of(&record, used),
                    None => inner.lost_volume(id, found.created.into(), used),
                });
            }
            Ok(views)
        });
        task.await.map_err(internal)?
    }

    pub(crate) async fn remove_volume(&self, id: &VolumeId) -> Result<(), RunnerError> {
        let inner = Arc::clone(&self.inner);
        {
            let mut busy = inner.data_volumes.turn();
            let users = inner.users_of_volume(id);
            if !users.is_empty() {
                return Err(in_use(id, &users));
            }
            if !busy.insert(id.clone()) {
                return Err(RunnerError::InUse {
                    message: format!("volume {id} is being made or deleted"),
                });
            }
        }
        let id = id.clone();
        let task = tokio::spawn(async move {
            inner.volume_files.end(&id).await;
            let (blocking, gone) = (Arc::clone(&inner), id.clone());
            let removed = spawn_blocking(move || {
                blocking.pool.delete(&pool_id(&gone)).map_err(from_pool)?;
                let removed = blocking.data_volumes.files.remove(gone.as_str());
                removed.map_err(|error| internal(format!("remove the volume's record: {error}")))
            });
            let removed = removed.await.map_err(internal).and_then(|outcome| outcome);
            if removed.is_ok() {
                inner.data_volumes.all.write().remove(&id);
            }
            inner.data_volumes.release(&id);
            removed
        });
        task.await.map_err(internal)?
    }
}

impl Inner {
    fn make_volume(&self, request: &VolumeRequest) -> Result<VolumeRecord, RunnerError> {
        if let Some(record) = self.data_volumes.get(&request.id) {
            return match record.owner == request.owner {
                true => Ok(record),
                false => Err(RunnerError::AlreadyExists {
                    what: "volume".into(),
                    id: request.id.to_string(),
                }),
            };
        }
        let source = match &request.from {
            Some(from) => {
                let found = self.data_volumes.get(from);
                let found = found.filter(|source| source.owner == request.owner);
                Some(found.ok_or_else(|| no_volume(from))?)
            }
            None => None,
        };
        let volume = pool_id(&request.id);
        if self.pool.exists(&volume).map_err(from_pool)? {
            // Its record was lost, and whoever asks does not know what is in it.
            return Err(RunnerError::AlreadyExists {
                what: "volume".into(),
                id: request.id.to_string(),
            });
        }
        let promise = self.commitments.promise_disk(request.size_mb << 20)?;
        let mut record = VolumeRecord {
            id: request.id.clone(),
            owner: request.owner.clone(),
            size_mb: request.size_mb,
            read_only: request.read_only,
            from: request.from.clone(),
            inherited_bytes: 0,
            created_at: OffsetDateTime::now_utc(),
        };
        let draft = Draft::new(&self.pool, staging("volume", request.id.as_str()));
        self.fill_volume(draft.id(), &mut record, source.as_ref())?;
        self.write_volume(&record)?;
        if let Err(error) = self.pool.rename(draft.id(), &volume) {
            let _ = self.data_volumes.files.remove(record.id.as_str());
            return Err(from_pool(error));
        }
        draft.keep();
        self.data_volumes.insert(record.clone(), promise);
        Ok(record)
    }

    fn write_volume(&self, record: &VolumeRecord) -> Result<(), RunnerError> {
        let files = &self.data_volumes.files;
        let written = files.write(record.id.as_str(), record, Durability::Flushed);
        written.map_err(|error| from_write("the volume's record", &error))
    }

    /// Makes the directory, empty or as a copy, with its limit in force.
    fn fill_volume(
        &self,
        volume: &PoolId,
        record: &mut VolumeRecord,
        source: Option<&VolumeRecord>,
    ) -> Result<(), RunnerError> {
        self.pool.delete(volume).map_err(from_pool)?;
        match source {
            None => {
                self.pool.create(volume).map_err(from_pool)?;
                let open = fs::Permissions::from_mode(ROOT_MODE);
                fs::set_permissions(self.pool.path(volume), open)
                    .map_err(|error| internal(format!("open the volume to everybody: {error}")))?;
            }
            Some(source) => {
                let access = match record.read_only {
                    true => Access::ReadOnly,
                    false => Access::Writable,
                };
                let inherited = self.copy_volume(source, volume, access);
                record.inherited_bytes = inherited.map_err(from_pool)?;
                let needed = record.inherited_bytes.div_ceil(1 << 20);
                if self.disk_limits && needed > record.size_mb {
                    let (from, size) = (&source.id, record.size_mb);
                    return Err(RunnerError::Invalid {
                        message: format!(
                            "volume {from} holds {needed} MB and its copy is to have {size} MB; ask for at least {needed} MB"
                        ),
                    });
                }
            }
        }
        if self.disk_limits && !record.read_only {
            let limited = self.pool.set_limit(volume, Some(record.quota_bytes()));
            limited.map_err(from_pool)?;
        }
        Ok(())
    }

    /// Gives a volume to an organisation, also one whose record was lost.
    fn give_volume(&self, id: &VolumeId, owner: &str) -> Result<VolumeRecord, RunnerError> {
        let volume = pool_id(id);
        if !self.pool.exists(&volume).map_err(from_pool)? {
            return Err(no_volume(id));
        }
        let known = self.data_volumes.get(id);
        let users = self.users_of_volume(id);
        if known.as_ref().is_some_and(|record| record.owner != owner) && !users.is_empty() {
            return Err(in_use(id, &users));
        }
        let record = match known {
            Some(record) => VolumeRecord {
                owner: owner.to_owned(),
                ..record
            },
            None => {
                let info = self.pool.info(&volume).map_err(from_pool)?;
                let usage = self.pool.usage(&volume).map_err(from_pool)?;
                let limit = usage.limit_bytes.unwrap_or(usage.referenced_bytes);
                VolumeRecord {
                    id: id.clone(),
                    owner: owner.to_owned(),
                    size_mb: limit.div_ceil(1 << 20).max(cove_limits::VOLUME_MIN_MB),
                    read_only: info.read_only,
                    from: None,
                    inherited_bytes: 0,
                    created_at: info.created.into(),
                }
            }
        };
        if self.disk_limits && !record.read_only {
            // One without a record may have none.
            let limited = self.pool.force_limit(&volume, record.quota_bytes());
            limited.map_err(from_pool)?;
        }
        self.write_volume(&record)?;
        let promise = self.commitments.adopt_disk(record.size_mb << 20);
        self.data_volumes.insert(record.clone(), promise);
        Ok(record)
    }

    /// Tells what the copy holds.
    fn copy_volume(
        &self,
        source: &VolumeRecord,
        to: &PoolId,
        access: Access,
    ) -> Result<u64, PoolError> {
        let from = pool_id(&source.id);
        self.pool.sync(&from)?;
        self.pool.snapshot(&from, to, access)?;
        if !self.disk_limits {
            return Ok(0);
        }
        let most = source.inherited_bytes + self.pool.usage(&from)?.referenced_bytes;
        let counted = self.pool.count(to, Instant::now() + COUNT_MAX)?;
        Ok(counted.map_or(most, |bytes| bytes.min(most)))
    }

    fn volume_view(&self, record: &VolumeRecord) -> Result<VolumeView, RunnerError> {
        let used = self.used_by(&record.id, Instant::now() + LIST_COUNT_MAX);
        Ok(view_of(record, used))
    }

    /// What is charged to it; where the pool does not keep that, what it holds. A volume that cannot be measured must
    /// not keep the others from being seen.
    fn used_by(&self, id: &VolumeId, deadline: Instant) -> Option<u64> {
        let volume = pool_id(id);
        let used = match self.disk_limits {
            true => (self.pool.usage(&volume)).map(|usage| Some(usage.exclusive_bytes)),
            false if Instant::now() >= deadline => return None,
            false => self.pool.count(&volume, deadline),
        };
        match used {
            Ok(used) => used,
            Err(PoolError::NotFound { .. }) => None,
            Err(error) => {
                tracing::warn!(volume = %id, %error, "cannot measure a volume");
                None
            }
        }
    }

    fn lost_volume(
        &self,
        id: VolumeId,
        created_at: OffsetDateTime,
        used_bytes: Option<u64>,
    ) -> VolumeView {
        let limit = match self.disk_limits {
            true => self.pool.usage(&pool_id(&id)).ok(),
            false => None,
        };
        VolumeView {
            id,
            owner: None,
            size_mb: limit.and_then(|usage| usage.limit_bytes).unwrap_or(0) >> 20,
            read_only: false,
            used_bytes,
            created_at,
        }
    }

    /// Sandboxes that have it in their settings, running or not.
    fn users_of_volume(&self, id: &VolumeId) -> Vec<String> {
        let uses = |spec: &SandboxSpec| spec.volumes.iter().any(|mount| mount.volume == *id);
        let all = self.all();
        let there = all.iter().filter(|sandbox| uses(&sandbox.record().spec));
        let mut users: Vec<String> = there.map(|sandbox| sandbox.id.to_string()).collect();
        for (aside, why) in self.aside.all() {
            if why.record.as_ref().is_some_and(|record| uses(&record.spec)) {
                users.push(aside.to_string());
            }
        }
        users
    }

    /// The volumes of a sandbox as its tier mounts them.
    pub(crate) fn mounts_of(&self, spec: &SandboxSpec) -> Vec<MountedVolume> {
        let mounts = spec.volumes.iter();
        mounts
            .map(|mount| MountedVolume {
                dir: self.pool.path(&pool_id(&mount.volume)),
                path: mount.path.clone(),
                read_only: mount.read_only,
            })
            .collect()
    }
}

fn view_of(record: &VolumeRecord, charged: Option<u64>) -> VolumeView {
    VolumeView {
        id: record.id.clone(),
        owner: Some(record.owner.clone()),
        size_mb: record.size_mb,
        read_only: record.read_only,
        used_bytes: charged.map(|bytes| bytes + record.inherited_bytes),
        created_at: record.created_at,
    }
}

fn in_use(id: &VolumeId, users: &[String]) -> RunnerError {
    let mut named: Vec<&str> = users.iter().take(USERS_NAMED).map(String::as_str).collect();
    let more = format!("{} more", users.len().saturating_sub(USERS_NAMED));
    if users.len() > USERS_NAMED {
        named.push(&more);
    }
    RunnerError::InUse {
        message: format!("volume {id} is mounted in {}", named.join(", ")),
    }
}

/// An organisation, or nobody, as sandboxes have none where no control plane made them.
fn check_owner(owner: &str) -> Result<(), RunnerError> {
    match owner.is_empty() || owner.parse::<OrgId>().is_ok() {
        true => Ok(()),
        false => Err(RunnerError::Invalid {
            message: "owner: must be the id of an organisation".into(),
        }),
    }
}

fn check_size(size_mb: u64) -> Result<(), RunnerError> {
    use cove_limits::{VOLUME_MAX_MB, VOLUME_MIN_MB};
    match (VOLUME_MIN_MB..=VOLUME_MAX_MB).contains(&size_mb) {
        true => Ok(()),
        false => Err(RunnerError::Invalid {
            message: format!("size_mb: must be between {VOLUME_MIN_MB} and {VOLUME_MAX_MB}"),
        }),
    }
}
