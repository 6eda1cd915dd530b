//! Putting a sandbox to rest with its memory, and waking it.
//!
//! Frozen means its processes hold still; paused means its memory is on disk. Whoever needs it wakes
//! it, and however many need it at once, it is woken once.

use async_recursion::async_recursion as boxed;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use cove_model::{SandboxId, State};
use cove_runner_api::{RunnerError, SandboxView};
use cove_store::{SandboxChange, SandboxRecord, Scope, StoreError};
use tokio::sync::OnceCell;

use super::{Sandbox, holding};
use crate::Control;
use crate::audit::Operation;
use crate::error::ControlError;
use crate::guest::require_running;
use crate::principal::Principal;

/// Wakes under way; everybody who comes meanwhile shares the outcome.
#[derive(Default)]
pub(crate) struct Wakes(Mutex<HashMap<SandboxId, Arc<Wake>>>);

type Wake = OnceCell<Result<(), ControlError>>;

impl Wakes {
    fn join(&self, id: &SandboxId) -> Arc<Wake> {
        Arc::clone(self.table().entry(id.clone()).or_default())
    }

    pub fn len(&self) -> usize {
        self.table().len()
    }

    /// Later callers begin anew.
    fn over(&self, id: &SandboxId, wake: &Arc<Wake>) {
        let mut table = self.table();
        if table.get(id).is_some_and(|other| Arc::ptr_eq(other, wake)) {
            table.remove(id);
        }
    }

    fn table(&self) -> parking_lot::MutexGuard<'_, HashMap<SandboxId, Arc<Wake>>> {
        self.0.lock()
    }
}

/// Which rest is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    Freeze,
    Pause,
}

impl Rest {
    fn action(self) -> &'static str {
        match self {
            Self::Freeze => "sandbox.freeze",
            Self::Pause => "sandbox.pause",
        }
    }
}

impl Control {
    /// Needs `manage`. Its processes hold still and memory is kept. Done already for a frozen one.
    #[boxed]
    pub async fn freeze_sandbox(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Sandbox, ControlError> {
        self.rest(principal, which, Rest::Freeze).await
    }

    /// Needs `manage`. Its memory goes to disk. Done already for a paused one.
    #[boxed]
    pub async fn pause_sandbox(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Sandbox, ControlError> {
        self.rest(principal, which, Rest::Pause).await
    }

    /// Needs `use`. Brings a frozen or paused one back; done already for a running one.
    #[boxed]
    pub async fn resume_sandbox(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Sandbox, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = async {
                principal.require(Scope::Use)?;
                let found = control.find(&principal, &which).await?;
                let _turn = control.take_turn(&found.id).await?;
                let record = control.reread(&found, &which).await?;
                control.resume_or_refuse(&record).await
            }
            .await;
            let operation = Operation::new("sandbox.resume", super::named(&which, &outcome));
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// For whoever holds the sandbox's lock.
    pub(super) async fn resume_or_refuse(
        &self,
        record: &SandboxRecord,
    ) -> Result<Sandbox, ControlError> {
        let record = self.settled(record).await?;
        match record.state {
            State::Frozen | State::Paused => Ok(self.resume_now(&record).await?.into()),
            _ => {
                require_running(&record)?;
                self.0.in_use.activity.note(&record.id, self.moment());
                Ok(record.into())
            }
        }
    }

    async fn rest(
        &self,
        principal: &Principal,
        which: &str,
        rest: Rest,
    ) -> Result<Sandbox, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = async {
                principal.require(Scope::Manage)?;
                let found = control.find(&principal, &which).await?;
                let _turn = control.take_turn(&found.id).await?;
                let record = control.reread(&found, &which).await?;
                let record = control.settled(&record).await?;
                let rested = match (rest, record.state) {
                    (Rest::Freeze, State::Frozen) | (Rest::Pause, State::Paused) => record,
                    (Rest::Freeze, State::Running) => control.freeze_now(&record, None).await?,
                    (Rest::Pause, State::Running | State::Frozen) => {
                        control.pause_now(&record, None).await?
                    }
                    (Rest::Freeze, State::Paused) => {
                        let text = "the sandbox is paused, so it cannot be frozen";
                        return Err(ControlError::conflict(text)
                            .hint(format!("resume it first: cove resume {}", record.id)));
                    }
                    _ => {
                        require_running(&record)?;
                        record
                    }
                };
                Ok(rested.into())
            }
            .await;
            let operation = Operation::new(rest.action(), super::named(&which, &outcome));
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// For whoever holds the sandbox's lock.
    pub(crate) async fn freeze_now(
        &self,
        record: &SandboxRecord,
        reason: Option<String>,
    ) -> Result<SandboxRecord, ControlError> {
        let frozen = async {
            let runner = self.runner(&record.host).await?;
            match runner.freeze(&record.id).await {
                Err(RunnerError::Conflict {
                    state: State::Frozen,
                    ..
                }) => runner.get(&record.id).await,
                outcome => outcome,
            }
        }
        .await;
        self.rested(record, frozen, reason).await
    }

    /// For whoever holds the sandbox's lock. The sandbox goes on when its memory cannot be captured.
    pub(crate) async fn pause_now(
        &self,
        record: &SandboxRecord,
        reason: Option<String>,
    ) -> Result<SandboxRecord, ControlError> {
        let intent = SandboxChange {
            state: Some(State::Pausing),
            ..SandboxChange::default()
        };
        let record = self
            .store()
            .change_sandbox(&record.id, &intent, self.now())
            .await?;
        // Afterwards its memory is on its disk.
        self.meter_now(&record, None).await;
        let paused = async {
            let (runner, _slot) = self.runner_in_turn(&record.host, &record.org).await?;
            match runner.pause(&record.id).await {
                Err(RunnerError::Conflict {
                    state: State::Paused,
                    ..
                }) => runner.get(&record.id).await,
                outcome => outcome,
            }
        }
        .await;
        let kept = self.rested(&record, paused, reason).await?;
        self.meter_now(&kept, Some(self.steady())).await;
        Ok(kept)
    }

    async fn rested(
        &self,
        record: &SandboxRecord,
        outcome: Result<SandboxView, RunnerError>,
        reason: Option<String>,
    ) -> Result<SandboxRecord, ControlError> {
        match outcome {
            Ok(mut view) => {
                view.reason = reason.or(view.reason);
                self.write_observed(record, &view).await
            }
            Err(error) => {
                self.look_again(record).await;
                Err(error.into())
            }
        }
    }

    /// Something failed halfway: writes down how the host says it is now, or has that done later.
    pub(crate) async fn look_again(&self, record: &SandboxRecord) {
        let seen = async {
            let view = self.runner(&record.host).await?.get(&record.id).await?;
            self.write_observed(record, &view).await
        };
        if let Err(error) = seen.await {
            tracing::debug!(%error, sandbox = %record.id, "reconciling it later");
            self.mark_stale(record);
        }
    }

    /// For whoever holds the sandbox's lock. What only running ones hold is taken first; a refusal
    /// leaves it as it was.
    pub(crate) async fn resume_now(
        &self,
        record: &SandboxRecord,
    ) -> Result<SandboxRecord, ControlError> {
        let record = if record.state == State::Paused {
            let intent = SandboxChange {
                state: Some(State::Resuming),
                holds: Some(holding(State::Resuming, &record.spec.resources)),
                last_active: Some(self.moment()),
                ..SandboxChange::default()
            };
            let changed = self.store().change_sandbox(&record.id, &intent, self.now());
            changed.await.map_err(|error| match error {
                StoreError::Quota { .. } => ControlError::from(error)
                    .hint("it stays paused; stop or pause others, or have the quota raised"),
                other => other.into(),
            })?
        } else {
            record.clone()
        };
        let resumed = async {
            let (runner, _slot) = self.runner_in_turn(&record.host, &record.org).await?;
            runner.resume(&record.id).await
        };
        match resumed.await {
            Ok(view) => {
                let kept = self.write_observed(&record, &view).await?;
                self.0.in_use.activity.note(&kept.id, self.moment());
                self.meter_soon(&kept);
                Ok(kept)
            }
            Err(error) => {
                self.look_again(&record).await;
                Err(error.into())
            }
        }
    }

    /// Makes a sandbox at rest run, for a request that needs it. Exactly one wake, however many ask.
    pub(crate) async fn wake(&self, id: &SandboxId) -> Result<(), ControlError> {
        let wake = self.0.in_use.wakes.join(id);
        let outcome = wake
            .get_or_init(|| async {
                let (control, id) = (self.clone(), id.clone());
                self.to_the_end(async move { control.wake_once(&id).await })
                    .await
            })
            .await;
        self.0.in_use.wakes.over(id, &wake);
        outcome
            .as_ref()
            .map_or_else(|error| Err(error.again()), |()| Ok(()))
    }

    async fn wake_once(&self, id: &SandboxId) -> Result<(), ControlError> {
        let _turn = self.take_turn(id).await?;
        let record = self.store().any_sandbox(id).await?;
        let record = record.filter(|record| record.deleted_at.is_none());
        let record = record.ok_or_else(|| ControlError::not_found("sandbox", id.as_str()))?;
        let record = self.settled(&record).await?;
        // The row may be behind: whoever asks here heard from somebody that it does not run.
        let view = self.runner(&record.host).await?.get(id).await?;
        let record = match view.state == record.state {
            true => record,
            false => self.write_observed(&record, &view).await?,
        };
        let record = self.settled(&record).await?;
        match record.state {
            State::Frozen | State::Paused => {
                require_auto_resume(&record)?;
                let state = record.state;
                let outcome = self.resume_now(&record).await;
                let result = match &outcome {
                    Ok(_) => "ok",
                    Err(error) => error.code.as_str(),
                };
                let mut operation = Operation::new("sandbox.resume", id.as_str());
                operation.detail = Some(format!("woken from {state} by a request"));
                self.record_own(&record.org, operation, result).await;
                outcome.map(drop)
            }
            _ => require_running(&record),
        }
    }
}

/// Whether a request may wake it.
pub(crate) fn require_auto_resume(record: &SandboxRecord) -> Result<(), ControlError> {
    if record.spec.lifecycle.auto_resume {
        return Ok(());
    }
    Err(
        ControlError::conflict(format!("the sandbox is {}", record.state)).hint(format!(
            "it does not wake by itself (auto_resume is off); resume it first: cove resume {}",
            record.id
        )),
    )
}
