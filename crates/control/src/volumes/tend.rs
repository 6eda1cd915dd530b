//! Brings the rows of volumes and the host into agreement, and meters what they hold.

use std::collections::HashMap;

use cove_model::VolumeId;
use cove_runner_api::{RunnerError, VolumeView};
use cove_store::{PAGE_MAX, PageRequest, VolumeRecord, VolumeSample, VolumeState};

use crate::Control;
use crate::error::ControlError;
use crate::hosts::Host;

/// Samples written in one transaction, so that nobody waits long behind them.
const BATCH: usize = 100;

/// What the host has, by id.
pub(crate) type OnHost = HashMap<VolumeId, VolumeView>;

impl Control {
    /// A host without volumes of organisations has none.
    pub(crate) async fn volumes_on_host(&self, host: &Host) -> Result<OnHost, ControlError> {
        match host.runner().await?.volumes().await {
            Ok(views) => Ok(views
                .into_iter()
                .map(|view| (view.id.clone(), view))
                .collect()),
            Err(RunnerError::Unsupported { .. }) => Ok(OnHost::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Finishes what was begun, deletes what was deleted before, and leaves alone what nobody has a row for; see
    /// `quarantine`. The last failure, if there was one.
    pub(crate) async fn tend_volumes(&self, host: &Host) -> Result<(), ControlError> {
        // The host first: a row is always there before the host is asked.
        let on_host = self.volumes_on_host(host).await?;
        let mut failed = None;
        for id in on_host.keys() {
            let row = self.store().any_volume(id).await?;
            let is_deleted = row.is_some_and(|row| row.host == host.id && row.deleted_at.is_some());
            if is_deleted {
                tracing::warn!(volume = %id, "deleting a volume that was deleted before");
                let _turn = self.lock_volume(id).await?;
                let deleted = host.runner().await?.delete_volume(id).await;
                failed = deleted.err().map(ControlError::from).or(failed);
            }
        }
        let mut page = PageRequest {
            limit: PAGE_MAX,
            cursor: None,
        };
        loop {
            let found = self.store().volumes_on(&host.id, &page).await?;
            let mut samples = Vec::new();
            for row in &found.items {
                let view = on_host.get(&row.id);
                if let (VolumeState::Ready, Some(view)) = (row.state, view) {
                    // What could not be measured now is as it was.
                    let used = view.used_bytes.unwrap_or(row.used_bytes);
                    samples.push(self.volume_sample(row, Some(used)));
                }
                match self.tend_volume(host, row, view).await {
                    Ok(()) => {}
                    Err(error) if error.passes() => {
                        tracing::debug!(%error, volume = %row.id, "retrying at the next check");
                    }
                    Err(error) => {
                        tracing::warn!(%error, volume = %row.id, "cannot reconcile a volume");
                        failed = Some(error);
                    }
                }
            }
            for batch in samples.chunks(BATCH) {
                self.store().apply_volume_samples(batch).await?;
            }
            match found.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => return failed.map_or(Ok(()), Err),
            }
        }
    }

    async fn tend_volume(
        &self,
        host: &Host,
        row: &VolumeRecord,
        view: Option<&VolumeView>,
    ) -> Result<(), ControlError> {
        match (row.state, view) {
            (VolumeState::Ready, Some(view)) => match view.used_bytes {
                Some(used) if used != row.used_bytes => {
                    Ok(self.store().measured_volume(&row.id, used).await?)
                }
                _ => Ok(()),
            },
            // The row stays, so that its owner hears of it by every use.
            (VolumeState::Ready, None) => {
                tracing::error!(volume = %row.id, "the host has lost a volume");
                Ok(())
            }
            // Whoever asked for it may still be at it.
            (VolumeState::Making, _)
                if self.steady().since(row.created_steady) < self.config().snapshot_grace =>
            {
                Ok(())
            }
            (VolumeState::Making | VolumeState::Deleting, _) => self.settle_volume(host, row).await,
        }
    }

    /// Finishes or undoes what was cut short. The row and the host are looked at again: what was read before may be
    /// old by the time that its turn comes.
    async fn settle_volume(&self, host: &Host, row: &VolumeRecord) -> Result<(), ControlError> {
        let _turn = self.lock_volume(&row.id).await?;
        let found = self.store().any_volume(&row.id).await?;
        let Some(row) = found.filter(|found| found.deleted_at.is_none()) else {
            return Ok(());
        };
        match row.state {
            VolumeState::Ready => Ok(()),
            VolumeState::Deleting => self.finish_delete_volume(&row).await,
            VolumeState::Making if self.volumes_on_host(host).await?.contains_key(&row.id) => {
                self.store().ready_volume(&row.id).await?;
                Ok(())
            }
            // The host was never asked, or has forgotten what was cut short: nobody was told of it. The mark comes
            // first, so that no later request for it succeeds once the host was asked to delete it.
            VolumeState::Making => {
                self.store().abandon_volume(&row.id).await?;
                host.runner().await?.delete_volume(&row.id).await?;
                Ok(self.store().forget_volume(&row.id).await?)
            }
        }
    }

    fn volume_sample(&self, row: &VolumeRecord, disk_bytes: Option<u64>) -> VolumeSample {
        VolumeSample {
            volume: row.id.clone(),
            org: row.org.clone(),
            at: self.moment(),
            exact_since: self.0.clocks.exact_since(),
            disk_bytes,
        }
    }

    pub(crate) async fn meter_volume_end(&self, row: &VolumeRecord) {
        let sample = self.volume_sample(row, None);
        if let Err(error) = self.store().apply_volume_samples(&[sample]).await {
            tracing::warn!(%error, volume = %row.id, "cannot record usage");
        }
    }
}
