//! Taking one, and giving one up.

use cove_model::SnapshotId;
use cove_runner_api::{RunnerError, SnapshotRequest, SnapshotView};
use cove_store::{
    IdempotencyKey, ObjectCopy, SandboxChange, SandboxRecord, SnapshotChange, SnapshotCreated,
    SnapshotFacts, SnapshotKind, SnapshotRecord, SnapshotState, StoreError,
};
use tokio::time::{Instant, sleep};

use super::Taken;
use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::sandboxes::{LOOK_EVERY, key_reused};

/// What a snapshot that is not measured yet holds of the disk quota. Whoever is beyond it gets no more.
pub(super) const FIRST_HOLD_MB: u64 = 1;
/// How often a request looks again when the one it would repeat has just failed.
const REPLAYS_MAX: u32 = 3;

/// A snapshot to be taken.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub kind: SnapshotKind,
    pub name: Option<String>,
    pub memory: bool,
    /// Only when something was written since the last one.
    pub unless_unchanged: bool,
    /// It is to be in object storage too.
    pub durable: bool,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            kind: SnapshotKind::Manual,
            name: None,
            memory: false,
            unless_unchanged: false,
            durable: false,
        }
    }
}

pub(crate) fn facts(view: &SnapshotView) -> SnapshotFacts {
    SnapshotFacts {
        image: Some(view.image.clone()),
        exclusive_bytes: view.exclusive_bytes,
        shared_bytes: view.shared_bytes,
        memory_bytes: view.memory_bytes,
        stopped_us: view.stopped_us,
        unfit: view.unfit.clone(),
    }
}

/// What a snapshot costs its organisation: what only it holds, and its part of what only snapshots do.
pub(super) fn held_bytes(view: &SnapshotView) -> u64 {
    view.exclusive_bytes.saturating_add(view.counted_bytes)
}

pub(crate) fn held_mb(view: &SnapshotView) -> u64 {
    held_bytes(view).div_ceil(1 << 20)
}

impl Control {
    pub(super) fn new_row(&self, of: &SandboxRecord, kind: SnapshotKind) -> SnapshotRecord {
        SnapshotRecord {
            id: SnapshotId::random(),
            org: of.org.clone(),
            host: of.host.clone(),
            name: None,
            sandbox: Some(of.id.clone()),
            parent: of.head.clone(),
            kind,
            state: SnapshotState::Making,
            memory: false,
            spec: of.spec.clone(),
            rolled_back_to: None,
            object_copy: ObjectCopy::None,
            on_host: true,
            facts: SnapshotFacts::default(),
            held_disk_mb: FIRST_HOLD_MB,
            created_at: self.now(),
            created_steady: self.steady(),
            deleted_at: None,
        }
    }

    /// For whoever holds the sandbox's lock. One that an earlier request took and that is gone since is
    /// answered too, as gone.
    pub(crate) async fn take_now(
        &self,
        of: &SandboxRecord,
        wish: &Wish,
        key: Option<&IdempotencyKey>,
    ) -> Result<Taken, ControlError> {
        let row = SnapshotRecord {
            name: wish.name.clone(),
            memory: wish.memory,
            object_copy: match wish.durable {
                true => ObjectCopy::Uploading,
                false => ObjectCopy::None,
            },
            ..self.new_row(of, wish.kind)
        };
        let _held = self.0.guards.hold(&row.id).await?;
        for _ in 0..REPLAYS_MAX {
            let inserted = self.store().create_snapshot(&row, key).await;
            match inserted.map_err(|error| name_taken(error, wish.name.as_deref()))? {
                SnapshotCreated::New => {
                    return Ok(Taken {
                        snapshot: self.make_snapshot(&row, wish).await?,
                        replayed: false,
                    });
                }
                SnapshotCreated::KeyReused => return Err(key_reused("for another request")),
                SnapshotCreated::Replayed(first) => {
                    // Its maker is gone: the sandbox's lock is ours. The host may still be at it.
                    let deadline = Instant::now() + self.config().change_wait;
                    while let Err(error) = self.settle_snapshot(&first).await {
                        if !error.passes() || Instant::now() >= deadline {
                            return Err(error);
                        }
                        sleep(LOOK_EVERY).await;
                    }
                    let found = self.store().any_snapshot(&first).await?;
                    if let Some(snapshot) = found {
                        return Ok(Taken {
                            snapshot,
                            replayed: true,
                        });
                    }
                }
            }
        }
        Err(key_reused("for a snapshot that could not be taken"))
    }

    async fn make_snapshot(
        &self,
        row: &SnapshotRecord,
        wish: &Wish,
    ) -> Result<SnapshotRecord, ControlError> {
        let Some(sandbox) = &row.sandbox else {
            return Err(ControlError::internal("a snapshot of nothing"));
        };
        let request = SnapshotRequest {
            id: row.id.clone(),
            sandbox: sandbox.clone(),
            memory: wish.memory,
            unless_unchanged: wish.unless_unchanged,
        };
        let made = async {
            let (runner, _slot) = self.runner_in_turn(&row.host, &row.org).await?;
            match runner.snapshot(request).await {
                // The id is ours alone, so this is our own earlier try.
                Err(RunnerError::AlreadyExists { .. }) => runner.get_snapshot(&row.id).await,
                outcome => outcome,
            }
        };
        match made.await {
            Ok(view) => {
                let kept = self.keep_snapshot(row, &view).await?;
                self.move_head(&kept).await?;
                Ok(kept)
            }
            Err(error) => {
                self.give_up_snapshot(row, &error).await;
                Err(error.into())
            }
        }
    }

    /// Writes down what the host made.
    pub(super) async fn keep_snapshot(
        &self,
        row: &SnapshotRecord,
        view: &SnapshotView,
    ) -> Result<SnapshotRecord, ControlError> {
        let change = SnapshotChange {
            state: Some(SnapshotState::Ready),
            ..told(row, view)
        };
        let kept = self.store().change_snapshot(&row.id, &change).await?;
        self.meter_snapshot(&kept, Some(held_bytes(view))).await;
        Ok(kept)
    }

    /// The sandbox's state grows from this snapshot now, or from where it was rolled back to.
    pub(super) async fn move_head(&self, kept: &SnapshotRecord) -> Result<(), ControlError> {
        let Some(sandbox) = &kept.sandbox else {
            return Ok(());
        };
        let head = kept.rolled_back_to.as_ref().unwrap_or(&kept.id);
        let change = SandboxChange {
            head: Some(Some(head.clone())),
            ..SandboxChange::default()
        };
        let moved = self
            .store()
            .change_sandbox(sandbox, &change, self.now())
            .await;
        match moved {
            // A sandbox that is gone meanwhile stands nowhere.
            Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Undoes what the host refused or failed at; what it never answered is settled later.
    pub(super) async fn give_up_snapshot(&self, row: &SnapshotRecord, error: &RunnerError) {
        let clean = match error {
            // The host has not answered, or is at it still for whoever asked before a restart.
            RunnerError::Unreachable { .. } | RunnerError::InUse { .. } => false,
            RunnerError::Internal { .. } | RunnerError::GuestUnreachable { .. } => {
                self.delete_snapshot_on_host(row).await.is_ok()
            }
            _ => true,
        };
        if !clean {
            self.mark_host_stale(&row.host);
            return;
        }
        if let Err(error) = self.store().forget_snapshot(&row.id).await {
            tracing::error!(%error, snapshot = %row.id, "cannot remove the record of a failed snapshot");
        }
    }

    pub(crate) async fn delete_snapshot_on_host(
        &self,
        row: &SnapshotRecord,
    ) -> Result<(), RunnerError> {
        self.runner(&row.host).await?.delete_snapshot(&row.id).await
    }

    /// The intent is durable before the host is asked, so it is carried out in the end.
    pub(crate) async fn delete_snapshot_now(
        &self,
        row: &SnapshotRecord,
    ) -> Result<(), ControlError> {
        let intent = SnapshotChange {
            state: Some(SnapshotState::Deleting),
            ..SnapshotChange::default()
        };
        self.store().change_snapshot(&row.id, &intent).await?;
        self.finish_delete_snapshot(row).await
    }

    /// Whether it is deleted: one that a template begins from stays.
    pub(super) async fn delete_unless_kept(
        &self,
        row: &SnapshotRecord,
    ) -> Result<bool, ControlError> {
        let intent = SnapshotChange {
            state: Some(SnapshotState::Deleting),
            ..SnapshotChange::default()
        };
        match self.store().change_snapshot(&row.id, &intent).await {
            Err(StoreError::Kept { .. }) => return Ok(false),
            outcome => outcome?,
        };
        self.finish_delete_snapshot(row).await?;
        Ok(true)
    }

    pub(super) async fn finish_delete_snapshot(
        &self,
        row: &SnapshotRecord,
    ) -> Result<(), ControlError> {
        if let Err(error) = self.delete_snapshot_on_host(row).await {
            let error = ControlError::from(error);
            return Err(match error.code {
                ErrorCode::RunnerUnreachable => {
                    error.hint("the deletion is noted and will be carried out")
                }
                _ => error,
            });
        }
        self.bury_snapshot(row).await
    }

    /// Nothing of it is left on the host.
    pub(super) async fn bury_snapshot(&self, row: &SnapshotRecord) -> Result<(), ControlError> {
        let gone = SnapshotChange {
            deleted_at: Some(self.now()),
            ..SnapshotChange::default()
        };
        match self.store().change_snapshot(&row.id, &gone).await {
            Ok(_) => {
                self.meter_snapshot(row, None).await;
                Ok(())
            }
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// What a row says of a snapshot that the host has made.
pub(super) fn told(row: &SnapshotRecord, view: &SnapshotView) -> SnapshotChange {
    SnapshotChange {
        parent: Some(row.parent.clone().or_else(|| view.parent.clone())),
        memory: Some(view.memory),
        facts: Some(facts(view)),
        held_disk_mb: Some(held_mb(view)),
        ..SnapshotChange::default()
    }
}

pub(super) fn name_taken(error: StoreError, name: Option<&str>) -> ControlError {
    match (&error, name) {
        (StoreError::Exists { .. }, Some(name)) => ControlError::new(
            ErrorCode::AlreadyExists,
            format!("a snapshot named '{name}' exists already"),
        )
        .hint("choose another name, or delete that snapshot first"),
        (StoreError::Quota { .. }, _) => ControlError::from(error)
            .hint("delete snapshots or sandboxes, or have the quota raised"),
        _ => error.into(),
    }
}
