//! Snapshots, rest and rollback of the host in memory.

use cove_model::{EventKind, SandboxId, SnapshotId, State, lifecycle};
use cove_runner_api::{
    GuestStream, Imported, RollbackRequest, RolledBack, RunnerError, SandboxView, SnapshotRequest,
    SnapshotView, snapshot_file,
};
use tokio::net::UnixStream;

use super::runner::{MemoryRunner, World, missing, push_event};

/// What a snapshot of this host takes of its disk.
const EXCLUSIVE_BYTES: u64 = 3 << 20;

impl MemoryRunner {
    /// Something was written in it.
    pub fn write(&self, id: &SandboxId) {
        if let Some(one) = self.world().sandboxes.get_mut(id) {
            one.changed = true;
        }
    }

    pub fn snapshot_ids(&self) -> Vec<SnapshotId> {
        self.world().snapshots.keys().cloned().collect()
    }

    /// The host forgets a snapshot without a word.
    pub fn lose_snapshot(&self, id: &SnapshotId) {
        self.world().snapshots.remove(id);
    }

    /// The host is at this snapshot, until [`finish_making`](Self::finish_making).
    pub fn begin_making(&self, id: &SnapshotId) {
        self.world().making.insert(id.clone());
    }

    pub fn finish_making(&self, id: &SnapshotId) {
        self.world().making.remove(id);
    }

    pub(super) fn check_made(&self, id: &SnapshotId) -> Result<(), RunnerError> {
        match self.world().making.contains(id) {
            true => Err(RunnerError::InUse {
                message: format!("snapshot {id} is being made"),
            }),
            false => Ok(()),
        }
    }

    /// The next rollback keeps what was, and then fails for good: what was kept is all that is left.
    pub fn break_rollback(&self, error: RunnerError) {
        self.world().broken_rollback = Some(error);
    }

    /// Changes what the host says of a snapshot.
    pub fn measure(&self, id: &SnapshotId, change: impl FnOnce(&mut SnapshotView)) {
        if let Some(view) = self.world().snapshots.get_mut(id) {
            change(view);
        }
    }

    pub(super) fn freeze_now(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        lifecycle::step(self.find(id)?.state, lifecycle::Step::Freeze)?;
        self.set_state(id, State::Frozen, None);
        self.find(id)
    }

    pub(super) fn pause_now(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let state = self.find(id)?.state;
        if state != State::Paused {
            lifecycle::step(state, lifecycle::Step::Pause)?;
            self.set_state(id, State::Paused, None);
        }
        self.find(id)
    }

    pub(super) fn resume_now(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let view = self.find(id)?;
        match view.state {
            State::Running => return Ok(view),
            State::Frozen => {}
            state => {
                lifecycle::step(state, lifecycle::Step::Resume)?;
                self.world().promise(view.limits.memory_mb)?;
            }
        }
        self.set_state(id, State::Running, None);
        self.find(id)
    }

    fn keep(
        &self,
        world: &mut World,
        id: &SnapshotId,
        of: &SandboxId,
        memory: bool,
    ) -> Result<SnapshotView, RunnerError> {
        let one = world.sandboxes.get_mut(of);
        let one = one.ok_or_else(|| missing("sandbox", of.as_str()))?;
        let view = SnapshotView {
            id: id.clone(),
            sandbox: of.clone(),
            parent: one.head.clone(),
            memory: memory || one.view.state == State::Paused,
            image: one.view.image.clone(),
            spec: one.view.spec.clone(),
            created_at: self.clock.now(),
            exclusive_bytes: EXCLUSIVE_BYTES,
            shared_bytes: 1 << 20,
            counted_bytes: 0,
            memory_bytes: if memory { 1 << 20 } else { 0 },
            stopped_us: 1000,
            unfit: None,
            set_aside: None,
        };
        one.head = Some(id.clone());
        one.changed = false;
        world.snapshots.insert(id.clone(), view.clone());
        Ok(view)
    }

    pub(super) fn snapshot_now(
        &self,
        request: SnapshotRequest,
    ) -> Result<SnapshotView, RunnerError> {
        let state = self.find(&request.sandbox)?.state;
        let mut world = self.world();
        if world.snapshots.contains_key(&request.id) {
            return Err(RunnerError::AlreadyExists {
                what: "snapshot".into(),
                id: request.id.to_string(),
            });
        }
        let unchanged = !world.sandboxes[&request.sandbox].changed;
        if request.unless_unchanged && unchanged {
            return Err(RunnerError::Unchanged);
        }
        if request.memory && state == State::Stopped {
            return Err(RunnerError::Conflict {
                request: "capture the memory of".into(),
                state,
            });
        }
        let view = self.keep(&mut world, &request.id, &request.sandbox, request.memory)?;
        let kind = EventKind::Snapshotted {
            snapshot: request.id,
            memory: view.memory,
        };
        push_event(&mut world, self.clock.as_ref(), &request.sandbox, kind);
        Ok(view)
    }

    pub(super) fn rollback_now(&self, request: RollbackRequest) -> Result<RolledBack, RunnerError> {
        let RollbackRequest {
            sandbox,
            to,
            keep,
            memory,
        } = request;
        let state = self.find(&sandbox)?.state;
        lifecycle::step(state, lifecycle::Step::Rollback)?;
        let kept = {
            let mut world = self.world();
            let target = world.snapshots.get(&to);
            let target = target.ok_or_else(|| missing("snapshot", to.as_str()))?;
            if let Some(message) = target.unfit.clone().filter(|_| memory) {
                return Err(RunnerError::Unfit { message });
            }
            let kept = self.keep(&mut world, &keep, &sandbox, false)?;
            if let Some(error) = world.broken_rollback.take() {
                drop(world);
                let reason = format!("the rollback failed: {error}");
                self.set_state(&sandbox, State::Failed, Some(reason));
                return Err(error);
            }
            if let Some(one) = world.sandboxes.get_mut(&sandbox) {
                one.head = Some(to.clone());
            }
            let kind = EventKind::RolledBack { to, kept: keep };
            push_event(&mut world, self.clock.as_ref(), &sandbox, kind);
            kept
        };
        let after = match state {
            State::Stopped | State::Failed if !memory => State::Stopped,
            _ => State::Running,
        };
        self.set_state(&sandbox, after, None);
        Ok(RolledBack {
            sandbox: self.find(&sandbox)?,
            kept,
        })
    }

    pub(super) fn export_now(&self, id: &SnapshotId) -> Result<GuestStream, RunnerError> {
        let view = self.world().snapshots.get(id).cloned();
        let view = view.ok_or_else(|| missing("snapshot", id.as_str()))?;
        let (ours, theirs) = UnixStream::pair().expect("a socket pair can be made");
        tokio::spawn(async move {
            let mut out = ours;
            let view = serde_json::to_vec(&view).expect("a view is always JSON");
            // Whoever stops reading ends this.
            let _ = write_file(&mut out, &view).await;
        });
        Ok(GuestStream::Unix(theirs))
    }

    pub(super) async fn import_now(
        &self,
        id: SnapshotId,
        mut file: GuestStream,
    ) -> Result<Imported, RunnerError> {
        let invalid = |message: &str| RunnerError::Invalid {
            message: message.into(),
        };
        let body = read_file(&mut file).await;
        let body = body.map_err(|_| invalid("this is not an exported snapshot"))?;
        let told: SnapshotView =
            serde_json::from_slice(&body).map_err(|_| invalid("the file is damaged"))?;
        let snapshot = SnapshotView {
            id: id.clone(),
            memory: false,
            ..told.clone()
        };
        self.world().snapshots.insert(id, snapshot.clone());
        Ok(Imported {
            snapshot,
            memory_refused: told
                .memory
                .then(|| "it is not signed by a trusted key".to_owned()),
        })
    }
}

/// In the outer form of the engine's files, with one section and no signature.
async fn write_file(out: &mut UnixStream, view: &[u8]) -> std::io::Result<()> {
    snapshot_file::write_head(out).await?;
    for (kind, bytes) in [(1, view), (snapshot_file::END, &[])] {
        snapshot_file::write_begin(out, kind).await?;
        snapshot_file::write_bytes(out, bytes).await?;
        snapshot_file::write_end(out, &[kind; snapshot_file::CHECKSUM_BYTES]).await?;
    }
    Ok(())
}

async fn read_file(file: &mut GuestStream) -> std::io::Result<Vec<u8>> {
    let mut sections = snapshot_file::Sections::begin(file).await?;
    let mut body = Vec::new();
    while let Some(item) = sections.next().await? {
        if let snapshot_file::Item::Bytes(bytes) = item {
            body.extend(bytes);
        }
    }
    Ok(body)
}
