//! Starting, stopping and changing.

use cove_model::{IdlePolicy, Resources, SandboxSpec, State};
use cove_runner_api::{RunnerError, SandboxView};
use cove_store::{Desired, Holding, SandboxChange, SandboxRecord, Scope, StoreError};

use super::{Sandbox, SandboxPatch, holding, observed};
use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;
use cove_limits::STOP_GRACE_MAX_MS;

pub(crate) const LOST: &str = "the host no longer has it";

impl Control {
    pub(super) async fn start(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Sandbox, ControlError> {
        principal.require(Scope::Use)?;
        let found = self.find(principal, which).await?;
        let _turn = self.take_turn(&found.id).await?;
        let record = self.reread(&found, which).await?;
        let record = self.settled(&record).await?;
        match record.state {
            State::Stopped | State::Failed => {}
            _ => return self.resume_or_refuse(&record).await,
        }
        let intent = SandboxChange {
            desired: Some(Desired::Running),
            holds: Some(Holding::running(&record.spec.resources)),
            last_active: Some(self.moment()),
            ..SandboxChange::default()
        };
        let record = self
            .store()
            .change_sandbox(&record.id, &intent, self.now())
            .await?;
        let started = async {
            let (runner, _slot) = self.runner_in_turn(&record.host, &record.org).await?;
            match runner.start(&record.id).await {
                Err(RunnerError::Conflict {
                    state: State::Running,
                    ..
                }) => runner.get(&record.id).await,
                outcome => outcome,
            }
        }
        .await;
        match started {
            Ok(view) => {
                // Before anybody hears that it runs.
                self.begin_services(&record).await;
                let kept = self.write_observed(&record, &view).await?;
                self.0.in_use.activity.note(&kept.id, self.moment());
                self.meter_soon(&kept);
                Ok(kept.into())
            }
            Err(error) => {
                self.take_back_start(&record, &error).await;
                Err(error.into())
            }
        }
    }

    /// A start that did not come about must not hold what only running ones hold.
    async fn take_back_start(&self, record: &SandboxRecord, error: &RunnerError) {
        let (state, reason) = match error {
            // Nobody knows whether it runs; the reconcile that follows does.
            RunnerError::Unreachable { .. } => {
                self.mark_stale(record);
                return;
            }
            RunnerError::NotFound { .. } => (State::Failed, LOST.to_owned()),
            RunnerError::Conflict { .. } | RunnerError::NoCapacity { .. } => {
                let kept = record.state;
                (kept, record.reason.clone().unwrap_or_default())
            }
            other => (State::Failed, other.to_string()),
        };
        let change = SandboxChange {
            desired: Some(Desired::Stopped),
            state: Some(state),
            reason: Some(Some(reason).filter(|reason| !reason.is_empty())),
            holds: Some(holding(state, &record.spec.resources)),
            ..SandboxChange::default()
        };
        let written = self
            .store()
            .change_sandbox(&record.id, &change, self.now())
            .await;
        if let Err(error) = written {
            tracing::error!(%error, sandbox = %record.id, "cannot record a failed start");
        }
        self.mark_stale(record);
    }

    pub(super) async fn stop(
        &self,
        principal: &Principal,
        which: &str,
        grace_ms: Option<u64>,
    ) -> Result<Sandbox, ControlError> {
        principal.require(Scope::Manage)?;
        let grace_ms = grace_ms.unwrap_or(self.config().stop_grace_ms);
        if grace_ms > STOP_GRACE_MAX_MS {
            return Err(ControlError::invalid(format!(
                "the grace time must be at most {STOP_GRACE_MAX_MS} ms"
            )));
        }
        let found = self.find(principal, which).await?;
        let _turn = self.take_turn(&found.id).await?;
        let record = self.reread(&found, which).await?;
        let record = self.settled(&record).await?;
        match record.state {
            State::Stopped => Ok(record.into()),
            State::Running | State::Frozen | State::Paused => {
                Ok(self.stop_now(&record, grace_ms, None).await?.into())
            }
            state => Err(ControlError::new(
                ErrorCode::Conflict,
                format!("cannot stop a sandbox that is {state}"),
            )),
        }
    }

    /// For whoever holds the sandbox's lock.
    pub(crate) async fn stop_now(
        &self,
        record: &SandboxRecord,
        grace_ms: u64,
        reason: Option<String>,
    ) -> Result<SandboxRecord, ControlError> {
        let intent = SandboxChange {
            desired: Some(Desired::Stopped),
            state: Some(State::Stopping),
            ..SandboxChange::default()
        };
        let record = self
            .store()
            .change_sandbox(&record.id, &intent, self.now())
            .await?;
        // Afterwards nobody knows what memory it had.
        self.meter_now(&record, None).await;
        let stopped = async {
            let runner = self.runner(&record.host).await?;
            match runner.stop(&record.id, grace_ms).await {
                Err(RunnerError::Conflict {
                    state: State::Stopped,
                    ..
                }) => runner.get(&record.id).await,
                outcome => outcome,
            }
        }
        .await;
        match stopped {
            Ok(mut view) => {
                view.reason = reason.or(view.reason);
                let kept = self.write_observed(&record, &view).await?;
                self.meter_now(&kept, Some(self.steady())).await;
                Ok(kept)
            }
            Err(error) => {
                self.mark_stale(&record);
                Err(error.into())
            }
        }
    }

    /// Writes down how the host says it is. A sandbox that does not run is not meant to any more.
    pub(crate) async fn write_observed(
        &self,
        record: &SandboxRecord,
        view: &SandboxView,
    ) -> Result<SandboxRecord, ControlError> {
        let mut change = observed(view, record);
        if matches!(view.state, State::Stopped | State::Failed) {
            change.desired = Some(Desired::Stopped);
        }
        let kept = self
            .store()
            .change_sandbox(&record.id, &change, self.now())
            .await?;
        self.expect_rest_of(&kept);
        Ok(kept)
    }

    pub(super) async fn update(
        &self,
        principal: &Principal,
        which: &str,
        patch: SandboxPatch,
    ) -> Result<Sandbox, ControlError> {
        principal.require(Scope::Manage)?;
        let found = self.find(principal, which).await?;
        let _turn = self.take_turn(&found.id).await?;
        let record = self.reread(&found, which).await?;
        let record = self.settled(&record).await?;
        let new = patched(&record.spec, &patch)?;
        new.check()?;
        if new.lifecycle.pause_after_s != record.spec.lifecycle.pause_after_s {
            let isolation = &new.isolation;
            self.check_pausing(&record.host, isolation, &new.lifecycle)
                .await?;
        }
        if new.network != record.spec.network {
            self.check_reach(principal, &new.network)?;
            // Not whether its secrets are still reached: whoever closes the network of a sandbox must not be
            // refused because of what it holds.
        }
        let change = SandboxChange {
            expected_generation: patch.expected_generation,
            // Until the host has agreed, the larger of both is held.
            holds: Some(larger(
                &holding(record.state, &record.spec.resources),
                &holding(record.state, &new.resources),
            )),
            spec: Some(new.clone()),
            ..SandboxChange::default()
        };
        let changed = self.store().change_sandbox(&record.id, &change, self.now());
        let changed = changed.await.map_err(|error| match (&error, &new.name) {
            (StoreError::Exists { .. }, Some(name)) => ControlError::new(
                ErrorCode::AlreadyExists,
                format!("a sandbox named '{name}' exists already"),
            ),
            _ => error.into(),
        })?;
        match self.ask_host(&record, &new, &patch).await {
            Ok(view) => {
                let changed = match view {
                    Some(view) => self.write_observed(&changed, &view).await?,
                    None => changed,
                };
                self.renew_services(&record, &changed).await;
                Ok(changed.into())
            }
            Err(error @ RunnerError::Unreachable { .. }) => {
                // The wish stays; the reconcile that follows asks for it again.
                self.mark_stale(&record);
                Err(error.into())
            }
            Err(error) => {
                // Refused as a whole: what else the patch asked for goes back too.
                let change = SandboxChange {
                    holds: Some(record.holds),
                    spec: Some(record.spec.clone()),
                    ..SandboxChange::default()
                };
                self.store()
                    .change_sandbox(&record.id, &change, self.now())
                    .await?;
                Err(error.into())
            }
        }
    }

    /// Both parts of a change that the host has a say in; `None` when it has none. What it refuses it
    /// refuses whole.
    async fn ask_host(
        &self,
        record: &SandboxRecord,
        new: &SandboxSpec,
        patch: &SandboxPatch,
    ) -> Result<Option<SandboxView>, RunnerError> {
        let mut view = None;
        let reach_changes = new.network != record.spec.network;
        let resources = patch.resources.clone().filter(|patch| !patch.is_empty());
        if !reach_changes && resources.is_none() {
            return Ok(None);
        }
        let runner = self.runner(&record.host).await?;
        if reach_changes {
            let policy = new.network.clone();
            view = Some(runner.set_network(&record.id, policy).await?);
        }
        let Some(resources) = resources else {
            return Ok(view);
        };
        match runner.resize(&record.id, resources).await {
            Ok(view) => Ok(Some(view)),
            Err(error) => {
                if reach_changes && !matches!(error, RunnerError::Unreachable { .. }) {
                    let old = record.spec.network.clone();
                    runner.set_network(&record.id, old).await?;
                }
                Err(error)
            }
        }
    }
}

fn patched(old: &SandboxSpec, patch: &SandboxPatch) -> Result<SandboxSpec, ControlError> {
    let resources: Resources = match &patch.resources {
        Some(resources) => resources
            .apply(&old.resources)
            .map_err(|error| ControlError::invalid(error.to_string()))?,
        None => old.resources.clone(),
    };
    Ok(SandboxSpec {
        name: patch.name.clone().unwrap_or_else(|| old.name.clone()),
        labels: patch.labels.clone().unwrap_or_else(|| old.labels.clone()),
        lifecycle: match &patch.lifecycle {
            None => old.lifecycle.clone(),
            // A lease has calls of its own.
            Some(new) => IdlePolicy {
                lease: old.lifecycle.lease.clone(),
                ..new.clone()
            },
        },
        network: patch.network.clone().unwrap_or_else(|| old.network.clone()),
        env: patch.env.clone().unwrap_or_else(|| old.env.clone()),
        resources,
        ..old.clone()
    })
}

fn larger(one: &Holding, two: &Holding) -> Holding {
    Holding {
        sandboxes: one.sandboxes.max(two.sandboxes),
        cpu_milli: one.cpu_milli.max(two.cpu_milli),
        memory_mb: one.memory_mb.max(two.memory_mb),
        disk_mb: one.disk_mb.max(two.disk_mb),
    }
}
