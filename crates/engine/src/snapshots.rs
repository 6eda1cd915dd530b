//! The snapshots of one host: a read-only volume each, and a record that is written once the volume
//! is on disk and removed before the volume is. So a volume without a record was never acknowledged,
//! or is being deleted, and the sweep takes it.
//!
//! ```text
//! <data-dir>/snapshots/snap_….json   the record
//! pool: snapshots/snap_…             a disk (what differs from the image), with its memory, if any
//! pool: staging/draft-snap_…         one being made, staging/memory-snap_… its memory on the way
//! ```

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use cove_model::{ImageId, SandboxId, SandboxSpec, SnapshotId};
use cove_pool::{Kind, VolumeId};
use cove_runner_api::RunnerError;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use tokio::sync::OwnedRwLockReadGuard;

use crate::aside::{Aside, SetAside};
use crate::files::{Durability, Files};
use crate::record::MemoryRecord;

mod charges;
mod delete;
mod sizes;
pub mod take;

pub use sizes::Sizes;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SnapshotRecord {
    pub id: SnapshotId,
    pub sandbox: SandboxId,
    pub parent: Option<SnapshotId>,
    pub image: ImageId,
    pub spec: SandboxSpec,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    pub memory: Option<MemoryRecord>,
    pub stopped_us: u64,
    /// What its disk weighs against the limit of whatever grows from it: at least what it holds.
    #[serde(default)]
    pub weight_bytes: u64,
    /// Whom the kernel charges for what it holds: all volumes that its state ever was in.
    #[serde(default)]
    pub accounts: Vec<u64>,
    /// Set for the processes that belong to an image; not listed, and goes with the image.
    #[serde(default)]
    pub template_of: Option<ImageId>,
}

/// One snapshot in memory.
pub struct Snapshot {
    pub record: SnapshotRecord,
    /// Read by whoever grows something from it, written by its deletion.
    users: Arc<tokio::sync::RwLock<()>>,
    pub sizes: Mutex<Option<Sizes>>,
    /// What it holds, once somebody had to know exactly.
    pub counted: OnceLock<u64>,
}

/// Snapshots of one host. Control shares them between organisations, which are not known here.
const SNAPSHOTS_MAX: usize = 100_000;

/// Keeps a snapshot from being deleted.
pub struct SnapshotHold {
    pub snapshot: Arc<Snapshot>,
    _user: OwnedRwLockReadGuard<()>,
}

pub struct Snapshots {
    files: Files,
    known: RwLock<HashMap<SnapshotId, Arc<Snapshot>>>,
    /// Those with a damaged record.
    pub aside: Aside<SnapshotId>,
    /// Ids that are being made.
    claimed: Mutex<HashSet<SnapshotId>>,
}

/// An id that nobody else makes a snapshot under meanwhile.
pub struct Claim {
    snapshots: Arc<Snapshots>,
    pub id: SnapshotId,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.snapshots.claimed.lock().remove(&self.id);
    }
}

impl Snapshots {
    /// Reads the records. `exists` tells whether a snapshot's volume is there; a record without one
    /// can only be what a lost disk left, and is forgotten. A damaged one is set aside.
    pub fn open(dir: PathBuf, exists: impl Fn(&VolumeId) -> bool) -> io::Result<Self> {
        let files = Files::open(dir)?;
        let mut known = HashMap::new();
        let aside = Aside::new("snapshot");
        let found = files.load::<SnapshotRecord>()?;
        for damaged in found.damaged {
            match damaged.name.parse() {
                Ok(id) if exists(&volume_of(&id)) => aside.put(id, SetAside::damaged(&damaged)),
                // Nothing is lost with it: it was never acknowledged, or its volume is deleted already.
                Ok(id) => files.remove(SnapshotId::as_str(&id))?,
                Err(_) => tracing::error!(
                    name = damaged.name,
                    "ignoring a file that is not the record of a snapshot"
                ),
            }
        }
        for (_, record) in found.intact {
            if exists(&volume_of(&record.id)) {
                known.insert(record.id.clone(), Arc::new(Snapshot::new(record)));
            } else {
                tracing::error!(snapshot = %record.id, "the volume of a snapshot is missing; dropping its record");
                files.remove(record.id.as_str())?;
            }
        }
        Ok(Self {
            files,
            known: RwLock::new(known),
            aside,
            claimed: Mutex::default(),
        })
    }

    pub fn get(&self, id: &SnapshotId) -> Option<Arc<Snapshot>> {
        self.known.read().get(id).cloned()
    }

    /// One that is being made is neither there nor missing, and whoever asks must not take it for lost.
    pub fn find(&self, id: &SnapshotId) -> Result<Arc<Snapshot>, RunnerError> {
        self.aside.refuse(id)?;
        let claimed = self.claimed.lock();
        match self.get(id) {
            Some(found) => Ok(found),
            None if claimed.contains(id) => Err(RunnerError::InUse {
                message: format!("snapshot '{id}' is still being made"),
            }),
            None => Err(RunnerError::NotFound {
                what: "snapshot".into(),
                id: id.to_string(),
            }),
        }
    }

    /// One that nobody is making any more, for callers from outside. Whoever finds none by this may
    /// believe it: one under way is refused, not denied.
    pub fn find_made(&self, id: &SnapshotId) -> Result<Arc<Snapshot>, RunnerError> {
        // Claims first: a snapshot is known before its claim is given back.
        let claimed = self.claimed.lock();
        if claimed.contains(id) {
            return Err(RunnerError::InUse {
                message: format!("snapshot {id} is being made; try again when it is"),
            });
        }
        drop(claimed);
        self.find(id)
    }

    fn count(&self) -> usize {
        let known = self.known.read();
        known.len()
    }

    pub fn contains(&self, id: &SnapshotId) -> bool {
        self.get(id).is_some()
    }

    /// Whether a volume is a snapshot's, usable or not.
    pub fn keeps_volume(&self, id: &SnapshotId) -> bool {
        self.contains(id) || self.aside.get(id).is_some()
    }

    /// All of them, oldest first.
    pub fn all(&self) -> Vec<Arc<Snapshot>> {
        let mut all: Vec<_> = self.known.read().values().cloned().collect();
        all.sort_by(|a, b| {
            (a.record.created_at, &a.record.id).cmp(&(b.record.created_at, &b.record.id))
        });
        all
    }

    /// Finds a snapshot and keeps it from being deleted.
    pub async fn hold(&self, id: &SnapshotId) -> Result<SnapshotHold, RunnerError> {
        let snapshot = self.find(id)?;
        let user = Arc::clone(&snapshot.users).read_owned().await;
        // It may have been deleted while the lock was waited for.
        self.find(id)?;
        Ok(SnapshotHold {
            snapshot,
            _user: user,
        })
    }

    pub fn claim(self: &Arc<Self>, id: &SnapshotId) -> Result<Claim, RunnerError> {
        let mut claimed = self.claimed.lock();
        if self.count() + claimed.len() >= SNAPSHOTS_MAX {
            return Err(RunnerError::NoCapacity {
                resource: "snapshots".into(),
                message: format!("there are {SNAPSHOTS_MAX} already"),
            });
        }
        if self.keeps_volume(id) || !claimed.insert(id.clone()) {
            return Err(RunnerError::AlreadyExists {
                what: "snapshot".into(),
                id: id.to_string(),
            });
        }
        Ok(Claim {
            snapshots: Arc::clone(self),
            id: id.clone(),
        })
    }

    /// Makes a snapshot known whose volume is on disk. On disk itself when this returns.
    pub fn add(&self, record: SnapshotRecord) -> io::Result<Arc<Snapshot>> {
        self.files
            .write(record.id.as_str(), &record, Durability::Flushed)?;
        let snapshot = Arc::new(Snapshot::new(record));
        self.known
            .write()
            .insert(snapshot.record.id.clone(), Arc::clone(&snapshot));
        Ok(snapshot)
    }

    fn forget(&self, id: &SnapshotId) -> io::Result<()> {
        self.files.remove(id.as_str())?;
        self.known.write().remove(id);
        self.aside.remove(id);
        Ok(())
    }

    /// The first user of an image, for the refusal to remove it.
    pub fn user_of(&self, image: &ImageId) -> Option<SnapshotId> {
        self.all()
            .into_iter()
            .find(|snapshot| {
                snapshot.record.image == *image && snapshot.record.template_of.is_none()
            })
            .map(|snapshot| snapshot.record.id.clone())
    }

    /// The oldest one on an image.
    pub fn first_on(&self, image: &ImageId) -> Option<SnapshotId> {
        let known = self.known.read();
        known
            .values()
            .map(|snapshot| &snapshot.record)
            .filter(|record| record.image == *image && record.template_of.is_none())
            .min_by_key(|record| (record.created_at, &record.id))
            .map(|record| record.id.clone())
    }

    /// The processes that come with an image.
    pub fn template_of(&self, image: &ImageId) -> Option<Arc<Snapshot>> {
        self.all()
            .into_iter()
            .find(|snapshot| snapshot.record.template_of.as_ref() == Some(image))
    }
}

impl Snapshot {
    fn new(record: SnapshotRecord) -> Self {
        Self {
            record,
            users: Arc::default(),
            sizes: Mutex::default(),
            counted: OnceLock::new(),
        }
    }

    /// What counts against the limit of a sandbox that begins from it.
    pub fn weight(&self) -> u64 {
        let counted = self.counted.get().copied().unwrap_or(u64::MAX);
        self.record.weight_bytes.min(counted)
    }

    pub fn volume(&self) -> VolumeId {
        volume_of(&self.record.id)
    }
}

pub fn volume_of(id: &SnapshotId) -> VolumeId {
    VolumeId::new(Kind::Snapshot, id.as_str())
        .expect("ids are made of letters a volume name may have")
}

/// A volume that only exists while an operation is under way.
pub fn staging(purpose: &str, id: &str) -> VolumeId {
    VolumeId::new(Kind::Staging, format!("{purpose}-{id}"))
        .expect("ids are made of letters a volume name may have")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_being_made_is_not_missing() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let opened = Snapshots::open(dir.path().join("records"), |_| true);
        let snapshots = Arc::new(opened.expect("it is empty"));
        let id = SnapshotId::random();
        let missing = |found: Result<Arc<Snapshot>, RunnerError>| {
            matches!(found, Err(RunnerError::NotFound { .. }))
        };
        assert!(missing(snapshots.find(&id)));
        let claim = snapshots.claim(&id).expect("nobody makes it");
        let making = snapshots.find(&id).err();
        assert!(matches!(making, Some(RunnerError::InUse { .. })));
        assert!(snapshots.claim(&id).is_err());
        drop(claim);
        assert!(missing(snapshots.find(&id)));
    }

    #[test]
    fn a_snapshot_that_is_being_made_is_neither_there_nor_missing() {
        let dir = tempfile::tempdir().unwrap();
        let opened = Snapshots::open(dir.path().join("records"), |_| true);
        let snapshots = Arc::new(opened.unwrap());
        let id = SnapshotId::random();
        let denied = |id| snapshots.find_made(id).err();
        assert!(matches!(denied(&id), Some(RunnerError::NotFound { .. })));
        let claim = snapshots.claim(&id).unwrap();
        assert!(matches!(denied(&id), Some(RunnerError::InUse { .. })));
        let record = SnapshotRecord {
            id: id.clone(),
            sandbox: SandboxId::random(),
            parent: None,
            image: ImageId::random(),
            spec: SandboxSpec::default(),
            created_at: OffsetDateTime::now_utc(),
            memory: None,
            stopped_us: 0,
            weight_bytes: 0,
            accounts: Vec::new(),
            template_of: None,
        };
        snapshots.add(record).unwrap();
        // Its maker may grow from it already; a rollback undoes itself that way.
        assert!(snapshots.find(&id).is_ok());
        assert!(matches!(denied(&id), Some(RunnerError::InUse { .. })));
        drop(claim);
        assert!(denied(&id).is_none());
    }
}
