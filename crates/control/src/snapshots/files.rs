//! Snapshots as files, and as images.

use std::pin::Pin;
use std::task::{Context, Poll};

use async_recursion::async_recursion as boxed;
use cove_model::{Placement, SandboxSpec, SnapshotId};
use cove_runner_api::{GuestStream, ImageJob, RunnerError};
use cove_store::{
    ObjectCopy, Scope, SnapshotChange, SnapshotFacts, SnapshotKind, SnapshotRecord, SnapshotState,
};

use tokio::io::{AsyncRead, ReadBuf};

use super::take::{FIRST_HOLD_MB, name_taken, told};
use super::{check_snapshot_name, no_snapshot};
use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::guards::Guard;
use crate::principal::Principal;

/// What came of an import.
#[derive(Debug, Clone)]
pub struct Imported {
    pub snapshot: SnapshotRecord,
    /// Why the memory in the file was left out, when it was.
    pub memory_refused: Option<String>,
}

/// Nobody takes the snapshot off its host, where a deletion waits for readers, while this is read.
struct Exported {
    stream: GuestStream,
    _held: Guard,
}

impl AsyncRead for Exported {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl Control {
    /// Needs `use`: the file has everything that is inside. Read it to its end.
    #[boxed]
    pub async fn export_snapshot(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(SnapshotRecord, GuestStream), ControlError> {
        let outcome = async {
            principal.require(Scope::Use)?;
            let row = self.find_snapshot(principal, which).await?;
            let held = self.0.guards.hold(&row.id).await?;
            let row = self.bring_back_for_copy(principal, row).await?;
            let stream = self
                .runner(&row.host)
                .await?
                .export_snapshot(&row.id, false)
                .await?;
            let stream = tokio::io::join(
                Exported {
                    stream,
                    _held: held,
                },
                tokio::io::sink(),
            );
            let stream = GuestStream::Other(Box::new(stream));
            Ok::<_, ControlError>((row, stream))
        }
        .await;
        // The stream itself must not be looked at while the record is written.
        match outcome {
            Ok(found) => {
                let operation = Operation::new("snapshot.export", found.0.id.as_str());
                self.conclude(principal, operation, Ok(())).await?;
                Ok(found)
            }
            Err(error) => {
                let operation = Operation::new("snapshot.export", which);
                self.conclude(principal, operation, Err(error)).await
            }
        }
    }

    /// Needs `manage`. Reads `file` to its end; what is not a whole and honest export is refused.
    #[boxed]
    pub async fn import_snapshot(
        &self,
        principal: &Principal,
        name: Option<String>,
        file: GuestStream,
    ) -> Result<Imported, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let id = SnapshotId::random();
            let outcome = control.import(&principal, &id, name, file).await;
            let operation = Operation::new("snapshot.import", id.as_str());
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn import(
        &self,
        principal: &Principal,
        id: &SnapshotId,
        name: Option<String>,
        file: GuestStream,
    ) -> Result<Imported, ControlError> {
        principal.require(Scope::Manage)?;
        check_snapshot_name(name.as_deref())?;
        let row = SnapshotRecord {
            id: id.clone(),
            org: principal.org.clone(),
            host: self.choose_host(&Placement::default())?,
            name: name.clone(),
            sandbox: None,
            parent: None,
            kind: SnapshotKind::Import,
            state: SnapshotState::Making,
            memory: false,
            spec: SandboxSpec::default(),
            rolled_back_to: None,
            object_copy: ObjectCopy::None,
            on_host: true,
            facts: SnapshotFacts::default(),
            held_disk_mb: FIRST_HOLD_MB,
            created_at: self.now(),
            created_steady: self.steady(),
            deleted_at: None,
        };
        let _held = self.0.guards.hold(id).await?;
        let inserted = self.store().create_snapshot(&row, None).await;
        inserted.map_err(|error| name_taken(error, name.as_deref()))?;
        let imported = async {
            let runner = self.runner(&row.host).await?;
            runner.import_snapshot(id.clone(), file).await
        };
        let imported = match imported.await {
            Ok(imported) => imported,
            Err(error) => {
                self.give_up_snapshot(&row, &error).await;
                return Err(error.into());
            }
        };
        // Where it was taken and what it grew from means nothing here, and it is untrusted.
        let view = cove_runner_api::SnapshotView {
            parent: None,
            ..imported.snapshot
        };
        // Nobody can begin from it, nor make a template of it, before all that is known of it is written and it is
        // known to stay.
        let change = SnapshotChange {
            spec: Some(stranger_spec(&view.spec)).filter(|spec| spec.check().is_ok()),
            ..told(&row, &view)
        };
        let measured = self.store().change_snapshot(id, &change).await?;
        self.refuse_beyond_quota(&measured).await?;
        let snapshot = self.keep_snapshot(&row, &view).await?;
        Ok(Imported {
            snapshot,
            memory_refused: imported.memory_refused,
        })
    }

    /// How large a file is becomes known only once it is in.
    async fn refuse_beyond_quota(&self, row: &SnapshotRecord) -> Result<(), ControlError> {
        let org = self.store().organisation(&row.org).await?;
        let Some(org) = org.filter(|org| org.used.disk_mb > org.quota.disk_mb) else {
            return Ok(());
        };
        self.delete_snapshot_now(row).await?;
        Err(ControlError::new(
            ErrorCode::QuotaExceeded,
            format!(
                "the snapshot needs {} MiB, and the organisation's quota of disk (MiB) is {}",
                row.held_disk_mb, org.quota.disk_mb
            ),
        )
        .hint("delete snapshots or sandboxes, or have the quota raised"))
    }

    /// Needs `manage`. Makes a snapshot an image of its own; answers at once with a job to poll.
    #[boxed]
    pub async fn image_from_snapshot(
        &self,
        principal: &Principal,
        which: &str,
        name: &str,
    ) -> Result<ImageJob, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let (which, name) = (which.to_owned(), name.to_owned());
        self.to_the_end(async move {
            let outcome = control.try_image_from(&principal, &which, &name).await;
            let mut operation = Operation::new("image.add", name);
            operation.detail = Some(format!("from {which}"));
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn try_image_from(
        &self,
        principal: &Principal,
        which: &str,
        name: &str,
    ) -> Result<ImageJob, ControlError> {
        principal.require(Scope::Manage)?;
        cove_model::spec::check_name(name)?;
        let row = self.find_snapshot(principal, which).await?;
        let _held = self.0.guards.hold(&row.id).await?;
        let row = self.bring_back_for_copy(principal, row).await?;
        if !self.may_use(principal, &row).await? {
            return Err(ControlError::new(
                ErrorCode::UnfitHost,
                "the host of the snapshot is reserved for others",
            )
            .hint("a durable snapshot can be made an image on another host"));
        }
        let known = self.list_images(principal).await?;
        if known
            .iter()
            .any(|image| image.names.iter().any(|n| n == name))
        {
            return Err(ControlError::new(
                ErrorCode::AlreadyExists,
                format!("an image named '{name}' exists already"),
            )
            .hint("choose another name, or remove that image first"));
        }
        let owner = self.image_owner(&principal.org).await?;
        // Names on the host are everybody's, so an organisation's own begin with it.
        let on_host = match principal.home {
            true => name.to_owned(),
            false => format!("{}/{name}", principal.org.as_str().replace('_', "-")),
        };
        let job = self
            .runner(&row.host)
            .await?
            .image_from_snapshot(&row.id, &on_host, owner)
            .await;
        let job = job.map_err(|error| match error {
            RunnerError::NotFound { .. } => no_snapshot(which),
            other => other.into(),
        })?;
        self.follow_job(principal, &row.host, job, name, principal.home)
            .await
    }
}

/// What of untrusted settings is worth keeping as defaults: nothing that grants or names.
fn stranger_spec(told: &SandboxSpec) -> SandboxSpec {
    SandboxSpec {
        image: told.image.clone(),
        resources: told.resources.clone(),
        env: told.env.clone(),
        user: told.user.clone(),
        workdir: told.workdir.clone(),
        no_new_privs: told.no_new_privs,
        isolation: told.isolation.clone(),
        accel: told.accel,
        ..SandboxSpec::default()
    }
}
