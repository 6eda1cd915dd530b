//! What runs without being asked: events, metering, idle policies, reconciling, sweeping.

use std::time::Duration;

use cove_store::Retention;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::meter::Rounds;

/// How long the host is asked to wait for the next event.
const EVENTS_WAIT_MS: u64 = 20_000;
/// Pause between two looks at the host's events: those that come meanwhile are taken over together.
const EVENTS_PAUSE: Duration = Duration::from_millis(20);
/// Pause after a failure, so that a part that is down is not hammered.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// How often last uses of sandboxes and keys are written down.
const ACTIVITY_EVERY: Duration = Duration::from_secs(30);
/// How often audit records that nobody waits for are moved to the database.
const AUDIT_EVERY: Duration = Duration::from_millis(200);
/// How long changes under way may take after a shutdown was asked for.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// How long a readiness check waits for the host; the database's answer is bounded by itself.
const READY_WAIT: Duration = Duration::from_secs(1);
/// Transactions of one sweep at most; the rest waits for the next.
const SWEEPS_MAX: u32 = 1000;
/// Background work is never repeated faster than this, whatever was configured.
const PACE_MIN: Duration = Duration::from_millis(10);

impl Control {
    /// Call once before anything else: makes the home organisation and brings the books and the
    /// host into agreement after whatever happened before. Needs the store; a runner that does not
    /// answer yet is met again by [`Control::run`].
    pub async fn prepare(&self) -> Result<(), ControlError> {
        self.read_clocks().await?;
        self.ensure_home().await?;
        self.0.audit.take_over().await?;
        match self.reconcile().await {
            Err(error) if error.code == ErrorCode::RunnerUnreachable => {
                tracing::warn!(%error, "the host does not answer yet; its sandboxes are looked at later");
                self.0.stale.mark_all();
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// The background work (events, metering, idle policies, reconciling, sweeping) until
    /// `shutdown`; everything pending is written before it returns.
    pub async fn run(&self, shutdown: CancellationToken) {
        let mut loops = JoinSet::new();
        let config = self.config();
        if let Err(error) = self.resume_image_jobs().await {
            tracing::warn!(%error, "image jobs are followed again only when somebody asks");
        }
        let rounds = std::sync::Arc::new(Rounds::default());
        self.on_and_on(&mut loops, "events", |control| async move {
            control.await_events(EVENTS_WAIT_MS).await?;
            tokio::time::sleep(EVENTS_PAUSE).await;
            Ok(())
        });
        self.on_and_on(&mut loops, "settle", |control| async move {
            control.settle_marked().await
        });
        self.every(&mut loops, "meter", config.meter_every, move |control| {
            let rounds = std::sync::Arc::clone(&rounds);
            async move { control.meter_all(&rounds).await }
        });
        self.every(
            &mut loops,
            "lifecycle",
            config.lifecycle_every,
            |control| async move { control.tick().await },
        );
        self.every(
            &mut loops,
            "reconcile",
            config.reconcile_every,
            |control| async move { control.reconcile().await },
        );
        self.every(
            &mut loops,
            "sweep",
            config.sweep_every,
            |control| async move { control.sweep().await },
        );
        self.every(
            &mut loops,
            "activity",
            ACTIVITY_EVERY,
            |control| async move { control.keep_uses().await },
        );
        self.every(&mut loops, "audit", AUDIT_EVERY, |control| async move {
            control.move_audit().await
        });
        shutdown.cancelled().await;
        self.0.closing.cancel();
        loops.shutdown().await;
        self.0.changes.close();
        if timeout(DRAIN_MAX, self.0.changes.wait()).await.is_err() {
            tracing::warn!(
                left = self.0.changes.len(),
                "changes were cut off at shutdown"
            );
        }
        if let Err(error) = self.keep_uses().await {
            tracing::warn!(%error, "last uses could not be written down");
        }
        if let Err(error) = self.finish_audit().await {
            tracing::warn!(%error, "audit records are left in the journal for the next start");
        }
    }

    /// Whether the store and the runner answer, for readiness checks.
    pub async fn ready(&self) -> Result<(), ControlError> {
        self.home()?;
        self.store().check().await?;
        let asking = async {
            let after = self.store().host_position().await?.unwrap_or_default();
            self.runner().events(after.sequence, 0).await?;
            self.runner().check().await?;
            Ok(())
        };
        match timeout(READY_WAIT, asking).await {
            Ok(ready) => ready,
            Err(_) => Err(ControlError::new(
                ErrorCode::RunnerUnreachable,
                "the host's runner does not answer",
            )),
        }
    }

    async fn keep_uses(&self) -> Result<(), ControlError> {
        self.read_clocks().await?;
        self.keep_activity().await?;
        let used = self.0.keyring.take_used();
        if used.is_empty() {
            return Ok(());
        }
        Ok(self.store().touch_keys(&used).await?)
    }

    async fn sweep(&self) -> Result<(), ControlError> {
        let (now, config) = (self.now(), self.config());
        let retention = Retention {
            idempotency_before: self.steady().before(config.idempotency_kept),
            jobs_before: now - config.idempotency_kept,
            events_before: now - config.events_kept,
            events_max: config.events_max,
            audit_before: now - config.audit_kept,
            audit_max: config.audit_max,
            tombstones_before: now - config.tombstones_kept,
            tombstones_max: config.tombstones_max,
        };
        for _ in 0..SWEEPS_MAX {
            if self.store().sweep(&retention).await? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Repeats work that waits by itself.
    fn on_and_on<F>(
        &self,
        loops: &mut JoinSet<()>,
        name: &'static str,
        mut work: impl FnMut(Control) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), ControlError>> + Send + 'static,
    {
        let control = self.clone();
        loops.spawn(async move {
            loop {
                if let Err(error) = attempt(work(control.clone())).await {
                    complain(name, &error);
                    tokio::time::sleep(FAILURE_PAUSE).await;
                    control.0.stale.nudge();
                }
            }
        });
    }

    /// Repeats work at a pace.
    fn every<F>(
        &self,
        loops: &mut JoinSet<()>,
        name: &'static str,
        pace: Duration,
        mut work: impl FnMut(Control) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), ControlError>> + Send + 'static,
    {
        let control = self.clone();
        let mut ticks = interval(pace.max(PACE_MIN));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loops.spawn(async move {
            loop {
                ticks.tick().await;
                if let Err(error) = attempt(work(control.clone())).await {
                    complain(name, &error);
                }
            }
        });
    }
}

/// In a task of its own: a panic costs one round and not the loop. Dropping the wait ends the task.
async fn attempt(
    work: impl Future<Output = Result<(), ControlError>> + Send + 'static,
) -> Result<(), ControlError> {
    match AbortOnDropHandle::new(tokio::spawn(work)).await {
        Ok(outcome) => outcome,
        Err(error) => Err(ControlError::internal("the work broke off").because(error)),
    }
}

fn complain(name: &str, error: &ControlError) {
    let cause = error.source.as_ref().map(ToString::to_string);
    tracing::warn!(task = name, %error, cause, "background work failed and is tried again");
}
