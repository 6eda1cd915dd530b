//! What was used, exactly, across restarts of everything.
//!
//! Figures are taken every so often and at each change of state; the store charges what lies between
//! two of them. CPU and egress are counters and lose nothing; memory counts only while it is
//! there, so a frozen sandbox pays for its memory and a paused one does not; disk counts as long as it
//! exists. A snapshot's disk counts too, as far as nobody else holds it, for the organisation as a whole.

use async_recursion::async_recursion as boxed;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cove_model::{OrgId, SandboxId, State, Steady};
use cove_store::{
    Moment, PAGE_MAX, Page, PageRequest, Period, SandboxRecord, SandboxUsage, Scope,
    SnapshotRecord, SnapshotSample, Usage, UsageSample,
};

use crate::Control;
use crate::Sample;
use crate::error::ControlError;
use crate::hosts::Host;
use crate::principal::Principal;

/// Samples written in one transaction, so that nobody waits long behind them.
const BATCH: usize = 100;
/// Stopped and paused sandboxes only have a disk, which hardly changes: they are looked at in every so many rounds.
const STOPPED_EVERY: u64 = 20;

/// Counts metering rounds.
#[derive(Default)]
pub(crate) struct Rounds(AtomicU64);

impl Control {
    fn usage_sample(
        &self,
        id: &SandboxId,
        org: &OrgId,
        sample: &Sample,
        ran_until: Option<Steady>,
    ) -> UsageSample {
        UsageSample {
            sandbox: id.clone(),
            org: org.clone(),
            at: Moment {
                at: sample.at,
                steady: self.0.clocks.placed(sample.boot_time.as_ref()),
            },
            exact_since: self.0.clocks.exact_since(),
            running: sample.running,
            running_for: sample.running_us.map(Duration::from_micros),
            ran_until,
            cpu_usec: sample.cpu_usec,
            memory_bytes: sample.memory_bytes,
            disk_bytes: sample.disk_bytes,
            egress_bytes: sample.network_sent_bytes,
        }
    }

    /// Takes one sandbox's figures now. What cannot be had now is charged with the next ones.
    pub(crate) async fn meter_now(&self, record: &SandboxRecord, ran_until: Option<Steady>) {
        let sample = async { self.runner(&record.host).await?.sample(&record.id).await };
        let sample = match sample.await {
            Ok(sample) => sample,
            Err(error) => {
                tracing::debug!(%error, sandbox = %record.id, "cannot measure a sandbox at a change of state");
                return;
            }
        };
        let sample = self.usage_sample(&record.id, &record.org, &sample, ran_until);
        if let Err(error) = self.store().apply_samples(&[sample]).await {
            tracing::warn!(%error, sandbox = %record.id, "cannot record usage");
        }
    }

    /// The same, without keeping the caller waiting.
    pub(crate) fn meter_soon(&self, record: &SandboxRecord) {
        let (control, record) = (self.clone(), record.clone());
        self.0
            .tasks
            .changes
            .spawn(async move { control.meter_now(&record, None).await });
    }

    /// One round of metering over everything on a host. Its figures count for its own sandboxes only.
    pub(crate) async fn meter_all(&self, host: &Host) -> Result<(), ControlError> {
        let round = host.rounds.0.fetch_add(1, Ordering::Relaxed);
        let with_stopped = round.is_multiple_of(STOPPED_EVERY);
        let runner = host.runner().await?;
        let running: HashMap<_, _> = runner.samples().await?.into_iter().collect();
        let mut page = PageRequest {
            limit: PAGE_MAX,
            cursor: None,
        };
        loop {
            let found = self.store().sandboxes_on(&host.id, &page).await?;
            let mut samples = Vec::new();
            for record in &found.items {
                let sample = match running.get(&record.id) {
                    Some(sample) => Some(sample.clone()),
                    None if with_stopped
                        && matches!(record.state, State::Stopped | State::Paused) =>
                    {
                        runner.sample(&record.id).await.ok()
                    }
                    None => None,
                };
                samples.extend(
                    sample.map(|one| self.usage_sample(&record.id, &record.org, &one, None)),
                );
            }
            for batch in samples.chunks(BATCH) {
                self.store().apply_samples(batch).await?;
            }
            match found.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => break,
            }
        }
        Ok(())
    }

    /// Charges snapshots for what only they hold now.
    pub(crate) async fn meter_snapshots(
        &self,
        sizes: &[(&SnapshotRecord, u64)],
    ) -> Result<(), ControlError> {
        let samples: Vec<_> = sizes
            .iter()
            .map(|(row, bytes)| self.snapshot_sample(row, Some(*bytes)))
            .collect();
        for batch in samples.chunks(BATCH) {
            self.store().apply_snapshot_samples(batch).await?;
        }
        Ok(())
    }

    fn snapshot_sample(&self, row: &SnapshotRecord, disk_bytes: Option<u64>) -> SnapshotSample {
        SnapshotSample {
            snapshot: row.id.clone(),
            org: row.org.clone(),
            at: self.moment(),
            exact_since: self.0.clocks.exact_since(),
            disk_bytes,
        }
    }

    /// A snapshot came to be with this size, or is gone.
    pub(crate) async fn meter_snapshot(&self, row: &SnapshotRecord, disk_bytes: Option<u64>) {
        let sample = self.snapshot_sample(row, disk_bytes);
        if let Err(error) = self.store().apply_snapshot_samples(&[sample]).await {
            tracing::warn!(%error, snapshot = %row.id, "cannot record usage");
        }
    }

    /// Needs `read`. Of the whole organisation.
    #[boxed]
    pub async fn usage(
        &self,
        principal: &Principal,
        period: Period,
    ) -> Result<Usage, ControlError> {
        principal.require(Scope::Read)?;
        check_period(period)?;
        Ok(self.store().usage(&principal.org, period).await?)
    }

    /// Needs `read`. Also of sandboxes that are gone.
    #[boxed]
    pub async fn usage_by_sandbox(
        &self,
        principal: &Principal,
        period: Period,
        page: &PageRequest,
    ) -> Result<Page<SandboxUsage>, ControlError> {
        principal.require(Scope::Read)?;
        check_period(period)?;
        let found = self
            .store()
            .usage_by_sandbox(&principal.org, period, page)
            .await?;
        Ok(found)
    }

    /// Needs `read`. Over its whole life so far.
    #[boxed]
    pub async fn sandbox_usage(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Usage, ControlError> {
        principal.require(Scope::Read)?;
        let record = self.find(principal, which).await?;
        Ok(self.store().usage_of(&record.id).await?)
    }
}

fn check_period(period: Period) -> Result<(), ControlError> {
    if period.from >= period.to {
        return Err(ControlError::invalid("the period must end after it begins"));
    }
    Ok(())
}
