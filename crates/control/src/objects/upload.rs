//! From a host into the bucket.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use async_trait::async_trait;
use cove_objects::{Catalog, Claimed, Digest, ObjectsError, Outcome, Upload, UploadLimits, Wanted};
use cove_runner_api::snapshot_file::{Item, Sections};
use cove_store::{
    ChunkStored, ChunkWanted, ObjectCopy, ObjectOutcome, SnapshotRecord, SnapshotState, StoreError,
    UploadKey,
};
use tokio_util::sync::CancellationToken;

use super::{failed, join, over};
use crate::Control;
use crate::error::{ControlError, ErrorCode};

/// What sealing adds to a chunk at most.
const SEALED_MORE: u64 = 1024;
/// How often as much as its disk may hold a snapshot may read as: files may have holes.
const HOLES_FACTOR: u64 = 4;
/// On top: what the file's own form adds.
const FORM_MB: u64 = 1024;

/// What an upload of this snapshot reads at most.
fn bytes_max(row: &SnapshotRecord) -> u64 {
    let (resources, facts) = (&row.spec.resources, &row.facts);
    let known = facts.exclusive_bytes.saturating_add(facts.shared_bytes);
    let disk = known.max(resources.disk_mb.saturating_mul(1 << 20));
    let memory = facts
        .memory_bytes
        .max(resources.memory_mb.saturating_mul(1 << 20));
    disk.saturating_add(memory)
        .saturating_mul(HOLES_FACTOR)
        .saturating_add(FORM_MB << 20)
}

/// One upload in the database.
struct Tables {
    control: Control,
    upload: UploadKey,
    quota_mb: u64,
}

fn refused(error: StoreError) -> ObjectsError {
    match error {
        StoreError::NotFound { .. } => ObjectsError::Superseded,
        StoreError::Quota { .. } => {
            let error = ControlError::from(error)
                .hint("delete durable snapshots, or have the operator raise objects_quota_mb");
            ObjectsError::Catalog(Box::new(error))
        }
        other => ObjectsError::Catalog(Box::new(ControlError::from(other))),
    }
}

#[async_trait]
impl Catalog for Tables {
    async fn claim(&self, chunks: &[Wanted]) -> Result<Vec<Claimed>, ObjectsError> {
        let wanted: Vec<_> = chunks
            .iter()
            .map(|chunk| ChunkWanted {
                digest: chunk.digest.to_hex(),
                suffix: format!("{:016x}", chunk.suffix),
                bytes: u64::from(chunk.bytes) + SEALED_MORE,
            })
            .collect();
        let store = self.control.store();
        let claimed = store.claim_chunks(&self.upload, &wanted, self.quota_mb);
        let claimed = claimed.await.map_err(refused)?;
        claimed
            .into_iter()
            .map(|chunk| {
                let suffix = u64::from_str_radix(&chunk.suffix, 16);
                let broken = |_| ObjectsError::Catalog("the name of a chunk is invalid".into());
                Ok(Claimed {
                    suffix: suffix.map_err(broken)?,
                    stored: chunk.stored,
                })
            })
            .collect()
    }

    async fn stored(&self, chunks: &[(Digest, u64)]) -> Result<(), ObjectsError> {
        let stored: Vec<_> = chunks
            .iter()
            .map(|(digest, bytes)| ChunkStored {
                digest: digest.to_hex(),
                bytes: *bytes,
            })
            .collect();
        let store = self.control.store();
        store
            .chunks_stored(&self.upload, &stored)
            .await
            .map_err(refused)
    }

    async fn renew(&self) -> Result<(), ObjectsError> {
        let store = self.control.store();
        store.renew_upload(&self.upload).await.map_err(refused)
    }

    async fn commit(&self, outcome: &Outcome) -> Result<(), ObjectsError> {
        let outcome = ObjectOutcome {
            manifest: outcome.manifest.clone(),
            manifest_bytes: outcome.manifest_bytes,
            bytes: outcome.bytes,
            sent_bytes: outcome.sent_bytes,
        };
        let (store, now) = (self.control.store(), self.control.now());
        store
            .commit_upload(&self.upload, &outcome, now)
            .await
            .map_err(refused)
    }
}

impl Control {
    /// Returns once object storage has it. Whoever asks meanwhile shares the upload, and it goes on when they go away.
    pub(crate) async fn upload_snapshot(&self, row: &SnapshotRecord) -> Result<(), ControlError> {
        let objects = self.require_objects()?;
        let transfer = join(&objects.uploads, row);
        let outcome = transfer
            .outcome
            .get_or_init(|| async {
                let (control, row) = (self.clone(), row.clone());
                let cancelled = transfer.cancelled.clone();
                self.to_the_end(async move {
                    tokio::select! {
                        outcome = control.upload_once(&row) => outcome,
                        () = cancelled.cancelled() => {
                            Err(ControlError::conflict("the snapshot is being deleted"))
                        }
                    }
                })
                .await
            })
            .await;
        over(&objects.uploads, &row.id, &transfer);
        outcome
            .as_ref()
            .map_or_else(|error| Err(error.again()), |()| Ok(()))
    }

    async fn upload_once(&self, row: &SnapshotRecord) -> Result<(), ControlError> {
        let objects = self.require_objects()?;
        if self.is_uploaded_elsewhere(row).await? {
            return Ok(());
        }
        let _slot = objects.upload_slots.take(&row.org).await?;
        // Nobody deletes it on the host meanwhile.
        let _held = self.0.guards.hold(&row.id).await?;
        let found = self.store().any_snapshot(&row.id).await?;
        let found = found.filter(|row| row.deleted_at.is_none());
        let gone = || super::super::snapshots::no_snapshot(row.id.as_str());
        let found = found.ok_or_else(gone)?;
        if found.object_copy == ObjectCopy::Stored || found.state != SnapshotState::Ready {
            return Ok(());
        }
        // A second upload has a token of its own, and ends this one by that.
        let lost = CancellationToken::new();
        let work = self.take_work(row.id.as_str(), lost).await?;
        let outcome = tokio::select! {
            outcome = self.upload_now(&found) => outcome,
            () = self.0.tasks.closing.cancelled() => {
                Err(ControlError::internal("the server is shutting down; the upload is resumed after its start"))
            }
        };
        work.end().await;
        match &outcome {
            Ok(sent) => {
                objects.retries.forget(&row.id);
                objects.counters.uploads.fetch_add(1, Relaxed);
                objects
                    .counters
                    .sent_bytes
                    .fetch_add(sent.sent_bytes, Relaxed);
                tracing::info!(
                    snapshot = %row.id, bytes = sent.bytes, sent_bytes = sent.sent_bytes,
                    "object storage has a snapshot"
                );
            }
            Err(error) => {
                objects.counters.upload_failures.fetch_add(1, Relaxed);
                tracing::warn!(snapshot = %row.id, %error, "upload of a snapshot failed");
                objects.retries.failed(&row.id);
                // No other try would end otherwise before somebody changes something.
                let hopeless = [ErrorCode::QuotaExceeded, ErrorCode::PayloadTooLarge];
                if hopeless.contains(&error.code) {
                    tracing::warn!(snapshot = %row.id, "the snapshot stays without a copy in object storage");
                    if let Err(error) = self.store().abandon_upload(&row.id, &row.org).await {
                        tracing::warn!(snapshot = %row.id, %error, "its upload will be retried");
                        return outcome.map(drop);
                    }
                    objects.retries.forget(&row.id);
                }
            }
        }
        outcome.map(drop)
    }

    /// Waits while another control process uploads it. Whether object storage has it then.
    async fn is_uploaded_elsewhere(&self, row: &SnapshotRecord) -> Result<bool, ControlError> {
        while self.is_others_work(row.id.as_str()).await? {
            tokio::select! {
                () = tokio::time::sleep(self.config().work_beat_every) => {}
                () = self.0.tasks.closing.cancelled() => {
                    return Err(ControlError::internal("the server is shutting down"));
                }
            }
            let found = self.store().any_snapshot(&row.id).await?;
            let is_stored = |row: &SnapshotRecord| row.object_copy == ObjectCopy::Stored;
            if found.as_ref().is_some_and(is_stored) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn upload_now(&self, row: &SnapshotRecord) -> Result<Outcome, ControlError> {
        let objects = self.require_objects()?;
        let config = &objects.config;
        let key = self.object_key(&row.org).await?;
        let upload = UploadKey {
            snapshot: row.id.clone(),
            org: row.org.clone(),
            token: hex::encode(rand::random::<[u8; 16]>()),
        };
        self.store().begin_upload(&upload).await?;
        let runner = self.runner(&row.host).await?;
        let file = runner.export_snapshot(&row.id, true).await?;
        let tables = Tables {
            control: self.clone(),
            upload,
            quota_mb: config.quota_mb,
        };
        let mut upload = Upload::new(
            config.bucket.clone(),
            key,
            row.org.clone(),
            Arc::clone(&objects.pace),
            Arc::new(tables),
            Upload::manifest_name(&row.org, row.id.as_str()),
            UploadLimits {
                bytes_max: bytes_max(row).min(config.limits.bytes_max),
                ..config.limits
            },
        );
        let broken = |error: std::io::Error| {
            ControlError::internal("the host disconnected while it sent the snapshot")
                .because(error)
        };
        let mut sections = Sections::begin(file).await.map_err(broken)?;
        while let Some(item) = sections.next().await.map_err(broken)? {
            let done = match item {
                Item::Begin(kind) => upload.begin_part(kind),
                Item::Bytes(bytes) => upload.write(&bytes).await,
                Item::End(checksum) => upload.end_part(checksum.to_vec()).await,
            };
            done.map_err(failed)?;
        }
        upload.finish().await.map_err(failed)
    }
}
