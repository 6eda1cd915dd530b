//! Snapshots in object storage: uploads and fetches under way, the keys of organisations, and what is collected.
//!
//! The byte stream is the host's own export file (`cove_runner_api::snapshot_file`), cut at its sections: the file
//! system is not compressed in it, so that what two snapshots have in common is found. What comes back goes through
//! the host's import, with its confined programs and its signature.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use cove_model::{OrgId, SnapshotId};
use cove_objects::{Bucket, ObjectsError, OrgKey, Pace, UploadLimits};
use cove_store::{ObjectCopy, ObjectTotals, SnapshotChange, SnapshotRecord};
use cove_vault::HostKeys;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::slots::Slots;
use crate::snapshots::Taken;
use retries::Retries;

mod collect;
mod elsewhere;
mod fetch;
mod retries;
mod upload;

/// Uploads that run at once, of all organisations, and besides them as many fetches.
pub const TRANSFERS_MAX: usize = 4;
/// Of one organisation: the others always find room.
pub const TRANSFERS_PER_ORG: usize = 2;
/// Seconds a caller is asked to wait when object storage does not answer.
const RETRY_S: u64 = 10;

#[derive(Debug, Clone)]
pub struct ObjectsConfig {
    pub bucket: Bucket,
    /// Wraps the keys of organisations; in neither the database nor the bucket.
    pub fleet_key: Arc<HostKeys>,
    /// All uploads together; 0: no limit.
    pub upload_bytes_per_second: u64,
    /// What each organisation may have in the bucket.
    pub quota_mb: u64,
    /// What snapshots that object storage has may hold on hosts; beyond it the oldest are evicted. `None`: everything.
    pub local_mb: Option<u64>,
    pub limits: UploadLimits,
    /// How long a condemned name stays in the bucket: longer than any write to it can still take.
    pub condemned_wait: Duration,
    /// How often uploads that broke off are resumed, and what nobody uses is collected.
    pub every: Duration,
}

impl ObjectsConfig {
    pub fn new(bucket: Bucket, fleet_key: Arc<HostKeys>) -> Self {
        let limits = UploadLimits::default();
        let condemned_wait = limits.lease + 2 * bucket.request_max() + Duration::from_secs(60);
        Self {
            bucket,
            fleet_key,
            upload_bytes_per_second: 0,
            quota_mb: u64::MAX >> 21,
            local_mb: None,
            limits,
            condemned_wait,
            every: Duration::from_secs(10),
        }
    }
}

/// What was transferred since the start, and what is there.
#[derive(Debug, Clone, Copy, Default)]
pub struct ObjectFigures {
    pub totals: ObjectTotals,
    pub uploads: u64,
    pub upload_failures: u64,
    /// Written to the bucket.
    pub sent_bytes: u64,
    pub fetches: u64,
    pub fetch_failures: u64,
    pub fetched_bytes: u64,
    pub deleted: u64,
    pub evicted: u64,
}

#[derive(Default)]
struct Counters {
    uploads: AtomicU64,
    upload_failures: AtomicU64,
    sent_bytes: AtomicU64,
    fetches: AtomicU64,
    fetch_failures: AtomicU64,
    fetched_bytes: AtomicU64,
    deleted: AtomicU64,
    evicted: AtomicU64,
}

/// One upload or fetch.
struct Transfer {
    org: OrgId,
    outcome: OnceCell<Result<(), ControlError>>,
    cancelled: CancellationToken,
}

pub(crate) struct ObjectStorage {
    config: ObjectsConfig,
    pace: Arc<Pace>,
    keys: Mutex<HashMap<OrgId, Arc<OrgKey>>>,
    /// Everybody who wants the same transfer shares it.
    uploads: Mutex<HashMap<SnapshotId, Arc<Transfer>>>,
    fetches: Mutex<HashMap<SnapshotId, Arc<Transfer>>>,
    /// A create that fetches does not wait behind uploads.
    upload_slots: Slots,
    fetch_slots: Slots,
    retries: Retries,
    counters: Counters,
}

impl ObjectStorage {
    pub fn new(config: ObjectsConfig) -> Self {
        Self {
            pace: Arc::new(Pace::new(config.upload_bytes_per_second)),
            config,
            keys: Mutex::default(),
            uploads: Mutex::default(),
            fetches: Mutex::default(),
            upload_slots: Slots::new(TRANSFERS_MAX, TRANSFERS_PER_ORG),
            fetch_slots: Slots::new(TRANSFERS_MAX, TRANSFERS_PER_ORG),
            retries: Retries::default(),
            counters: Counters::default(),
        }
    }

    pub fn transfers(&self) -> usize {
        self.uploads.lock().len() + self.fetches.lock().len()
    }

    /// For whoever deletes the snapshot: its upload ends soon, and holds it no longer.
    pub fn cancel_upload(&self, id: &SnapshotId) {
        if let Some(transfer) = self.uploads.lock().get(id) {
            transfer.cancelled.cancel();
        }
    }
}

fn join(table: &Mutex<HashMap<SnapshotId, Arc<Transfer>>>, row: &SnapshotRecord) -> Arc<Transfer> {
    let new = || {
        Arc::new(Transfer {
            org: row.org.clone(),
            outcome: OnceCell::new(),
            cancelled: CancellationToken::new(),
        })
    };
    Arc::clone(table.lock().entry(row.id.clone()).or_insert_with(new))
}

/// Later callers begin anew.
fn over(
    table: &Mutex<HashMap<SnapshotId, Arc<Transfer>>>,
    id: &SnapshotId,
    transfer: &Arc<Transfer>,
) {
    let mut table = table.lock();
    if table
        .get(id)
        .is_some_and(|other| Arc::ptr_eq(other, transfer))
    {
        table.remove(id);
    }
}

pub(crate) fn failed(error: ObjectsError) -> ControlError {
    let text = told(&error);
    match &error {
        ObjectsError::Unreachable { .. } | ObjectsError::Stalled { .. } => {
            ControlError::new(ErrorCode::Unavailable, text)
                .hint("`cove doctor` checks the object storage")
                .retry_after(RETRY_S)
                .because(error)
        }
        ObjectsError::TooLarge => ControlError::new(ErrorCode::PayloadTooLarge, text)
            .hint("files with large holes count with their whole length; delete them, or take the snapshot without `durable`")
            .because(error),
        ObjectsError::Superseded => ControlError::conflict(text).because(error),
        ObjectsError::Catalog(_) => match error {
            ObjectsError::Catalog(source) => match source.downcast::<ControlError>() {
                Ok(known) => *known,
                Err(source) => ControlError::internal(text).because(source),
            },
            other => ControlError::internal(text).because(other),
        },
        _ => ControlError::internal(text)
            .hint("the object storage has lost or damaged it; keep the bucket as it is and ask its operator")
            .because(error),
    }
}

/// With what lies below: the operator of the bucket needs it.
fn told(error: &ObjectsError) -> String {
    let mut text = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(cause) = below {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        below = cause.source();
    }
    text
}

impl Control {
    pub(crate) fn require_objects(&self) -> Result<&ObjectStorage, ControlError> {
        self.0.objects.as_ref().ok_or_else(|| {
            ControlError::new(ErrorCode::Unsupported, "this server has no object storage")
                .hint("the operator sets `objects`, see docs/durable.md")
        })
    }

    pub(crate) fn objects_pace(&self) -> Option<Duration> {
        self.0.objects.as_ref().map(|objects| objects.config.every)
    }

    /// Whether the object storage can be written, read and deleted from; `None` where there is none.
    pub async fn check_objects(&self) -> Option<Result<(), String>> {
        let objects = self.0.objects.as_ref()?;
        let checked = objects.config.bucket.check().await;
        Some(checked.map_err(|error| told(&error)))
    }

    /// `None` where there is no object storage.
    pub async fn object_figures(&self) -> Result<Option<ObjectFigures>, ControlError> {
        let Some(objects) = &self.0.objects else {
            return Ok(None);
        };
        let counters = &objects.counters;
        Ok(Some(ObjectFigures {
            totals: self.store().object_totals().await?,
            uploads: counters.uploads.load(Relaxed),
            upload_failures: counters.upload_failures.load(Relaxed),
            sent_bytes: counters.sent_bytes.load(Relaxed),
            fetches: counters.fetches.load(Relaxed),
            fetch_failures: counters.fetch_failures.load(Relaxed),
            fetched_bytes: counters.fetched_bytes.load(Relaxed),
            deleted: counters.deleted.load(Relaxed),
            evicted: counters.evicted.load(Relaxed),
        }))
    }

    /// The organisation's key, made on its first use.
    async fn object_key(&self, org: &OrgId) -> Result<Arc<OrgKey>, ControlError> {
        let objects = self.require_objects()?;
        if let Some(known) = objects.keys.lock().get(org) {
            return Ok(Arc::clone(known));
        }
        let unusable = |error: cove_vault::VaultError| {
            ControlError::internal(format!(
                "the organisation's key for object storage: {error}"
            ))
            .hint("start the server with the fleet key that the database was used with")
            .because(error)
        };
        let fleet = &objects.config.fleet_key;
        let wrapped = match self.store().object_key(org).await? {
            Some(wrapped) => wrapped,
            None => {
                let fresh = cove_vault::wrap_object_key(org, fleet, &OrgKey::random());
                let fresh = fresh.map_err(unusable)?;
                self.store().keep_object_key(org, &fresh).await?
            }
        };
        let bytes = cove_vault::open_object_key(org, fleet, &wrapped).map_err(unusable)?;
        let key = OrgKey::new(&bytes);
        let key = key.ok_or_else(|| ControlError::internal("a key has the wrong length"))?;
        let key = Arc::new(key);
        objects.keys.lock().insert(org.clone(), Arc::clone(&key));
        Ok(key)
    }

    /// Has a new snapshot uploaded. One that cannot be made durable is answered as failed, so nothing of it stays,
    /// unless a repeat with the same key will find it.
    pub(crate) async fn make_durable(
        &self,
        taken: Taken,
        keyed: bool,
    ) -> Result<Taken, ControlError> {
        let id = taken.snapshot.id.clone();
        match self.upload_snapshot(&taken.snapshot).await {
            Ok(()) => {
                let row = self.store().any_snapshot(&id).await?;
                let row = row.filter(|row| row.object_copy == ObjectCopy::Stored);
                let gone = || ControlError::conflict("the snapshot was deleted meanwhile");
                Ok(Taken {
                    snapshot: row.ok_or_else(gone)?,
                    replayed: taken.replayed,
                })
            }
            Err(mut error) => {
                if !keyed && !taken.replayed {
                    if let Err(error) = self.delete_snapshot_now(&taken.snapshot).await {
                        tracing::warn!(%error, snapshot = %id, "cannot delete a snapshot that is not durable; retrying later");
                    }
                    error.message = format!("no snapshot was taken: {}", error.message);
                }
                Err(error)
            }
        }
    }

    /// The host does not have it any more; object storage does.
    pub(crate) async fn note_off_host(&self, row: &SnapshotRecord) -> Result<(), ControlError> {
        let change = SnapshotChange {
            only_on: Some(row.host.clone()),
            on_host: Some(false),
            held_disk_mb: Some(0),
            ..SnapshotChange::default()
        };
        self.store().change_snapshot(&row.id, &change).await?;
        self.meter_snapshot(row, None).await;
        Ok(())
    }
}
