//! Who did what: a record for every call that changes something, refused ones too.
//!
//! Records are durable before their call is answered. Callers that come while a batch is being
//! written form the next one, so many at once cost few commits.

use std::sync::{Arc, Mutex, PoisonError};

use cove_model::OrgId;
use cove_store::{AuditRecord, Page, PageRequest, Scope, Store, StoreError};
use tokio::sync::Mutex as AsyncMutex;

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;

/// Records written in one transaction at most.
const BATCH_MAX: usize = 256;
/// Records kept while the store does not take them.
const WAITING_MAX: usize = 16_384;
/// Characters kept of what a caller named as its target.
const TARGET_MAX: usize = 128;

pub struct AuditLog {
    store: Arc<dyn Store>,
    waiting: Mutex<Waiting>,
    /// How many records were written; its holder writes for everybody.
    written: AsyncMutex<u64>,
}

#[derive(Default)]
struct Waiting {
    records: Vec<AuditRecord>,
    /// Records ever added.
    added: u64,
}

impl AuditLog {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            waiting: Mutex::default(),
            written: AsyncMutex::new(0),
        }
    }

    /// Returns when the record is durable. To be run to its end: cut off between the store's commit and
    /// the queue's it would leave the batch to be written twice.
    pub async fn write(&self, record: AuditRecord) -> Result<(), StoreError> {
        let ticket = {
            let mut waiting = self.waiting();
            if waiting.records.len() >= WAITING_MAX {
                return Err(StoreError::Unavailable("too many records wait".into()));
            }
            waiting.records.push(record);
            waiting.added += 1;
            waiting.added
        };
        let mut written = self.written.lock().await;
        while *written < ticket {
            // They leave the queue only once they are written: a failure leaves them to the next one in
            // line.
            let batch: Vec<_> = {
                let waiting = self.waiting();
                waiting.records.iter().take(BATCH_MAX).cloned().collect()
            };
            self.store.append_audit(&batch).await?;
            self.waiting().records.drain(..batch.len());
            *written += batch.len() as u64;
        }
        Ok(())
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One audited call.
pub(crate) struct Deed {
    pub action: &'static str,
    pub target: Option<String>,
    pub detail: Option<String>,
}

impl Deed {
    pub fn new(action: &'static str, target: impl Into<String>) -> Self {
        let target: String = target.into();
        Self {
            action,
            target: Some(target.chars().take(TARGET_MAX).collect()),
            detail: None,
        }
    }
}

impl Control {
    /// Needs `admin`. Newest first.
    pub async fn audit(
        &self,
        principal: &Principal,
        page: &PageRequest,
    ) -> Result<Page<AuditRecord>, ControlError> {
        principal.require(Scope::Admin)?;
        Ok(self.store().audit(&principal.org, page).await?)
    }

    /// Writes down how a call ended whose changes were only noted: they are flushed with the record,
    /// and nobody is told of a success that a power loss could undo.
    pub(crate) async fn conclude<T>(
        &self,
        principal: &Principal,
        deed: Deed,
        outcome: Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        let result = result_of(&outcome);
        let written = self
            .write_record(&principal.org, Some(principal), deed, result)
            .await;
        match (outcome, written) {
            (Ok(_), Err(error)) => Err(error.into()),
            (outcome, _) => outcome,
        }
    }

    /// Writes down how a call ended. The call is done or refused already, so a failure to write is
    /// the operator's to hear of and changes nothing for the caller.
    pub(crate) async fn record<T>(
        &self,
        principal: &Principal,
        deed: Deed,
        outcome: &Result<T, ControlError>,
    ) {
        // What went wrong is in the log.
        let _ = self
            .write_record(&principal.org, Some(principal), deed, result_of(outcome))
            .await;
    }

    /// What the control plane did by itself.
    pub(crate) async fn record_own(&self, org: &OrgId, deed: Deed, result: &str) {
        // What went wrong is in the log.
        let _ = self.write_record(org, None, deed, result).await;
    }

    async fn write_record(
        &self,
        org: &OrgId,
        principal: Option<&Principal>,
        deed: Deed,
        result: &str,
    ) -> Result<(), StoreError> {
        let record = AuditRecord {
            sequence: 0,
            at: self.now(),
            org: org.clone(),
            key: principal.and_then(|p| p.key.clone()),
            action: deed.action.to_owned(),
            target: deed.target,
            source: principal.and_then(|p| p.origin.source.clone()),
            request_id: principal.and_then(|p| p.origin.request_id.clone()),
            result: result.to_owned(),
            detail: deed.detail,
        };
        let control = self.clone();
        let writing = async move { control.0.audit.write(record).await };
        let written = match self.0.changes.spawn(writing).await {
            Ok(written) => written,
            Err(error) => Err(StoreError::Unavailable(error.into())),
        };
        written.inspect_err(|error| {
            tracing::error!(%error, action = deed.action, "an audit record could not be written");
        })
    }
}

fn result_of<T>(outcome: &Result<T, ControlError>) -> &'static str {
    match outcome {
        Ok(_) => "ok",
        Err(error) => error.code.as_str(),
    }
}
