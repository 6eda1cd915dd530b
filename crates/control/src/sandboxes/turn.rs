//! Waiting for one's turn with a sandbox, and for states that lead to another.
//!
//! A caller who comes while a sandbox is being made, paused, resumed, rolled back, stopped or deleted
//! waits for the end of that, for [`crate::ControlConfig::change_wait`] at most, and is then answered by
//! what came of it.

use std::time::Duration;

use cove_model::{SandboxId, State};
use cove_store::SandboxRecord;
use tokio::time::{Instant, sleep, timeout};

use super::is_doomed;
use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::guards::Guard;

/// Pause between two looks at a host that is still at work for an earlier request.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Whether the state leads to another one by itself.
fn is_passing(state: State) -> bool {
    matches!(
        state,
        State::Creating | State::Pausing | State::Resuming | State::Restoring | State::Stopping
    )
}

pub(crate) fn still_busy(what: impl std::fmt::Display) -> ControlError {
    ControlError::conflict(format!("{what}; an earlier request is not finished"))
        .hint("repeat the request in a moment")
        .retry_after(1)
}

impl Control {
    /// The right to change this sandbox, once changes that came before are done.
    pub(crate) async fn take_turn(&self, id: &SandboxId) -> Result<Guard, ControlError> {
        timeout(self.config().change_wait, self.lock_sandbox(id))
            .await
            .map_err(|_| still_busy("the sandbox is being changed"))?
    }

    /// For whoever holds the sandbox's turn: its row once it is in a state that lasts. A passing state
    /// is then left over from a process that died, or from an answer that got lost: the host says what
    /// came of it. What is to be deleted is deleted, and does not exist.
    pub(crate) async fn settled(
        &self,
        record: &SandboxRecord,
    ) -> Result<SandboxRecord, ControlError> {
        let deadline = Instant::now() + self.config().change_wait;
        let mut record = record.clone();
        loop {
            let missing = || ControlError::not_found("sandbox", record.id.as_str());
            if is_doomed(&record) {
                self.finish_delete(&record).await?;
                return Err(missing());
            }
            if !is_passing(record.state) {
                return Ok(record);
            }
            self.settle_locked(&record, None).await?;
            let found = self.store().any_sandbox(&record.id).await?;
            let found = found.filter(|found| found.deleted_at.is_none());
            record = found.ok_or_else(missing)?;
            if !is_passing(record.state) {
                return Ok(record);
            }
            if Instant::now() >= deadline {
                return Err(still_busy(format_args!("the sandbox is {}", record.state)));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// The same for whoever does not hold its turn.
    pub(crate) async fn await_settled(
        &self,
        record: &SandboxRecord,
        which: &str,
    ) -> Result<SandboxRecord, ControlError> {
        let _turn = self.take_turn(&record.id).await?;
        let record = self.reread(record, which).await?;
        self.settled(&record).await
    }

    /// Carries out what deletions of this organisation are still owed, so that the names and the quota
    /// they hold are free. Answers whether there were any.
    pub(super) async fn finish_deletions(
        &self,
        org: &cove_model::OrgId,
        name: Option<&str>,
    ) -> Result<bool, ControlError> {
        let filter = cove_store::SandboxFilter {
            states: vec![State::Deleting],
            name: name.map(str::to_owned),
            ..cove_store::SandboxFilter::default()
        };
        let page = cove_store::PageRequest {
            limit: cove_store::PAGE_MAX,
            cursor: None,
        };
        let found = self.store().sandboxes(org, &filter, &page).await?.items;
        for row in &found {
            let _turn = self.take_turn(&row.id).await?;
            let now = self.store().any_sandbox(&row.id).await?;
            let Some(now) = now.filter(|now| now.deleted_at.is_none() && is_doomed(now)) else {
                continue;
            };
            self.finish_delete(&now).await.map_err(|error| match error.code {
                ErrorCode::RunnerUnreachable => error.hint(
                    "an earlier sandbox is not deleted yet; repeat the request when the host answers",
                ),
                _ => error,
            })?;
        }
        Ok(!found.is_empty())
    }
}
