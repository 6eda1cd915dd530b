//! Rolling back: an earlier state in place, with the state before kept, so that it can be undone.

use cove_model::State;
use cove_runner_api::{RollbackRequest, RunnerError};
use cove_store::{
    Desired, SandboxChange, SandboxRecord, Scope, SnapshotChange, SnapshotKind, SnapshotRecord,
};

use super::{require_memory, require_settled};
use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;
use crate::sandboxes::{Sandbox, holding};

/// States before rollbacks that are kept of a sandbox.
pub(super) const ROLLBACKS_KEPT: usize = 10;

#[derive(Debug, Clone)]
pub struct RolledBack {
    pub sandbox: Sandbox,
    /// What it was before; rolling back to this undoes it.
    pub kept: SnapshotRecord,
}

impl Control {
    pub(super) async fn rollback(
        &self,
        principal: &Principal,
        which: &str,
        to: &str,
        memory: bool,
    ) -> Result<RolledBack, ControlError> {
        principal.require(Scope::Manage)?;
        let found = self.find(principal, which).await?;
        let _turn = self.take_turn(&found.id).await?;
        let record = self.reread_any(&found.id, which).await?;
        let record = self.settled(&record).await?;
        require_settled(&record, "roll back")?;
        let to = self.find_snapshot(principal, to).await?;
        require_memory(&to, memory)?;
        if to.host != record.host && !self.is_stored(&to) {
            return Err(
                ControlError::conflict("the snapshot is on another host than the sandbox")
                    .hint("make a sandbox from the snapshot; durable snapshots work on every host"),
            );
        }
        let _target = self.0.guards.hold(&to.id).await?;
        let to = self.bring_back_to(to, &record.host).await?;
        let done = self.rollback_now(&record, &to, memory).await?;
        self.prune(&record.id, SnapshotKind::Rollback, ROLLBACKS_KEPT)
            .await;
        Ok(done)
    }

    /// For whoever holds the sandbox's lock.
    async fn rollback_now(
        &self,
        record: &SandboxRecord,
        to: &SnapshotRecord,
        memory: bool,
    ) -> Result<RolledBack, ControlError> {
        let row = SnapshotRecord {
            rolled_back_to: Some(to.id.clone()),
            ..self.new_row(record, SnapshotKind::Rollback)
        };
        let _target = self.0.guards.hold(&to.id).await?;
        let _held = self.0.guards.hold(&row.id).await?;
        let inserted = self.store().create_snapshot(&row, None).await;
        inserted.map_err(|error| super::take::name_taken(error, None))?;
        // It runs afterwards when it ran before, or when processes come back with its memory.
        let will_run = memory || !matches!(record.state, State::Stopped | State::Failed);
        let intent = SandboxChange {
            desired: will_run.then_some(Desired::Running),
            state: Some(State::Restoring),
            holds: will_run.then(|| holding(State::Restoring, &record.spec.resources)),
            ..SandboxChange::default()
        };
        let intended = self.store().change_sandbox(&record.id, &intent, self.now());
        let intended = match intended.await {
            Ok(intended) => intended,
            Err(error) => {
                self.store().forget_snapshot(&row.id).await?;
                return Err(error.into());
            }
        };
        let request = RollbackRequest {
            sandbox: record.id.clone(),
            to: to.id.clone(),
            keep: row.id.clone(),
            memory,
        };
        // Afterwards it has started anew.
        self.meter_now(&intended, None).await;
        let done = async {
            let (runner, _slot) = self.runner_in_turn(&record.host, &record.org).await?;
            runner.rollback(request).await
        };
        match done.await {
            Ok(done) => {
                // Before anybody can use it: what was put inside is gone with the old disk.
                self.host_of(&intended.host)?.furnished.forget(&intended.id);
                let kept = self.keep_snapshot(&row, &done.kept).await?;
                self.write_observed(&intended, &done.sandbox).await?;
                self.move_head(&kept).await?;
                self.0.in_use.activity.note(&record.id, self.moment());
                let now = self.reread_any(&record.id, record.id.as_str()).await?;
                self.furnish_early(&now).await;
                if now.state == State::Running {
                    self.begin_services(&now).await;
                }
                self.meter_now(&now, None).await;
                Ok(RolledBack {
                    sandbox: now.into(),
                    kept,
                })
            }
            Err(error) => {
                self.settle_failed_rollback(&row, &error).await;
                self.look_again(&intended).await;
                Err(error.into())
            }
        }
    }

    /// What the host kept before it failed may be the only copy left of the sandbox's state, so it is
    /// given up only when the host says that there is none.
    async fn settle_failed_rollback(&self, row: &SnapshotRecord, error: &RunnerError) {
        if matches!(error, RunnerError::Unreachable { .. }) {
            // It may not have failed at all.
            self.mark_host_stale(&row.host);
            return;
        }
        let view = async { self.runner(&row.host).await?.get_snapshot(&row.id).await };
        let view = match view.await {
            Ok(view) => view,
            Err(RunnerError::NotFound { .. }) => return self.give_up_snapshot(row, error).await,
            Err(error) => {
                tracing::warn!(%error, snapshot = %row.id, "cannot clean up after a failed rollback; retrying later");
                self.mark_host_stale(&row.host);
                return;
            }
        };
        let kept = async {
            let went_nowhere = SnapshotChange {
                rolled_back_to: Some(None),
                ..SnapshotChange::default()
            };
            let row = self.store().change_snapshot(&row.id, &went_nowhere).await?;
            let kept = self.keep_snapshot(&row, &view).await?;
            self.move_head(&kept).await
        };
        if let Err(error) = kept.await {
            tracing::error!(%error, snapshot = %row.id, "cannot clean up after a failed rollback; retrying later");
            self.mark_host_stale(&row.host);
        }
    }
}
