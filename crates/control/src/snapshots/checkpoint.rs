//! Snapshots a sandbox's policy asks for: at a pace, and before commands. Only when something changed,
//! and only so many are kept.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use cove_model::{AutoSnapshot, SandboxId, State, Steady};
use cove_store::{
    PAGE_MAX, PageRequest, SandboxRecord, SnapshotFilter, SnapshotKind, SnapshotState,
};

use super::Wish;
use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;
use crate::sandboxes::is_doomed;

/// When each sandbox was last looked at for its pace.
#[derive(Default)]
pub(crate) struct Checkpoints(Mutex<HashMap<SandboxId, Steady>>);

impl Checkpoints {
    fn table(&self) -> parking_lot::MutexGuard<'_, HashMap<SandboxId, Steady>> {
        self.0.lock()
    }

    pub fn forget(&self, id: &SandboxId) {
        self.table().remove(id);
    }

    /// Forgets all others, which may have ended while they were looked at.
    pub fn keep_only(&self, alive: &HashSet<SandboxId>) {
        self.table().retain(|id, _| alive.contains(id));
    }

    pub fn len(&self) -> usize {
        self.table().len()
    }
}

impl Control {
    /// Whether its pace asks for a snapshot now.
    pub(crate) async fn checkpoint_is_due(
        &self,
        host: &Host,
        row: &SandboxRecord,
    ) -> Result<bool, ControlError> {
        let every = row.spec.lifecycle.auto_snapshot.as_ref();
        let Some(every) = every.and_then(|auto| auto.every_s) else {
            return Ok(false);
        };
        if row.state != State::Running {
            return Ok(false);
        }
        let known = host.checkpoints.table().get(&row.id).copied();
        let last = match known {
            Some(last) => last,
            None => {
                // After a restart the newest snapshot tells.
                let last = self.newest_snapshot_at(row).await?;
                let last = last.unwrap_or(row.created_steady);
                host.checkpoints.table().insert(row.id.clone(), last);
                last
            }
        };
        Ok(self.steady().since(last).as_secs() >= every)
    }

    async fn newest_snapshot_at(
        &self,
        row: &SandboxRecord,
    ) -> Result<Option<Steady>, ControlError> {
        let filter = SnapshotFilter {
            sandbox: Some(row.id.clone()),
            ..SnapshotFilter::default()
        };
        let page = PageRequest {
            limit: 1,
            cursor: None,
        };
        let found = self.store().snapshots(&row.org, &filter, &page).await?;
        Ok(found.items.first().map(|newest| newest.created_steady))
    }

    /// Takes the snapshot a sandbox's pace asks for.
    pub(crate) async fn checkpoint(&self, host: &Host, id: &SandboxId) -> Result<(), ControlError> {
        let _turn = self.lock_sandbox(id).await?;
        let record = self.store().any_sandbox(id).await?;
        let is_here = |row: &SandboxRecord| {
            row.host == host.id && row.deleted_at.is_none() && !is_doomed(row)
        };
        let Some(record) = record.filter(is_here) else {
            return Ok(());
        };
        let Some(auto) = record.spec.lifecycle.auto_snapshot.clone() else {
            return Ok(());
        };
        if record.state != State::Running {
            return Ok(());
        }
        // Whatever comes of it, the next try is a whole period away.
        let now = self.steady();
        host.checkpoints.table().insert(id.clone(), now);
        self.checkpoint_now(&record, &auto).await
    }

    /// For whoever holds the sandbox's lock.
    async fn checkpoint_now(
        &self,
        record: &SandboxRecord,
        auto: &AutoSnapshot,
    ) -> Result<(), ControlError> {
        let wish = Wish {
            kind: SnapshotKind::Auto,
            unless_unchanged: true,
            ..Wish::default()
        };
        let taken = match self.take_now(record, &wish, None).await {
            Err(error) if error.code == ErrorCode::Unchanged => return Ok(()),
            outcome => outcome,
        };
        let result = match &taken {
            Ok(_) => "ok",
            Err(error) => error.code.as_str(),
        };
        let mut operation = Operation::new("snapshot.create", record.id.as_str());
        operation.detail = Some("automatic".into());
        self.record_own(&record.org, operation, result).await;
        taken?;
        self.prune(&record.id, SnapshotKind::Auto, auto.keep as usize)
            .await;
        Ok(())
    }

    /// Before a command, where the policy says so. A state that was promised and cannot be kept keeps
    /// the command from running.
    pub(crate) async fn checkpoint_before_command(
        &self,
        record: &SandboxRecord,
    ) -> Result<(), ControlError> {
        let auto = record.spec.lifecycle.auto_snapshot.as_ref();
        let Some(auto) = auto.filter(|auto| auto.before_exec) else {
            return Ok(());
        };
        let (control, id, auto) = (self.clone(), record.id.clone(), auto.clone());
        self.to_the_end(async move {
            let _turn = control.take_turn(&id).await?;
            let record = control.reread_any(&id, id.as_str()).await?;
            control.checkpoint_now(&record, &auto).await
        })
        .await
        .map_err(|mut error| {
            error.message = format!(
                "the command was not run: the snapshot before it failed: {}",
                error.message
            );
            error
                .hint("to run commands without it, take before_exec out of lifecycle.auto_snapshot")
        })
    }

    /// Deletes the oldest of a kind beyond `keep`. What cannot be deleted now is met again next time.
    pub(super) async fn prune(&self, id: &SandboxId, kind: SnapshotKind, keep: usize) {
        let pruned = async {
            let Some(record) = self.store().any_sandbox(id).await? else {
                return Ok(());
            };
            let filter = SnapshotFilter {
                sandbox: Some(id.clone()),
                kinds: vec![kind],
                gone_too: false,
            };
            let mut page = PageRequest {
                limit: PAGE_MAX,
                cursor: None,
            };
            // Where the sandbox stands stays on the map, and is one of those that are kept.
            let head = match &record.head {
                Some(head) => self.store().any_snapshot(head).await?,
                None => None,
            };
            let head = head.filter(|head| {
                head.kind == kind && head.deleted_at.is_none() && head.sandbox.as_ref() == Some(id)
            });
            let keep = keep.saturating_sub(usize::from(head.is_some()));
            let mut seen = 0;
            loop {
                let found = self.store().snapshots(&record.org, &filter, &page).await?;
                for row in found.items {
                    if row.state != SnapshotState::Ready
                        || record.head.as_ref() == Some(&row.id)
                        || self.0.guards.is_held(&row.id).await?
                    {
                        continue;
                    }
                    seen += 1;
                    if seen > keep {
                        self.delete_unless_kept(&row).await?;
                    }
                }
                match found.next_cursor {
                    Some(cursor) => page.cursor = Some(cursor),
                    None => return Ok::<_, ControlError>(()),
                }
            }
        };
        if let Err(error) = pruned.await {
            tracing::warn!(%error, sandbox = %id, "cannot delete old automatic snapshots; retrying later");
        }
    }
}
