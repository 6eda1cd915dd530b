//! Brings the database and a host into agreement.
//!
//! The row says what is wanted, the host says what is. Whoever looks holds the sandbox's lock and asks
//! the host anew, so an old answer never overwrites a newer one; events only say where to look.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::Mutex;

use cove_model::{EventKind, Resources, ResourcesPatch, SandboxId, State, Steady};
use cove_runner_api::{RunnerError, SandboxView};
use cove_store::{Desired, Holding, PAGE_MAX, PageRequest, SandboxChange, SandboxRecord};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;
use crate::sandboxes::{LOST, RETRACTED, holding, observed};

/// Sandboxes looked at side by side.
const AT_ONCE: usize = 16;
/// Which sandboxes' rows may no longer be true.
#[derive(Default)]
pub(crate) struct Stale {
    waiting: Mutex<Waiting>,
    wake: Notify,
}

/// The state the host last reported and when it came about, when that is all that may have changed.
pub(crate) type Told = (State, Steady);

#[derive(Default)]
struct Waiting {
    ids: HashMap<SandboxId, Option<Told>>,
    /// Those whose create was answered as failed after the host had made them; they are deleted.
    retracted: HashSet<SandboxId>,
    /// Those that somebody else works on: each has one task that waits for its turn, with what the host last
    /// said.
    busy: HashMap<SandboxId, Option<Told>>,
    all: bool,
}

impl Stale {
    pub fn mark(&self, id: &SandboxId) {
        self.waiting().ids.insert(id.clone(), None);
        self.wake.notify_one();
    }

    /// The host says it is in this state now.
    pub fn told(&self, id: &SandboxId, state: State, at: Steady) {
        self.waiting()
            .ids
            .entry(id.clone())
            .and_modify(|told| *told = told.and(Some((state, at))))
            .or_insert(Some((state, at)));
        self.wake.notify_one();
    }

    /// Its create was answered as failed: it is deleted as soon as that can be written down.
    pub fn retract(&self, id: &SandboxId) {
        self.waiting().retracted.insert(id.clone());
        self.mark(id);
    }

    pub fn is_retracted(&self, id: &SandboxId) -> bool {
        self.waiting().retracted.contains(id)
    }

    pub fn forget_retraction(&self, id: &SandboxId) {
        self.waiting().retracted.remove(id);
    }

    pub fn mark_all(&self) {
        self.waiting().all = true;
        self.wake.notify_one();
    }

    /// Notes one whose turn must be waited for; `false` when somebody waits for it already.
    fn wait_for(&self, id: &SandboxId, told: Option<Told>) -> bool {
        self.waiting().busy.insert(id.clone(), told).is_none()
    }

    /// Its turn has come: what the host said last.
    fn has_turn(&self, id: &SandboxId) -> Option<Told> {
        self.waiting().busy.remove(id).flatten()
    }

    pub fn len(&self) -> usize {
        let waiting = self.waiting();
        waiting.ids.len() + waiting.retracted.len() + waiting.busy.len()
    }

    /// Looks again at what is still marked.
    pub fn nudge(&self) {
        let waiting = self.waiting();
        if waiting.all || !waiting.ids.is_empty() {
            self.wake.notify_one();
        }
    }

    fn waiting(&self) -> parking_lot::MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }
}

/// Whether limits in force are what is wanted. Elastic memory may have grown up to its ceiling.
fn honours(limits: &Resources, wanted: &Resources) -> bool {
    let grown = wanted.memory_mb..=wanted.memory_ceiling_mb();
    let memory_aside = Resources {
        memory_mb: wanted.memory_mb,
        ..limits.clone()
    };
    grown.contains(&limits.memory_mb) && memory_aside == *wanted
}

/// Whether row and host agree on everything the row keeps.
fn agrees(record: &SandboxRecord, view: &SandboxView) -> bool {
    if view.set_aside {
        return record.desired != Desired::Deleted
            && record.state == State::Failed
            && record.reason == view.reason;
    }
    let limits = record
        .facts
        .limits
        .as_ref()
        .unwrap_or(&record.spec.resources);
    let as_wanted = match (record.desired, view.state) {
        (_, State::Failed) => true,
        // At rest is as good as running: it wakes when somebody needs it.
        (Desired::Running, State::Running | State::Frozen | State::Paused) => true,
        (Desired::Stopped, State::Stopped) => true,
        _ => false,
    };
    record.desired != Desired::Deleted
        && record.state == view.state
        && as_wanted
        && *limits == view.limits
        && record.spec.network == view.spec.network
        && honours(&view.limits, &record.spec.resources)
        && record.facts.image.is_some()
}

/// Whether the host started it after the row was last written. A row is always written before a start, so
/// this row is older than the host.
fn is_started_later(record: &SandboxRecord, view: &SandboxView) -> bool {
    matches!(view.state, State::Running | State::Frozen | State::Paused)
        && view
            .started_at
            .is_some_and(|started| started > record.updated_at)
}

impl Control {
    /// Waits until something is marked, then looks at it.
    pub(crate) async fn settle_marked(&self, host: &Arc<Host>) -> Result<(), ControlError> {
        host.stale.wake.notified().await;
        let (ids, all) = {
            let mut waiting = host.stale.waiting();
            (
                std::mem::take(&mut waiting.ids),
                std::mem::take(&mut waiting.all),
            )
        };
        let mut failed = self.settle_each(host, ids).await;
        if all && let Err(error) = self.reconcile(host).await {
            host.stale.waiting().all = true;
            failed = Some(error);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Answers the last failure; what failed stays marked for the next time around.
    async fn settle_each(
        &self,
        host: &Arc<Host>,
        ids: HashMap<SandboxId, Option<Told>>,
    ) -> Option<ControlError> {
        let mut failed = None;
        let mut running = JoinSet::new();
        let mut waiting = ids.into_iter();
        loop {
            while running.len() < AT_ONCE
                && let Some((id, told)) = waiting.next()
            {
                let (control, host) = (self.clone(), Arc::clone(host));
                running.spawn(async move {
                    let outcome = control.settle(&host, &id, told).await;
                    (id, outcome)
                });
            }
            match running.join_next().await {
                None => return failed,
                Some(Ok((_, Ok(())))) => {}
                Some(Ok((id, Err(error)))) => {
                    host.stale.waiting().ids.entry(id).or_insert(None);
                    failed = Some(error);
                }
                Some(Err(error)) => {
                    failed =
                        Some(ControlError::internal("reconciling was interrupted").because(error));
                }
            }
        }
    }

    /// Brings one sandbox's row and the host into agreement. Others are not kept waiting for one that is being
    /// worked on, which may take minutes: it is looked at when that is over.
    async fn settle(
        &self,
        host: &Arc<Host>,
        id: &SandboxId,
        told: Option<Told>,
    ) -> Result<(), ControlError> {
        match self.lock_sandbox(id).now_or_never() {
            Some(turn) => {
                let _turn = turn?;
                self.settle_in_turn(host, id, told).await
            }
            None => {
                if host.stale.wait_for(id, told) {
                    self.settle_later(Arc::clone(host), id.clone());
                }
                Ok(())
            }
        }
    }

    fn settle_later(&self, host: Arc<Host>, id: SandboxId) {
        let (control, closing) = (self.clone(), self.0.tasks.closing.clone());
        tokio::spawn(async move {
            let settled = async {
                let turn = control.lock_sandbox(&id).await;
                let told = host.stale.has_turn(&id);
                let _turn = turn?;
                control.settle_in_turn(&host, &id, told).await
            };
            let outcome = tokio::select! {
                outcome = settled => outcome,
                () = closing.cancelled() => return,
            };
            if let Err(error) = outcome {
                tracing::warn!(%error, sandbox = %id, "cannot reconcile a sandbox; retrying");
                // Without a wake: it is tried with the next round.
                host.stale.waiting().ids.entry(id).or_insert(None);
            }
        });
    }

    /// For whoever holds the sandbox's lock. What a host has of a sandbox whose row names another host is
    /// unknown there, and says nothing about the sandbox.
    async fn settle_in_turn(
        &self,
        host: &Host,
        id: &SandboxId,
        told: Option<Told>,
    ) -> Result<(), ControlError> {
        let record = self.store().any_sandbox(id).await?;
        let record = record.filter(|record| record.host == host.id);
        if record
            .as_ref()
            .is_none_or(|record| record.deleted_at.is_some())
        {
            host.stale.forget_retraction(id);
        }
        // The host is asked only where it may not know yet.
        let is_going = matches!(told, Some((State::Gone | State::Deleting, _)));
        let record = match record {
            Some(record) if record.deleted_at.is_none() => record,
            _ if is_going => return Ok(()),
            // The row is a tombstone: somebody asked for its end.
            Some(_) => return self.remove_deleted(host, id).await,
            None => return self.quarantine(host, id).await,
        };
        if host.stale.is_retracted(id) {
            return self.finish_retraction(&record).await;
        }
        let said = told.map(|(state, _)| state);
        if said == Some(record.state) && record.desired != Desired::Deleted {
            return Ok(());
        }
        self.settle_locked(&record, told).await
    }

    /// For whoever holds the sandbox's lock.
    pub(crate) async fn settle_locked(
        &self,
        record: &SandboxRecord,
        told: Option<Told>,
    ) -> Result<(), ControlError> {
        let view = match self.runner(&record.host).await?.get(&record.id).await {
            Ok(view) => Some(view),
            Err(RunnerError::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        // Its end is known to the moment only from the host's own words about it.
        let ended_at = told
            .and_then(|(state, at)| matches!(state, State::Stopped | State::Paused).then_some(at));
        self.settle_row(record, view, ended_at).await
    }

    /// Deletes a sandbox whose create was answered as failed, and frees the key of that request. For whoever
    /// holds the sandbox's lock.
    pub(crate) async fn finish_retraction(
        &self,
        record: &SandboxRecord,
    ) -> Result<(), ControlError> {
        if record.deleted_at.is_none() {
            self.delete_now(record, Some(RETRACTED.to_owned())).await?;
        }
        self.store()
            .forget_idempotency(&record.org, &record.id)
            .await?;
        if let Some(host) = self.0.hosts.get(&record.host) {
            host.stale.forget_retraction(&record.id);
        }
        Ok(())
    }

    async fn remove_deleted(&self, host: &Host, id: &SandboxId) -> Result<(), ControlError> {
        let runner = host.runner().await?;
        match runner.get(id).await {
            Err(RunnerError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => {
                tracing::warn!(sandbox = %id, "deleting a sandbox that was deleted before");
                Ok(runner.delete(id).await?)
            }
        }
    }

    async fn settle_row(
        &self,
        record: &SandboxRecord,
        view: Option<SandboxView>,
        ended_at: Option<Steady>,
    ) -> Result<(), ControlError> {
        let view = view.filter(|view| view.state != State::Gone);
        match (record.desired, view) {
            (Desired::Deleted, Some(_)) => self.finish_delete(record).await,
            (Desired::Deleted, None) => self.bury(record).await,
            (_, None) => self.lost(record).await,
            (_, Some(view)) if agrees(record, &view) => Ok(()),
            (_, Some(view)) if view.set_aside => self.shown_failed(record, &view).await,
            // The database was put back to before the start that somebody heard of.
            (Desired::Stopped, Some(view)) if is_started_later(record, &view) => {
                let mut change = observed(&view, record);
                change.desired = Some(Desired::Running);
                let now = self.now();
                self.store()
                    .change_sandbox(&record.id, &change, now)
                    .await?;
                Ok(())
            }
            (Desired::Stopped, Some(view))
                if matches!(view.state, State::Running | State::Frozen | State::Paused) =>
            {
                let grace_ms = self.config().stop_grace_ms;
                self.stop_now(record, grace_ms, record.reason.clone())
                    .await
                    .map(drop)
            }
            (_, Some(view)) => self.follow(record, view, ended_at).await,
        }
    }

    /// The host knows better: writes down how it is, and repeats a change it never heard of.
    async fn follow(
        &self,
        record: &SandboxRecord,
        view: SandboxView,
        ended_at: Option<Steady>,
    ) -> Result<(), ControlError> {
        let ended = matches!(view.state, State::Stopped | State::Failed | State::Paused)
            && record.state.may_have_processes();
        let view = if !honours(&view.limits, &record.spec.resources) {
            let wanted = &record.spec.resources;
            let patch = ResourcesPatch {
                cpu: Some(wanted.cpu),
                memory_mb: Some(wanted.memory_mb),
                memory_max_mb: wanted.memory_max_mb,
                disk_mb: Some(wanted.disk_mb),
                pids: Some(wanted.pids),
            };
            match self
                .runner(&record.host)
                .await?
                .resize(&record.id, patch)
                .await
            {
                Ok(view) => view,
                Err(error @ RunnerError::Unreachable { .. }) => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, sandbox = %record.id, "the host refuses the recorded limits");
                    view
                }
            }
        } else {
            view
        };
        let view = if view.spec.network != record.spec.network {
            let policy = record.spec.network.clone();
            let runner = self.runner(&record.host).await?;
            match runner.set_network(&record.id, policy).await {
                Ok(view) => view,
                Err(error @ RunnerError::Unreachable { .. }) => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, sandbox = %record.id, "the host refuses the recorded network policy");
                    view
                }
            }
        } else {
            view
        };
        let kept = self.write_observed(record, &view).await?;
        let before = [State::Stopped, State::Failed, State::Restoring];
        if before.contains(&record.state) && kept.state == State::Running {
            // Started, and nobody was left to begin with its services. Its guest may take its time.
            let (control, started) = (self.clone(), kept.clone());
            tokio::spawn(async move { control.begin_services(&started).await });
        }
        if ended {
            self.meter_now(&kept, ended_at).await;
        }
        Ok(())
    }

    /// The host has it and cannot use it. What the row knows of it is worth more than what the host says.
    async fn shown_failed(
        &self,
        record: &SandboxRecord,
        view: &SandboxView,
    ) -> Result<(), ControlError> {
        let change = SandboxChange {
            desired: Some(Desired::Stopped),
            state: Some(State::Failed),
            reason: Some(view.reason.clone()),
            holds: Some(holding(State::Failed, &record.spec.resources)),
            ..SandboxChange::default()
        };
        let now = self.now();
        self.store()
            .change_sandbox(&record.id, &change, now)
            .await?;
        let kind = EventKind::State {
            state: State::Failed,
            reason: view.reason.clone(),
        };
        self.tell(record, kind).await;
        Ok(())
    }

    /// The host does not have it.
    async fn lost(&self, record: &SandboxRecord) -> Result<(), ControlError> {
        if record.state == State::Creating && record.started_at.is_none() {
            // Never was: the create was cut off before its caller heard of it.
            self.store()
                .forget_idempotency(&record.org, &record.id)
                .await?;
            self.bury(record).await?;
            let operation = Operation::new("sandbox.create", record.id.as_str());
            self.record_own(&record.org, operation, ErrorCode::Internal.as_str())
                .await;
            return Ok(());
        }
        if record.state == State::Failed && record.reason.as_deref() == Some(LOST) {
            return Ok(());
        }
        let change = SandboxChange {
            desired: Some(Desired::Stopped),
            state: Some(State::Failed),
            reason: Some(Some(LOST.to_owned())),
            holds: Some(Holding {
                sandboxes: 1,
                ..Holding::nothing()
            }),
            ..SandboxChange::default()
        };
        self.store()
            .change_sandbox(&record.id, &change, self.now())
            .await?;
        tracing::error!(sandbox = %record.id, "the host has lost a sandbox");
        let kind = EventKind::State {
            state: State::Failed,
            reason: Some(LOST.to_owned()),
        };
        self.tell(record, kind).await;
        Ok(())
    }

    /// Compares everything on one host. What the host has and somebody deleted is deleted there too; what nobody
    /// knows is quarantined; what is wanted and the host has lost is marked.
    pub(crate) async fn reconcile(&self, host: &Arc<Host>) -> Result<(), ControlError> {
        let runner = host.identified().await?;
        // The host first: a row is always there before the host is asked, so what the host has and
        // the rows read afterwards lack is unknown to this database.
        let mut views: HashMap<SandboxId, SandboxView> = HashMap::new();
        for view in runner.list().await? {
            views.insert(view.id.clone(), view);
        }
        let snapshots = self.snapshots_on_host(host).await?;
        let mut seen = HashSet::new();
        let mut suspect = HashMap::new();
        let mut page = PageRequest {
            limit: PAGE_MAX,
            cursor: None,
        };
        loop {
            let found = self.store().sandboxes_on(&host.id, &page).await?;
            for record in found.items {
                let view = views.get(&record.id);
                if !view.is_some_and(|view| agrees(&record, view)) {
                    suspect.insert(record.id.clone(), None);
                }
                seen.insert(record.id);
            }
            match found.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => break,
            }
        }
        let unknown = views.into_keys().filter(|id| !seen.contains(id));
        suspect.extend(unknown.map(|id| (id, None)));
        let failed = self.settle_each(host, suspect).await;
        let tended = self.tend_snapshots(host, &snapshots).await;
        // A volume that cannot be tended must not keep this host's sandboxes from being looked after.
        if let Err(error) = self.tend_volumes(host).await {
            tracing::warn!(%error, host = %host.id, "cannot reconcile the volumes of a host");
        }
        let images = self.note_images(host).await;
        failed.map_or(tended.and(images), Err)
    }
}
