//! Snapshots: taking, finding, listing and deleting them.
//!
//! The row is written before the host is asked, so whatever a crash leaves can be finished or undone
//! (`tend`). Each snapshot remembers what the sandbox's state had grown from; together with where a
//! sandbox is now that is its timeline.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use cove_model::spec::check_name;
use cove_model::{Lease, SandboxId, SnapshotId, State};
use cove_store::{
    Page, PageRequest, SandboxRecord, Scope, SnapshotFilter, SnapshotRecord, SnapshotRef,
    SnapshotState,
};
use tokio::time::{Instant, sleep};

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;
use crate::sandboxes::{LOOK_EVERY, Sandbox, being_deleted, is_doomed, still_busy};

mod base;
mod checkpoint;
mod files;
mod fork;
mod rollback;
mod take;
mod tend;
mod timeline;

pub use base::{Base, Source};
pub(crate) use checkpoint::Checkpoints;
pub use files::Imported;
pub use fork::ForkRequest;
pub use rollback::RolledBack;
pub(crate) use take::{Wish, facts, held_mb};
pub use timeline::{Timeline, TimelineFork};

#[derive(Debug, Clone, Default)]
pub struct TakeSnapshot {
    pub name: Option<String>,
    /// Processes and memory too.
    pub memory: bool,
    /// Answered only once object storage has it.
    pub durable: bool,
    /// Two requests with the same key within a day are one.
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Taken {
    pub snapshot: SnapshotRecord,
    /// An earlier request with the same idempotency key took it.
    pub replayed: bool,
}

/// What of its children's settings a fork changes.
#[derive(Debug, Clone, Default)]
pub struct Children {
    /// Of the only child, or the beginning of each one's.
    pub name: Option<String>,
    /// Added to the parent's.
    pub labels: BTreeMap<String, String>,
    /// Never the parent's.
    pub lease: Option<Lease>,
}

pub(crate) fn no_snapshot(given: &str) -> ControlError {
    ControlError::not_found("snapshot", given).hint("see `cove snapshots`")
}

/// Whether a snapshot can be taken of it, a rollback be made in it.
fn require_settled(record: &SandboxRecord, what: &str) -> Result<(), ControlError> {
    if is_doomed(record) {
        return Err(being_deleted());
    }
    match record.state {
        State::Running | State::Frozen | State::Paused | State::Stopped => Ok(()),
        State::Failed if what == "roll back" => Ok(()),
        state => Err(ControlError::new(
            ErrorCode::Conflict,
            format!("cannot {what} a sandbox that is {state}"),
        )),
    }
}

fn require_memory(row: &SnapshotRecord, memory: bool) -> Result<(), ControlError> {
    if memory && !row.memory {
        return Err(
            ControlError::invalid("the snapshot has no memory, only a disk")
                .hint("leave memory out, or take a snapshot with memory"),
        );
    }
    Ok(())
}

impl Control {
    /// The caller's own snapshot that is there, by id or name.
    pub(crate) async fn find_snapshot(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<SnapshotRecord, ControlError> {
        let id: Option<SnapshotId> = which.parse().ok();
        let reference = id
            .as_ref()
            .map_or(SnapshotRef::Name(which), SnapshotRef::Id);
        let deadline = Instant::now() + self.config().change_wait;
        loop {
            let found = self.store().snapshot(&principal.org, reference).await?;
            let found = found.ok_or_else(|| no_snapshot(which))?;
            let passing = match found.state {
                SnapshotState::Ready => return Ok(found),
                SnapshotState::Making => "the snapshot is being made",
                SnapshotState::Deleting => "the snapshot is being deleted",
            };
            if Instant::now() >= deadline {
                return Err(still_busy(passing));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Needs `read`. By id or by name, as everywhere below.
    #[boxed]
    pub async fn get_snapshot(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<SnapshotRecord, ControlError> {
        principal.require(Scope::Read)?;
        self.find_snapshot(principal, which).await
    }

    /// Needs `read`. Newest first; of one sandbox, or of all.
    #[boxed]
    pub async fn list_snapshots(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<SnapshotRecord>, ControlError> {
        principal.require(Scope::Read)?;
        let sandbox = match sandbox {
            Some(which) => Some(self.find(principal, which).await?.id),
            None => None,
        };
        let filter = SnapshotFilter {
            sandbox,
            ..SnapshotFilter::default()
        };
        let mut found = self
            .store()
            .snapshots(&principal.org, &filter, page)
            .await?;
        found
            .items
            .retain(|record| record.state != SnapshotState::Making);
        Ok(found)
    }

    /// Needs `manage`. Answers once it is on disk.
    #[boxed]
    pub async fn take_snapshot(
        &self,
        principal: &Principal,
        which: &str,
        request: TakeSnapshot,
    ) -> Result<Taken, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let (durable, keyed) = (request.durable, request.idempotency_key.is_some());
            let mut outcome = control.take(&principal, &which, request).await;
            if durable && let Ok(taken) = outcome {
                outcome = control.make_durable(taken, keyed).await;
            }
            let target = match &outcome {
                Ok(taken) => taken.snapshot.id.to_string(),
                Err(_) => which,
            };
            let operation = Operation::new("snapshot.create", target);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `manage`. What grew from it is not touched.
    #[boxed]
    pub async fn delete_snapshot(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let mut target = which.clone();
            let outcome = async {
                principal.require(Scope::Manage)?;
                let id: Option<SnapshotId> = which.parse().ok();
                let reference = id
                    .as_ref()
                    .map_or(SnapshotRef::Name(&which), SnapshotRef::Id);
                let found = control.store().snapshot(&principal.org, reference).await?;
                let found = found.ok_or_else(|| no_snapshot(&which))?;
                target = found.id.to_string();
                let deadline = Instant::now() + control.config().change_wait;
                while control.0.guards.is_held(&found.id).await? {
                    // Again each time: a round in the background may have resumed it.
                    if let Some(objects) = &control.0.objects {
                        objects.cancel_upload(&found.id);
                    }
                    if Instant::now() >= deadline {
                        return Err(still_busy("the snapshot is in use"));
                    }
                    sleep(LOOK_EVERY).await;
                }
                match control.delete_snapshot_now(&found).await {
                    // Whoever waited for its upload has deleted it meanwhile.
                    Err(error) if error.code == ErrorCode::NotFound => Ok(()),
                    outcome => outcome,
                }
            }
            .await;
            let operation = Operation::new("snapshot.delete", target);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `manage`. One pause of the parent, however many children; each child succeeds or fails
    /// by itself.
    #[boxed]
    pub async fn fork_sandbox(
        &self,
        principal: &Principal,
        which: &str,
        request: ForkRequest,
    ) -> Result<Vec<Result<Sandbox, ControlError>>, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let keyed = request.idempotency_key.is_some();
            let outcome = control.fork(&principal, &which, request).await;
            let operation = Operation::new("sandbox.fork", which);
            control
                .conclude_fork(&principal, operation, outcome, keyed)
                .await
        })
        .await
    }

    /// Needs `manage`. Several sandboxes from one snapshot, with the settings it was taken with.
    #[boxed]
    pub async fn fork_snapshot(
        &self,
        principal: &Principal,
        which: &str,
        request: ForkRequest,
    ) -> Result<Vec<Result<Sandbox, ControlError>>, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let keyed = request.idempotency_key.is_some();
            let outcome = control.fork_from(&principal, &which, request).await;
            let operation = Operation::new("snapshot.fork", which);
            control
                .conclude_fork(&principal, operation, outcome, keyed)
                .await
        })
        .await
    }

    /// Needs `manage`. What the sandbox was before is kept, and named in the answer.
    #[boxed]
    pub async fn rollback_sandbox(
        &self,
        principal: &Principal,
        which: &str,
        to: &str,
        memory: bool,
    ) -> Result<RolledBack, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let (which, to) = (which.to_owned(), to.to_owned());
        self.to_the_end(async move {
            let outcome = control.rollback(&principal, &which, &to, memory).await;
            let target = match &outcome {
                Ok(done) => done.sandbox.id.to_string(),
                Err(_) => which,
            };
            let mut operation = Operation::new("sandbox.rollback", target);
            operation.detail = Some(format!("to {}", to.chars().take(80).collect::<String>()));
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn take(
        &self,
        principal: &Principal,
        which: &str,
        request: TakeSnapshot,
    ) -> Result<Taken, ControlError> {
        principal.require(Scope::Manage)?;
        check_snapshot_name(request.name.as_deref())?;
        if request.durable {
            self.require_objects()?;
        }
        let found = self.find(principal, which).await?;
        let key = request
            .idempotency_key
            .map(|key| {
                let asked = ("snapshot", &found.id, &request.name, request.memory);
                match request.durable {
                    true => crate::sandboxes::claim(key, &(asked, "durable")),
                    // In this form, so that keys of earlier versions keep their meaning.
                    false => crate::sandboxes::claim(key, &asked),
                }
            })
            .transpose()?;
        let _turn = self.take_turn(&found.id).await?;
        let record = self.reread_any(&found.id, which).await?;
        let record = self.settled(&record).await?;
        require_settled(&record, "take a snapshot of")?;
        let wish = Wish {
            name: request.name,
            memory: request.memory,
            durable: request.durable,
            ..Wish::default()
        };
        let taken = self.take_now(&record, &wish, key.as_ref()).await?;
        if taken.snapshot.deleted_at.is_some() {
            return Err(crate::sandboxes::key_reused("for a snapshot that is gone"));
        }
        Ok(taken)
    }

    /// A snapshot of a build's sandbox, which goes when nobody needs it.
    pub(crate) async fn take_step(
        &self,
        principal: &Principal,
        id: &SandboxId,
        memory: bool,
    ) -> Result<SnapshotRecord, ControlError> {
        principal.require(Scope::Manage)?;
        let (control, id) = (self.clone(), id.clone());
        self.to_the_end(async move {
            let _turn = control.take_turn(&id).await?;
            let record = control.reread_any(&id, id.as_str()).await?;
            let record = control.settled(&record).await?;
            require_settled(&record, "take a snapshot of")?;
            let wish = Wish {
                kind: cove_model::SnapshotKind::Build,
                memory,
                ..Wish::default()
            };
            Ok(control.take_now(&record, &wish, None).await?.snapshot)
        })
        .await
    }

    async fn reread_any(&self, id: &SandboxId, which: &str) -> Result<SandboxRecord, ControlError> {
        let found = self.store().any_sandbox(id).await?;
        found
            .filter(|record| record.deleted_at.is_none())
            .ok_or_else(|| ControlError::not_found("sandbox", which))
    }
}

/// Ids have an underscore, so no name looks like one.
pub(crate) fn check_snapshot_name(name: Option<&str>) -> Result<(), ControlError> {
    match name {
        // The API's own word in the place of a snapshot's name.
        Some("import") => Err(ControlError::invalid("name: 'import' is reserved")),
        Some(name) => Ok(check_name(name)?),
        None => Ok(()),
    }
}
