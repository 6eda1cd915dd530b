//! What runs without being asked: events, metering, idle policies, reconciling, sweeping.

use async_recursion::async_recursion as boxed;
use std::sync::Arc;
use std::time::Duration;

use cove_store::Retention;
use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::{Host, NODE_AWAY};

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
/// How often hosts are asked what secrets were used.
const SECRETS_EVERY: Duration = Duration::from_secs(2);
const READY_WAIT: Duration = Duration::from_secs(1);
/// How often nodes are asked how they are, and the list of nodes is read.
const NODES_EVERY: Duration = Duration::from_secs(2);
/// Transactions of one sweep at most; the rest waits for the next.
const SWEEPS_MAX: u32 = 1000;
/// Background work is never repeated faster than this, whatever was configured.
const PACE_MIN: Duration = Duration::from_millis(10);

impl Control {
    /// Call once before anything else: makes the home organisation and brings the database and the
    /// hosts into agreement after whatever happened before. Needs the store; a runner that does not
    /// answer yet is met again by [`Control::run`].
    #[boxed]
    pub async fn prepare(&self) -> Result<(), ControlError> {
        self.register_hosts().await?;
        self.open_fleet().await?;
        self.read_clocks().await?;
        self.ensure_home().await?;
        self.0.audit.take_over().await?;
        let hosts = self.hosts();
        let met = join_all(hosts.iter().map(|host| self.meet(host))).await;
        met.into_iter().collect::<Result<(), _>>()?;
        match self.tend_images().await {
            Err(error) if error.code == ErrorCode::RunnerUnreachable => Ok(()),
            outcome => outcome,
        }
    }

    /// Reconciles a host at the start, or later when it does not answer yet.
    async fn meet(&self, host: &Arc<Host>) -> Result<(), ControlError> {
        match self.reconcile(host).await {
            Err(error) if error.code == ErrorCode::RunnerUnreachable => {
                tracing::warn!(%error, host = %host.id, "the host does not answer yet; reconciling its sandboxes later");
                host.stale.mark_all();
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// The background work (events, metering, idle policies, reconciling, sweeping) until
    /// `shutdown`; everything pending is written before it returns.
    #[boxed]
    pub async fn run(&self, shutdown: CancellationToken) {
        let mut loops = JoinSet::new();
        let config = self.config();
        if let Err(error) = self.resume_image_jobs().await {
            tracing::warn!(%error, "cannot follow image jobs; retrying on the next request");
        }
        if let Err(error) = self.recover_builds().await {
            tracing::warn!(%error, "cannot end interrupted builds; retrying at the next start");
        }
        let mut changes = self.0.hosts.changes();
        let mut served: Vec<Arc<Host>> = Vec::new();
        self.serve_hosts(&mut loops, &mut served);
        self.every(&mut loops, "nodes", NODES_EVERY, |control| async move {
            control.tend_fleet().await
        });
        self.every(
            &mut loops,
            "images",
            config.reconcile_every,
            |control| async move { control.tend_images().await },
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
        let pace = config.work_beat_every;
        self.every(&mut loops, "builds", pace, |control| async move {
            control.recover_others_builds().await
        });
        if let Some(pace) = self.objects_pace() {
            self.every(&mut loops, "objects", pace, |control| async move {
                control.tend_objects().await
            });
        }
        self.every(&mut loops, "audit", AUDIT_EVERY, |control| async move {
            control.move_audit().await
        });
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                changed = changes.changed() => match changed {
                    Ok(()) => self.serve_hosts(&mut loops, &mut served),
                    Err(_) => break,
                },
            }
        }
        self.0.tasks.closing.cancel();
        loops.shutdown().await;
        self.0.tasks.changes.close();
        if timeout(DRAIN_MAX, self.0.tasks.changes.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                left = self.0.tasks.changes.len(),
                "shutdown interrupted changes"
            );
        }
        if let Err(error) = self.keep_uses().await {
            tracing::warn!(%error, "cannot record when keys and secrets were last used");
        }
        if let Err(error) = self.finish_audit().await {
            tracing::warn!(%error, "audit records are left in the journal for the next start");
        }
    }

    /// Begins the work for hosts that are new.
    fn serve_hosts(&self, loops: &mut JoinSet<()>, served: &mut Vec<Arc<Host>>) {
        served.retain(|host| !host.ended.is_cancelled());
        while loops.try_join_next().is_some() {}
        for host in self.hosts().iter() {
            if !served.iter().any(|known| Arc::ptr_eq(known, host)) {
                served.push(Arc::clone(host));
                self.work_for(loops, host);
            }
        }
    }

    /// What is done for one host, at a pace of its own: a host that does not answer holds up no other.
    fn work_for(&self, all: &mut JoinSet<()>, host: &Arc<Host>) {
        let config = self.config();
        let mut own = JoinSet::new();
        let loops = &mut own;
        let of = |host: &Arc<Host>| Arc::clone(host);
        let one = of(host);
        self.on_and_on(loops, "events", move |control| {
            let host = of(&one);
            async move {
                control.await_events(&host, EVENTS_WAIT_MS).await?;
                tokio::time::sleep(EVENTS_PAUSE).await;
                Ok(())
            }
        });
        let one = of(host);
        self.on_and_on(loops, "settle", move |control| {
            let host = of(&one);
            async move { control.settle_marked(&host).await }
        });
        let one = of(host);
        self.every(loops, "meter", config.meter_every, move |control| {
            let host = of(&one);
            async move { control.meter_all(&host).await }
        });
        let one = of(host);
        self.every(loops, "lifecycle", config.lifecycle_every, move |control| {
            let host = of(&one);
            async move { control.tick(&host).await }
        });
        let one = of(host);
        self.every(loops, "secrets", SECRETS_EVERY, move |control| {
            let host = of(&one);
            async move { control.tend_secrets(&host).await }
        });
        let one = of(host);
        self.on_and_on(loops, "budgets", move |control| {
            let host = of(&one);
            async move { control.tend_budgets(&host).await }
        });
        let one = of(host);
        self.every(loops, "reconcile", config.reconcile_every, move |control| {
            let host = of(&one);
            async move { control.reconcile(&host).await }
        });
        let one = of(host);
        self.every(loops, "inventory", NODES_EVERY, move |control| {
            let host = of(&one);
            async move { control.tend_node(&host).await }
        });
        let ended = host.ended.clone();
        all.spawn(async move {
            ended.cancelled().await;
            own.shutdown().await;
        });
    }

    /// Whether the store and at least one host answer, for readiness checks.
    #[boxed]
    pub async fn ready(&self) -> Result<(), ControlError> {
        self.home()?;
        self.store().check().await?;
        let asked = self.ask_hosts(|host| async move { self.host_ready(&host).await });
        asked.await.map(drop)
    }

    async fn host_ready(&self, host: &Host) -> Result<(), ControlError> {
        let asking = async {
            let after = self.store().host_position(&host.id).await?;
            let runner = host.runner().await?;
            runner.events(after.unwrap_or_default().sequence, 0).await?;
            runner.check().await?;
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
        let used = self.0.callers.keyring.take_used();
        if used.is_empty() {
            return Ok(());
        }
        Ok(self.store().touch_keys(&used).await?)
    }

    async fn sweep(&self) -> Result<(), ControlError> {
        self.0.uploads.tidy();
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
                    for host in control.hosts().iter() {
                        host.stale.nudge();
                    }
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
        Err(error) => Err(ControlError::internal("the task was interrupted").because(error)),
    }
}

fn complain(name: &str, error: &ControlError) {
    let cause = error.source.as_ref().map(ToString::to_string);
    // That a node is away is said once, by whoever looks after nodes.
    if error.code == ErrorCode::RunnerUnreachable && error.message.starts_with(NODE_AWAY) {
        tracing::debug!(task = name, %error, cause, "a background task waits for a node");
        return;
    }
    tracing::warn!(task = name, %error, cause, "a background task failed; retrying");
}
