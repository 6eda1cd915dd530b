//! Forking: one automatic snapshot of the parent, and then children from it, side by side.

use std::collections::BTreeMap;

use cove_model::spec::is_reserved_label;
use cove_model::{Grant, HostId, IdlePolicy, SandboxId, SandboxSpec};
use cove_runner_api::FromSnapshot;
use cove_store::{SandboxRecord, Scope, SnapshotKind, SnapshotRecord, SnapshotState};
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;

use super::{Children, Wish, require_settled};
use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;
use crate::sandboxes::{CreateSandbox, Sandbox, claim};
use cove_limits::FORKS_MAX;

/// Children made side by side.
const AT_ONCE: usize = 8;

#[derive(Debug, Clone)]
pub struct ForkRequest {
    pub count: u32,
    /// The children go on with the parent's processes; without, they boot from its disk.
    pub memory: bool,
    pub children: Children,
    /// Two requests with the same key within a day are one, down to each child.
    pub idempotency_key: Option<String>,
    /// A sandbox asks for itself: see [`Control::restrain`].
    pub by_itself: bool,
}

impl Default for ForkRequest {
    fn default() -> Self {
        Self {
            count: 1,
            memory: false,
            children: Children::default(),
            idempotency_key: None,
            by_itself: false,
        }
    }
}

impl ForkRequest {
    fn check(&self) -> Result<(), ControlError> {
        if !(1..=FORKS_MAX).contains(&self.count) {
            return Err(ControlError::invalid(format!(
                "count must be between 1 and {FORKS_MAX}"
            )));
        }
        for index in 0..self.count {
            super::check_snapshot_name(self.name(index).as_deref())?;
        }
        if let Some(lease) = &self.children.lease {
            lease.check()?;
        }
        Ok(cove_model::spec::check_labels(&self.children.labels)?)
    }

    /// The only child has the name itself; several are numbered.
    fn name(&self, index: u32) -> Option<String> {
        let name = self.children.name.as_ref()?;
        Some(match self.count {
            1 => name.clone(),
            _ => format!("{name}-{}", index + 1),
        })
    }

    fn spec(&self, parent: &SandboxSpec, index: u32) -> SandboxSpec {
        let mut labels: BTreeMap<_, _> = parent.labels.clone();
        labels.extend(self.children.labels.clone());
        SandboxSpec {
            name: self.name(index),
            labels,
            lifecycle: IdlePolicy {
                lease: match self.by_itself {
                    // What a sandbox makes of itself lives no longer than it does.
                    true => parent.lifecycle.lease.clone(),
                    false => self.children.lease.clone(),
                },
                ..parent.lifecycle.clone()
            },
            ..parent.clone()
        }
    }

    /// A key of the child's own. It has a space, which no caller's key has.
    fn key(&self, index: u32) -> Option<String> {
        let key = self.idempotency_key.as_ref()?;
        let hash = hex::encode(Sha256::digest(key.as_bytes()));
        Some(format!("fork {hash} {index}"))
    }
}

/// Each child by itself.
type Forked = Vec<Result<Sandbox, ControlError>>;

/// Whether the same request may succeed later.
fn may_be_repeated(child: &Result<Sandbox, ControlError>) -> bool {
    let code = child.as_ref().err().map(|error| error.code);
    matches!(
        code,
        Some(ErrorCode::RunnerUnreachable | ErrorCode::Internal | ErrorCode::TimedOut)
    )
}

impl Control {
    pub(super) async fn fork(
        &self,
        principal: &Principal,
        which: &str,
        request: ForkRequest,
    ) -> Result<Vec<Result<Sandbox, ControlError>>, ControlError> {
        principal.require(Scope::Manage)?;
        request.check()?;
        let found = self.find(principal, which).await?;
        let key = self.fork_key(&request, found.id.as_str())?;
        let turn = self.take_turn(&found.id).await?;
        let parent = self.reread_any(&found.id, which).await?;
        let parent = self.settled(&parent).await?;
        require_settled(&parent, "fork")?;
        let mut spec = match request.by_itself {
            true => self.restrain(&parent)?,
            false => parent.spec.clone(),
        };
        spec.secrets = self.inherited_secrets(&parent.org, &spec).await?;
        let wish = Wish {
            kind: SnapshotKind::Fork,
            memory: request.memory,
            ..Wish::default()
        };
        let taken = self.take_now(&parent, &wish, key.as_ref()).await?;
        let held = self.0.guards.hold(&taken.snapshot.id).await?;
        drop(turn);
        let children = self
            .make_children(principal, &taken.snapshot, &spec, &request)
            .await;
        drop(held);
        // Whoever repeats the request gets the children that are missing from the same state.
        let repeatable = request.idempotency_key.is_some() && children.iter().any(may_be_repeated);
        if !repeatable {
            self.drop_fork_point(taken.snapshot);
        }
        Ok(children)
    }

    /// What a sandbox may make of itself: the children are granted nothing, since each could make more, and end
    /// when it would have. Labels that it may have set itself are not passed on: tokens of the children would
    /// sign them.
    fn restrain(&self, parent: &SandboxRecord) -> Result<SandboxSpec, ControlError> {
        let mut spec = parent.spec.clone();
        if let Some(identity) = &mut spec.identity {
            if identity.allows(Grant::Label) {
                spec.labels.retain(|key, _| is_reserved_label(key));
            }
            identity.grants.clear();
        }
        if let Some(lease) = &mut spec.lifecycle.lease {
            lease.lapsed = None;
        }
        spec.secrets.clear();
        spec.lifecycle.max_lifetime_s = match self.lifetime_left(parent) {
            Some(0) => {
                return Err(ControlError::new(
                    ErrorCode::Conflict,
                    "the sandbox has reached its maximum lifetime",
                ));
            }
            left => left,
        };
        Ok(spec)
    }

    pub(super) async fn fork_from(
        &self,
        principal: &Principal,
        which: &str,
        request: ForkRequest,
    ) -> Result<Vec<Result<Sandbox, ControlError>>, ControlError> {
        principal.require(Scope::Manage)?;
        request.check()?;
        let from = self.find_snapshot(principal, which).await?;
        super::require_memory(&from, request.memory)?;
        let _held = self.0.guards.hold(&from.id).await?;
        let spec = self.defaults_from(&from);
        let brought = self.bring_back_for(principal, from.clone(), &spec).await;
        let from = match brought {
            Ok(brought) => brought,
            Err(error) => {
                let host = std::slice::from_ref(&from.host);
                let fits = self.check_placement(principal, &spec.placement, host);
                if request.idempotency_key.is_none() || fits.await.is_ok() {
                    return Err(error);
                }
                // Each child by itself is refused, or is the one of an earlier request.
                from
            }
        };
        Ok(self.make_children(principal, &from, &spec, &request).await)
    }

    /// Writes down how a fork ended. Children of one that is answered as failed as a whole go, unless a
    /// repeat with the same key will find them.
    pub(super) async fn conclude_fork(
        &self,
        principal: &Principal,
        operation: Operation,
        outcome: Result<Forked, ControlError>,
        keyed: bool,
    ) -> Result<Forked, ControlError> {
        let made: Vec<(HostId, SandboxId)> = match &outcome {
            Ok(children) if !keyed => children
                .iter()
                .flatten()
                .map(|child| (child.host.clone(), child.id.clone()))
                .collect(),
            _ => Vec::new(),
        };
        let concluded = self.conclude(principal, operation, outcome).await;
        if concluded.is_err() {
            for (host, id) in &made {
                self.retract(host, id);
            }
        }
        concluded
    }

    fn fork_key(
        &self,
        request: &ForkRequest,
        of: &str,
    ) -> Result<Option<cove_store::IdempotencyKey>, ControlError> {
        let Some(key) = request.idempotency_key.clone() else {
            return Ok(None);
        };
        let lease = &request.children.lease;
        let asked = (
            "fork",
            of,
            request.count,
            request.memory,
            &request.children.name,
            &request.children.labels,
        );
        match lease {
            // In this form, so that keys of earlier versions keep their meaning.
            None => claim(key, &asked).map(Some),
            Some(lease) => claim(key, &(asked, lease)).map(Some),
        }
    }

    /// In the order of their numbers.
    async fn make_children(
        &self,
        principal: &Principal,
        from: &SnapshotRecord,
        parent: &SandboxSpec,
        request: &ForkRequest,
    ) -> Vec<Result<Sandbox, ControlError>> {
        let mut made: Vec<Option<Result<Sandbox, ControlError>>> = Vec::new();
        made.resize_with(request.count as usize, || None);
        let mut unfinished = BTreeMap::new();
        let mut running = JoinSet::new();
        let mut waiting = 0..request.count;
        loop {
            while running.len() < AT_ONCE
                && let Some(index) = waiting.next()
            {
                let (control, principal) = (self.clone(), principal.clone());
                let child = CreateSandbox {
                    spec: request.spec(parent, index),
                    from: Some(FromSnapshot {
                        snapshot: from.id.clone(),
                        memory: request.memory,
                    }),
                    idempotency_key: request.key(index),
                    asked: None,
                };
                let (id, host) = (SandboxId::random(), from.host.clone());
                unfinished.insert(index as usize, id.clone());
                running.spawn(async move {
                    let outcome = async {
                        let _turn = control.lock_sandbox(&id).await?;
                        let outcome = control.begin(&principal, child, vec![host], &id).await;
                        control.conclude_create(&principal, &id, outcome).await
                    };
                    let outcome = outcome.await;
                    (index as usize, outcome.map(|created| created.sandbox))
                });
            }
            match running.join_next().await {
                None => break,
                Some(Ok((index, outcome))) => {
                    unfinished.remove(&index);
                    made[index] = Some(outcome);
                }
                Some(Err(error)) => tracing::error!(%error, "a fork was interrupted"),
            }
        }
        // A child that was cut off is answered as failed, so nothing of it may stay.
        for id in unfinished.values() {
            self.retract(&from.host, id);
        }
        let cut_off = || Err(ControlError::internal("cannot finish the fork"));
        made.into_iter()
            .map(|one| one.unwrap_or_else(cut_off))
            .collect()
    }

    /// Children share nothing with it but blocks of the disk, so it has done its work. Its row stays
    /// for the timeline.
    fn drop_fork_point(&self, snapshot: SnapshotRecord) {
        if snapshot.deleted_at.is_some() || snapshot.state != SnapshotState::Ready {
            return;
        }
        let control = self.clone();
        self.0.tasks.changes.spawn(async move {
            if let Err(error) = control.delete_snapshot_now(&snapshot).await {
                tracing::warn!(%error, snapshot = %snapshot.id, "cannot delete the snapshot of a fork; retrying later");
            }
        });
    }
}
