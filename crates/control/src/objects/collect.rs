//! What happens in the background: uploads that broke off are resumed, and what nobody uses is condemned, then deleted.

use std::sync::atomic::Ordering::Relaxed;

use cove_store::{SnapshotChange, SnapshotRecord, StoreError};

use crate::Control;
use crate::error::ControlError;

use super::{failed, join};

/// Uploads that are looked at in one round.
const PENDING_MAX: u32 = 100;
/// Of one organisation.
const PENDING_PER_ORG: u32 = 10;
/// Uploads of one organisation, under way or waiting for their place, up to which more are resumed.
const RESUMED_PER_ORG: usize = 4;
/// Transactions of one round that condemn.
const DROPS_MAX: u32 = 200;
/// Copies on hosts that are evicted in one round.
const EVICT_MAX: u32 = 100;
/// Names that are deleted from the bucket in one round.
const DELETES_MAX: u32 = 1000;

impl Control {
    pub(crate) async fn tend_objects(&self) -> Result<(), ControlError> {
        self.resume_uploads().await?;
        self.evict_snapshots().await?;
        self.collect_objects().await
    }

    /// Begins what a crash, a restart or a failure left; those under way are left alone, also in other processes.
    async fn resume_uploads(&self) -> Result<(), ControlError> {
        let objects = self.require_objects()?;
        let pending = self.store().pending_uploads(PENDING_MAX, PENDING_PER_ORG);
        for row in pending.await? {
            let is_due = {
                let uploads = objects.uploads.lock();
                let of_org = uploads.values().filter(|other| other.org == row.org);
                !uploads.contains_key(&row.id)
                    && of_org.count() < RESUMED_PER_ORG
                    && objects.retries.is_due(&row.id)
            };
            if !is_due || self.is_others_work(row.id.as_str()).await? {
                continue;
            }
            // In the table at once, so that the next row of its organisation counts it.
            join(&objects.uploads, &row);
            let control = self.clone();
            // It logs its own failures, and a later round meets them again.
            self.0.tasks.changes.spawn(async move {
                let _ = control.upload_snapshot(&row).await;
            });
        }
        Ok(())
    }

    /// Makes room on hosts: copies that object storage has too go, the oldest first.
    async fn evict_snapshots(&self) -> Result<(), ControlError> {
        let objects = self.require_objects()?;
        let Some(keep_mb) = objects.config.local_mb else {
            return Ok(());
        };
        for row in self.store().evictable_snapshots(keep_mb, EVICT_MAX).await? {
            let _evicting = self.lock_eviction(&row.id).await?;
            if self.0.guards.is_held(&row.id).await? {
                continue;
            }
            // The row first: a copy that stays on the host for a crash is deleted by the next reconcile.
            let change = SnapshotChange {
                only_on: Some(row.host.clone()),
                on_host: Some(false),
                ..SnapshotChange::default()
            };
            match self.store().change_snapshot(&row.id, &change).await {
                // It has moved to another host, or is gone.
                Err(StoreError::Stale | StoreError::NotFound { .. }) => continue,
                changed => drop(changed?),
            }
            if let Err(error) = self.take_off_host(&row).await {
                tracing::warn!(%error, snapshot = %row.id, "cannot delete an evicted snapshot; retrying later");
                continue;
            }
            tracing::info!(snapshot = %row.id, "evicted a snapshot; object storage has it");
            objects.counters.evicted.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Deletes what a crash left on a host after its eviction, or before a fetch was written down.
    pub(crate) async fn delete_evicted(&self, row: &SnapshotRecord) -> Result<(), ControlError> {
        if self.0.objects.is_none() {
            return Ok(());
        }
        let _evicting = self.lock_eviction(&row.id).await?;
        if self.0.guards.is_held(&row.id).await? {
            return Ok(());
        }
        match self.store().any_snapshot(&row.id).await? {
            Some(row) if !row.on_host => self.take_off_host(&row).await,
            _ => Ok(()),
        }
    }

    /// Its organisation pays for the copy until the host has deleted it.
    async fn take_off_host(&self, row: &SnapshotRecord) -> Result<(), ControlError> {
        self.delete_snapshot_on_host(row).await?;
        self.note_off_host(row).await
    }

    async fn collect_objects(&self) -> Result<(), ControlError> {
        let objects = self.require_objects()?;
        for _ in 0..DROPS_MAX {
            if !self.store().drop_objects(self.steady()).await? {
                break;
            }
        }
        let before = self.steady().before(objects.config.condemned_wait);
        let names = self.store().condemned_objects(before, DELETES_MAX).await?;
        let mut deleted = Vec::with_capacity(names.len());
        let mut failure = None;
        for name in names {
            match objects.config.bucket.delete(&name).await {
                Ok(()) => deleted.push(name),
                Err(error) => {
                    failure = Some(failed(error));
                    break;
                }
            }
        }
        if !deleted.is_empty() {
            self.store().objects_deleted(&deleted).await?;
            let count = deleted.len() as u64;
            objects.counters.deleted.fetch_add(count, Relaxed);
        }
        failure.map_or(Ok(()), Err)
    }
}
