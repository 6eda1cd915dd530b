//! From the bucket back to a host.

use std::sync::atomic::Ordering::Relaxed;

use cove_objects::Download;
use cove_runner_api::{GuestStream, snapshot_file};
use cove_store::{ObjectCopy, SnapshotChange, SnapshotRecord};
use futures_util::{StreamExt, pin_mut};
use tokio::net::UnixStream;

use super::{failed, join, over};
use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::snapshots::{facts, held_mb};

impl Control {
    /// The snapshot with its host having it: at once when it does, fetched from object storage otherwise. For whoever
    /// holds the snapshot.
    pub(crate) async fn bring_back(
        &self,
        row: SnapshotRecord,
    ) -> Result<SnapshotRecord, ControlError> {
        if row.object_copy != ObjectCopy::Stored || (row.on_host && self.0.objects.is_none()) {
            return Ok(row);
        }
        let objects = self.require_objects()?;
        // It is held from here on, so nobody begins to evict it; who is at it already is waited for.
        drop(self.lock_eviction(&row.id).await?);
        let row = self.store().any_snapshot(&row.id).await?.unwrap_or(row);
        if row.on_host {
            return Ok(row);
        }
        let transfer = join(&objects.fetches, &row);
        let outcome = transfer
            .outcome
            .get_or_init(|| async {
                let (control, row) = (self.clone(), row.clone());
                self.to_the_end(async move { control.fetch_once(&row).await })
                    .await
            })
            .await;
        over(&objects.fetches, &row.id, &transfer);
        if let Err(error) = outcome {
            return Err(error.again());
        }
        let found = self.store().any_snapshot(&row.id).await?;
        let found = found.filter(|row| row.deleted_at.is_none() && row.on_host);
        found.ok_or_else(|| super::super::snapshots::no_snapshot(row.id.as_str()))
    }

    async fn fetch_once(&self, row: &SnapshotRecord) -> Result<(), ControlError> {
        let objects = self.require_objects()?;
        let _slot = objects.fetch_slots.take(&row.org).await?;
        let _held = self.0.guards.hold(&row.id).await?;
        let outcome = self.fetch_now(row).await;
        let counted = match &outcome {
            Ok(()) => &objects.counters.fetches,
            Err(error) => {
                tracing::warn!(snapshot = %row.id, %error, "cannot fetch a snapshot from object storage");
                &objects.counters.fetch_failures
            }
        };
        counted.fetch_add(1, Relaxed);
        outcome
    }

    async fn fetch_now(&self, row: &SnapshotRecord) -> Result<(), ControlError> {
        let objects = self.require_objects()?;
        let known = self.store().object(&row.id).await?;
        let manifest = known.and_then(|known| known.manifest);
        let (Some(manifest), ObjectCopy::Stored) = (manifest, row.object_copy) else {
            return Err(ControlError::internal(
                "neither the host nor object storage has the snapshot",
            ));
        };
        let key = self.object_key(&row.org).await?;
        let bucket = objects.config.bucket.clone();
        let download = Download::open(bucket, key, row.org.clone(), &manifest).await;
        let download = download.map_err(failed)?;
        let (mut ours, theirs) = UnixStream::pair()
            .map_err(|error| ControlError::internal("cannot create a socket").because(error))?;
        let runner = self.runner(&row.host).await?;
        // A crash or a lost answer may have left it there.
        runner.delete_snapshot(&row.id).await?;
        let counters = &objects.counters;
        let sending = async {
            let sent = send(&download, &mut ours, &counters.fetched_bytes).await;
            // The host learns of a failure by the missing end.
            drop(ours);
            sent
        };
        let taking = runner.import_snapshot(row.id.clone(), GuestStream::Unix(theirs));
        let (sent, imported) = tokio::join!(sending, taking);
        let imported = match (sent, imported) {
            (Ok(()), Ok(imported)) => imported,
            // What went wrong first is what the caller should hear.
            (Err(Sending::Storage(error)), _) => {
                let _ = self.delete_snapshot_on_host(row).await;
                return Err(failed(error));
            }
            (_, Err(error)) => return Err(error.into()),
            (Err(Sending::Host), Ok(_)) => {
                let _ = self.delete_snapshot_on_host(row).await;
                return Err(ControlError::internal("the host did not read the snapshot"));
            }
        };
        if row.memory && !imported.snapshot.memory {
            let why = imported.memory_refused.unwrap_or_default();
            self.delete_snapshot_on_host(row).await?;
            return Err(ControlError::new(
                ErrorCode::UnfitHost,
                format!("the host does not accept the snapshot's memory: {why}"),
            )
            .hint(
                "a host accepts memory that it signed itself or that a key in trusted_keys signed",
            ));
        }
        let change = SnapshotChange {
            only_on: Some(row.host.clone()),
            on_host: Some(true),
            facts: Some(facts(&imported.snapshot)),
            held_disk_mb: Some(held_mb(&imported.snapshot)),
            ..SnapshotChange::default()
        };
        self.store().change_snapshot(&row.id, &change).await?;
        tracing::info!(snapshot = %row.id, "fetched a snapshot from object storage");
        Ok(())
    }
}

enum Sending {
    Storage(cove_objects::ObjectsError),
    Host,
}

async fn send(
    download: &Download,
    into: &mut UnixStream,
    fetched: &std::sync::atomic::AtomicU64,
) -> Result<(), Sending> {
    let host = |_| Sending::Host;
    snapshot_file::write_head(into).await.map_err(host)?;
    for part in download.parts() {
        snapshot_file::write_begin(into, part.kind)
            .await
            .map_err(host)?;
        let pieces = download.read(part);
        pin_mut!(pieces);
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(Sending::Storage)?;
            fetched.fetch_add(piece.len() as u64, Relaxed);
            snapshot_file::write_bytes(into, &piece)
                .await
                .map_err(host)?;
        }
        snapshot_file::write_end(into, &part.trailer)
            .await
            .map_err(host)?;
    }
    Ok(())
}
