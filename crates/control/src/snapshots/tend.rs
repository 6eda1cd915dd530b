//! Brings the rows of snapshots and the host into agreement, and collects what nobody needs.

use std::collections::HashMap;
use std::time::Duration;

use cove_model::SnapshotId;
use cove_runner_api::{RunnerError, SnapshotView};
use cove_store::{
    ObjectCopy, PAGE_MAX, PageRequest, SnapshotChange, SnapshotKind, SnapshotRecord, SnapshotState,
};

use super::take::{facts, held_bytes, held_mb};
use crate::Control;
use crate::error::ControlError;
use crate::hosts::Host;

/// A fork's snapshot that is still there after this long was left behind by a crash.
const FORK_POINT_KEPT: Duration = Duration::from_secs(3600);
/// How long a step of a build that no cache has is left alone: a build may be about to keep or use it.
const BUILD_STEP_KEPT: Duration = Duration::from_secs(300);

/// What the host has, by id.
pub(crate) type OnHost = HashMap<SnapshotId, SnapshotView>;

impl Control {
    /// A host that cannot take snapshots has none.
    pub(crate) async fn snapshots_on_host(&self, host: &Host) -> Result<OnHost, ControlError> {
        match host.runner().await?.snapshots().await {
            Ok(views) => Ok(views
                .into_iter()
                .map(|view| (view.id.clone(), view))
                .collect()),
            Err(RunnerError::Unsupported { .. }) => Ok(OnHost::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Those the host has and nobody has a row for, on this host. The host must have been asked before the rows
    /// are read: a row is always there first.
    pub(crate) async fn unknown_snapshots(
        &self,
        host: &Host,
        found: &OnHost,
    ) -> Result<Vec<SnapshotId>, ControlError> {
        let mut unknown = Vec::new();
        for id in found.keys() {
            let row = self.store().any_snapshot(id).await?;
            // A durable one may have moved to another host, which is not forgotten when it is deleted.
            let is_known =
                row.is_some_and(|row| row.host == host.id || row.object_copy == ObjectCopy::Stored);
            if !is_known && !self.0.guards.is_held(id).await? {
                unknown.push(id.clone());
            }
        }
        Ok(unknown)
    }

    /// Those the host has and nobody needs there: their row is a tombstone, or names another host that has its own
    /// copy.
    async fn deleted_snapshots(
        &self,
        host: &Host,
        found: &OnHost,
    ) -> Result<Vec<SnapshotId>, ControlError> {
        let mut deleted = Vec::new();
        for id in found.keys() {
            let row = self.store().any_snapshot(id).await?;
            let is_deleted = |row: SnapshotRecord| {
                let durable = row.object_copy == ObjectCopy::Stored;
                match row.host == host.id {
                    true => row.deleted_at.is_some(),
                    false => durable && (row.deleted_at.is_some() || row.on_host),
                }
            };
            if row.is_some_and(is_deleted) && !self.0.guards.is_held(id).await? {
                deleted.push(id.clone());
            }
        }
        Ok(deleted)
    }

    /// Looks at every row of a host, and deletes what was deleted before. The last failure, if there was one. What
    /// nobody has a row for stays; see `quarantine`.
    pub(crate) async fn tend_snapshots(
        &self,
        host: &Host,
        on_host: &OnHost,
    ) -> Result<(), ControlError> {
        let mut failed = None;
        for id in self.deleted_snapshots(host, on_host).await? {
            // Somebody may be about to fetch it to this host again.
            let _evicting = match self.0.objects {
                Some(_) => Some(self.lock_eviction(&id).await?),
                None => None,
            };
            let row = self.store().any_snapshot(&id).await?;
            let is_back = row.is_some_and(|row| row.host == host.id && row.deleted_at.is_none());
            if is_back || self.0.guards.is_held(&id).await? {
                continue;
            }
            tracing::warn!(snapshot = %id, host = %host.id, "deleting a snapshot that was deleted or moved before");
            match host.runner().await?.delete_snapshot(&id).await {
                Ok(()) => {}
                Err(error @ RunnerError::InUse { .. }) => {
                    tracing::debug!(%error, snapshot = %id, "retrying at the next check");
                }
                Err(error) => failed = Some(error.into()),
            }
        }
        let mut page = PageRequest {
            limit: PAGE_MAX,
            cursor: None,
        };
        loop {
            let found = self.store().snapshots_on(&host.id, &page).await?;
            let sizes: Vec<_> = found
                .items
                .iter()
                .filter(|row| row.state == SnapshotState::Ready)
                .filter_map(|row| Some((row, held_bytes(on_host.get(&row.id)?))))
                .collect();
            self.meter_snapshots(&sizes).await?;
            for row in &found.items {
                if self.0.guards.is_held(&row.id).await? {
                    continue;
                }
                match self.tend_snapshot(row, on_host.get(&row.id)).await {
                    Ok(()) => {}
                    // The host is at it for whoever asked before a restart; it stays as it is until then.
                    Err(error) if error.passes() => {
                        tracing::debug!(%error, snapshot = %row.id, "retrying at the next check");
                    }
                    Err(error) => {
                        tracing::warn!(%error, snapshot = %row.id, "cannot reconcile a snapshot");
                        failed = Some(error);
                    }
                }
            }
            match found.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => return failed.map_or(Ok(()), Err),
            }
        }
    }

    async fn tend_snapshot(
        &self,
        row: &SnapshotRecord,
        view: Option<&SnapshotView>,
    ) -> Result<(), ControlError> {
        match (row.state, view) {
            // Another process over the same database may be asking for it right now.
            (SnapshotState::Making, None)
                if self.steady().since(row.created_steady) < self.config().snapshot_grace =>
            {
                Ok(())
            }
            (SnapshotState::Ready, None) if !row.on_host && row.held_disk_mb == 0 => Ok(()),
            // A crash came between the row and the host, or before what was fetched was written down.
            (SnapshotState::Ready, _) if !row.on_host => self.delete_evicted(row).await,
            (SnapshotState::Making, _) | (SnapshotState::Ready, None) => {
                self.settle_snapshot(&row.id).await
            }
            (SnapshotState::Deleting, _) => self.finish_delete_snapshot(row).await,
            // What the row knows of it is worth more than what the host says.
            (SnapshotState::Ready, Some(view)) if view.set_aside.is_some() => Ok(()),
            (SnapshotState::Ready, Some(view)) => {
                // One that a template keeps goes on to be measured: it may hold what its sandbox held.
                if self.is_garbage(row).await? && self.delete_unless_kept(row).await? {
                    return Ok(());
                }
                let (facts, held) = (facts(view), held_mb(view));
                if facts == row.facts && held == row.held_disk_mb {
                    return Ok(());
                }
                let change = SnapshotChange {
                    only_on: Some(row.host.clone()),
                    facts: Some(facts),
                    held_disk_mb: Some(held),
                    ..SnapshotChange::default()
                };
                self.store().change_snapshot(&row.id, &change).await?;
                Ok(())
            }
        }
    }

    /// Finishes or undoes what a crash or a lost answer left, by what the host says now. A conflict, and
    /// nothing changed, while the host is still making it.
    pub(crate) async fn settle_snapshot(&self, id: &SnapshotId) -> Result<(), ControlError> {
        let Some(row) = self.store().any_snapshot(id).await? else {
            return Ok(());
        };
        if row.deleted_at.is_some() || row.state == SnapshotState::Deleting {
            return Ok(());
        }
        let runner = self.runner(&row.host).await?;
        match runner.get_snapshot(id).await {
            // Nobody heard of it, and nobody can use it.
            Ok(view) if row.state == SnapshotState::Making && view.set_aside.is_some() => {
                runner.delete_snapshot(id).await?;
                Ok(self.store().forget_snapshot(id).await?)
            }
            Ok(view) if row.state == SnapshotState::Making => {
                let kept = self.keep_snapshot(&row, &view).await?;
                self.move_head(&kept).await
            }
            Ok(_) => Ok(()),
            Err(RunnerError::NotFound { .. }) if row.state == SnapshotState::Making => {
                Ok(self.store().forget_snapshot(id).await?)
            }
            Err(RunnerError::NotFound { .. }) if row.object_copy == ObjectCopy::Stored => {
                tracing::warn!(snapshot = %id, "the host has lost a snapshot; object storage has it");
                self.note_off_host(&row).await
            }
            Err(RunnerError::NotFound { .. }) => {
                tracing::error!(snapshot = %id, "the host has lost a snapshot");
                self.bury_snapshot(&row).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Automatic ones go with their sandbox; those of forks when the fork is over.
    async fn is_garbage(&self, row: &SnapshotRecord) -> Result<bool, ControlError> {
        if !row.kind.is_automatic() {
            return Ok(false);
        }
        if row.kind == SnapshotKind::Fork
            && self.steady().since(row.created_steady) >= FORK_POINT_KEPT
        {
            return Ok(true);
        }
        if row.kind == SnapshotKind::Build {
            // One that a build has just taken is in the cache in a moment.
            return Ok(self.steady().since(row.created_steady) >= BUILD_STEP_KEPT
                && !self.store().is_cached(&row.id).await?);
        }
        let Some(sandbox) = &row.sandbox else {
            return Ok(true);
        };
        let of = self.store().any_sandbox(sandbox).await?;
        Ok(of.is_none_or(|of| of.deleted_at.is_some()))
    }
}
