//! Who did what: a record for every call that changes something, refused ones too.
//!
//! A call that changes what the control plane keeps is answered when its record is in the database and
//! flushed. One that goes into a sandbox is preceded by its intent in the journal on this host, and
//! followed by how it ended. Refused ones change nothing and are sampled.

use async_recursion::async_recursion as boxed;
use cove_model::OrgId;
use cove_store::{
    AuditHead, AuditRecord, ChainBreak, ChainCheck, Page, PageRequest, Scope, StoreError,
};

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;

mod intent;
mod journal;
mod log;
mod refusals;

pub(crate) use intent::Intent;
pub(crate) use log::AuditLog;
pub use log::WAITING;

/// Characters kept of what a caller named as its target.
const TARGET_MAX: usize = 128;
/// Characters kept of what is reported besides.
const DETAIL_MAX: usize = 512;
/// Records read at once while a chain is checked or exported.
const READ_AT_ONCE: u32 = 500;
/// How often a check begins anew because retention removed records meanwhile.
const CHECKS_MAX: u32 = 3;

/// One audited call.
pub(crate) struct Operation {
    pub action: &'static str,
    pub target: Option<String>,
    pub detail: Option<String>,
}

impl Operation {
    pub fn new(action: &'static str, target: impl Into<String>) -> Self {
        let target: String = target.into();
        Self {
            action,
            target: Some(target.chars().take(TARGET_MAX).collect()),
            detail: None,
        }
    }
}

/// What a look at an organisation's chain found.
#[derive(Debug, Clone)]
pub struct AuditChain {
    pub org: OrgId,
    pub head: AuditHead,
    /// Records that hold together, up to the break or to the head.
    pub verified: u64,
    /// The first record that does not.
    pub broken: Option<ChainBreak>,
}

impl Control {
    /// Needs `admin`. Newest first.
    #[boxed]
    pub async fn audit(
        &self,
        principal: &Principal,
        page: &PageRequest,
    ) -> Result<Page<AuditRecord>, ControlError> {
        principal.require(Scope::Admin)?;
        // Whoever has just been answered finds what came of it.
        self.0.audit.move_all().await?;
        Ok(self.store().audit(&principal.org, page).await?)
    }

    /// Needs `admin`. Oldest first, some at a time: those after this sequence.
    #[boxed]
    pub async fn audit_after(
        &self,
        principal: &Principal,
        sequence: u64,
    ) -> Result<Vec<AuditRecord>, ControlError> {
        principal.require(Scope::Admin)?;
        let found = self
            .store()
            .audit_after(&principal.org, sequence, READ_AT_ONCE);
        Ok(found.await?)
    }

    /// Needs `admin`. Where the caller's chain begins and ends; absent before its first record.
    #[boxed]
    pub async fn audit_head(
        &self,
        principal: &Principal,
    ) -> Result<Option<AuditHead>, ControlError> {
        principal.require(Scope::Admin)?;
        self.0.audit.move_all().await?;
        Ok(self.store().audit_head(&principal.org).await?)
    }

    /// Needs `admin`. Checks the chain of the caller's organisation; an operator's, a page of all.
    #[boxed]
    pub async fn verify_audit(
        &self,
        principal: &Principal,
        page: &PageRequest,
    ) -> Result<Page<AuditChain>, ControlError> {
        principal.require(Scope::Admin)?;
        self.0.audit.move_all().await?;
        let organisations = match principal.is_operator() {
            // The records of one that was removed stay.
            true => self.store().organisations_ever(page).await?,
            false => Page {
                items: vec![self.organisation(principal, None).await?],
                next_cursor: None,
            },
        };
        let mut items = Vec::new();
        for org in organisations.items {
            items.extend(self.verify_chain(&org.id).await?);
        }
        Ok(Page {
            items,
            next_cursor: organisations.next_cursor,
        })
    }

    async fn verify_chain(&self, org: &OrgId) -> Result<Option<AuditChain>, ControlError> {
        let mut checks = 1;
        loop {
            let Some(head) = self.store().audit_head(org).await? else {
                return Ok(None);
            };
            let mut check = ChainCheck::after(&head);
            let broken = self.walk(org, &head, &mut check).await?;
            let verified = check.sequence() - head.anchor_sequence;
            if let Some(found) = &broken
                && checks < CHECKS_MAX
            {
                let now = self.store().audit_head(org).await?;
                if now.is_some_and(|now| now.anchor_sequence >= found.sequence()) {
                    checks += 1;
                    continue;
                }
            }
            return Ok(Some(AuditChain {
                org: org.clone(),
                head,
                verified,
                broken,
            }));
        }
    }

    /// Up to the head as it was read; later records are not looked at.
    async fn walk(
        &self,
        org: &OrgId,
        head: &AuditHead,
        check: &mut ChainCheck,
    ) -> Result<Option<ChainBreak>, ControlError> {
        while check.sequence() < head.sequence {
            let found = self
                .store()
                .audit_after(org, check.sequence(), READ_AT_ONCE)
                .await?;
            if found.is_empty() {
                break;
            }
            for record in found
                .iter()
                .take_while(|record| record.sequence <= head.sequence)
            {
                if let Err(broken) = check.take(record) {
                    return Ok(Some(broken));
                }
            }
            if found.iter().any(|record| record.sequence > head.sequence) {
                break;
            }
        }
        Ok(check.ends_at(head).err())
    }

    /// Writes down how a call ended. Nobody hears of a success that has no record, or whose changes a
    /// power loss could undo: they are flushed with the record.
    pub(crate) async fn conclude<T>(
        &self,
        principal: &Principal,
        operation: Operation,
        outcome: Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        match outcome {
            Ok(value) => {
                self.write_record(&principal.org, Some(principal), operation, OK)
                    .await?;
                Ok(value)
            }
            Err(error) => {
                self.note_refusal(principal, operation, &error);
                Err(error)
            }
        }
    }

    /// A call that changed nothing. The first ones are recorded, a flood is counted.
    pub(crate) fn note_refusal(
        &self,
        principal: &Principal,
        operation: Operation,
        error: &ControlError,
    ) {
        let record = self.audit_record(
            &principal.org,
            Some(principal),
            operation,
            error.code.as_str(),
        );
        let (over, alone) = {
            let mut refusals = self.0.audit.refusals();
            (refusals.over(self.now()), refusals.take(record))
        };
        self.add_records(over.into_iter().chain(alone));
    }

    /// What the control plane did by itself.
    pub(crate) async fn record_own(&self, org: &OrgId, operation: Operation, result: &str) {
        // What went wrong is in the log.
        let _ = self.write_record(org, None, operation, result).await;
    }

    /// Written to the journal before the guest is asked; dropped with how it ended.
    pub(crate) fn intend(
        &self,
        principal: &Principal,
        operation: Operation,
        listens: bool,
    ) -> Result<Intent, ControlError> {
        // Where the database is known to be down nothing is done that it could not record.
        self.store().available()?;
        let record = self.audit_record(&principal.org, Some(principal), operation, OK);
        Ok(Intent::begin(self, record, listens)?)
    }

    /// Moves what is complete to the database.
    pub(crate) async fn move_audit(&self) -> Result<(), ControlError> {
        self.0.audit.tell_of_late();
        let over = self.0.audit.refusals().over(self.now());
        self.add_records(over);
        match self.0.audit.move_all().await {
            // It is tried again, and whoever needs the database gets an error.
            Err(StoreError::Unavailable(_) | StoreError::ReadOnly) => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    /// Before the end: also what is only counted.
    pub(crate) async fn finish_audit(&self) -> Result<(), ControlError> {
        let counted = self.0.audit.refusals().all();
        self.add_records(counted);
        Ok(self.0.audit.finish().await?)
    }

    fn add_records(&self, records: impl IntoIterator<Item = AuditRecord>) {
        for record in records {
            if let Err(error) = self.0.audit.add(record) {
                tracing::debug!(%error, "cannot record a refused request");
            }
        }
    }

    pub(crate) async fn write_record(
        &self,
        org: &OrgId,
        principal: Option<&Principal>,
        operation: Operation,
        result: &str,
    ) -> Result<(), StoreError> {
        let action = operation.action;
        let record = self.audit_record(org, principal, operation, result);
        let control = self.clone();
        let writing = async move { control.0.audit.write(record).await };
        let written = match self.0.tasks.changes.spawn(writing).await {
            Ok(written) => written,
            Err(error) => Err(StoreError::Unavailable(error.into())),
        };
        written.inspect_err(|error| {
            tracing::error!(%error, action, "an audit record has not reached the database yet");
        })
    }

    fn audit_record(
        &self,
        org: &OrgId,
        principal: Option<&Principal>,
        operation: Operation,
        result: &str,
    ) -> AuditRecord {
        let detail = operation
            .detail
            .map(|text| text.chars().take(DETAIL_MAX).collect());
        AuditRecord {
            sequence: 0,
            at: self.now(),
            org: org.clone(),
            key: principal.and_then(|p| p.key.clone()),
            action: operation.action.to_owned(),
            target: operation.target,
            source: principal.and_then(|p| p.origin.source.clone()),
            request_id: principal.and_then(|p| p.origin.request_id.clone()),
            result: result.to_owned(),
            detail,
            hash: String::new(),
        }
    }
}

const OK: &str = "ok";
