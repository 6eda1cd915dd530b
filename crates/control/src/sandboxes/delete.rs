//! Deleting: the intent is written before the host is asked, so it is carried out in the end.
//!
//! Only the end is flushed. Should the power fail in between, the host may have forgotten a sandbox
//! whose row still wants it; it is then shown as lost, and whoever asked never heard otherwise.

use cove_model::State;
use cove_store::{Desired, Holding, SandboxChange, SandboxRecord, Scope};

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::leases::not_the_holder;
use crate::principal::Principal;

impl Control {
    pub(super) async fn delete_audited(
        &self,
        principal: &Principal,
        which: &str,
        holder: Option<&str>,
    ) -> Result<(), ControlError> {
        let mut target = which.to_owned();
        let outcome = async {
            principal.require(Scope::Manage)?;
            let found = self.find(principal, which).await?;
            target = found.id.to_string();
            let _turn = self.take_turn(&found.id).await?;
            let record = self.reread(&found, which).await?;
            let lease = record.spec.lifecycle.lease.as_ref();
            if holder.is_some() && holder != lease.map(|lease| lease.holder.as_str()) {
                return Err(not_the_holder(&record));
            }
            self.delete_now(&record, None).await
        }
        .await;
        let operation = Operation::new("sandbox.delete", target);
        self.conclude(principal, operation, outcome).await
    }

    /// For whoever holds the sandbox's lock.
    pub(crate) async fn delete_now(
        &self,
        record: &SandboxRecord,
        reason: Option<String>,
    ) -> Result<(), ControlError> {
        let intent = SandboxChange {
            desired: Some(Desired::Deleted),
            state: Some(State::Deleting),
            reason: reason.map(Some),
            ..SandboxChange::default()
        };
        self.store()
            .note_sandbox(&record.id, &intent, self.now())
            .await?;
        self.finish_delete(record).await
    }

    /// Carries out an intent that is written down already.
    pub(crate) async fn finish_delete(&self, record: &SandboxRecord) -> Result<(), ControlError> {
        self.meter_now(record, None).await;
        let deleted = async { self.runner(&record.host).await?.delete(&record.id).await };
        if let Err(error) = deleted.await {
            self.mark_stale(record);
            let error = ControlError::from(error);
            return Err(match error.code {
                ErrorCode::RunnerUnreachable => {
                    error.hint("the deletion is noted and will be carried out")
                }
                _ => error,
            });
        }
        self.bury(record).await
    }

    /// Nothing of it is left on the host: the row becomes a tombstone.
    pub(crate) async fn bury(&self, record: &SandboxRecord) -> Result<(), ControlError> {
        let now = self.now();
        let gone = SandboxChange {
            desired: Some(Desired::Deleted),
            state: Some(State::Gone),
            holds: Some(Holding::nothing()),
            deleted_at: Some(now),
            ..SandboxChange::default()
        };
        self.store().note_sandbox(&record.id, &gone, now).await?;
        if let Ok(host) = self.host_of(&record.host) {
            host.forget(&record.id);
        }
        Ok(())
    }
}
