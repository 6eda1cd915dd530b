//! What sandboxes ask and do about themselves.
//!
//! A host hands over connections that came from inside one sandbox. Which one is known by the listener they
//! came by, and never by what they say: the callers here take the sandbox's id from the host. A sandbox can
//! do what its owner granted in `identity.grants`, to itself, and is audited like its owner.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cove_model::spec::is_reserved_label;
use cove_model::{Grant, IdentitySpec, Resources, SandboxId, SnapshotId, State};
use cove_runner_api::{GuestStream, RunnerError};
use cove_store::{SandboxRecord, Scope};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;
use crate::identity::{IdentityToken, IdentityTokenRequest, lifetime};
use crate::principal::{Origin, Principal};
use crate::sandboxes::{SandboxPatch, is_doomed};
use crate::snapshots::{ForkRequest, TakeSnapshot};
use visits::Visit;

pub use visits::PLACES;
pub(crate) use visits::Visits;

mod visits;

/// How long a host is asked to wait for the next visitor.
const WAIT_MS: u64 = 20_000;
/// Pause after a failure.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Pause when all who wait have to.
const FULL_PAUSE: Duration = Duration::from_millis(20);
/// How often labels are put together anew when somebody else changes the sandbox meanwhile.
const LABEL_TRIES: u32 = 3;

/// What a sandbox is told about itself.
#[derive(Debug, Clone)]
pub struct WhoAmI {
    pub record: SandboxRecord,
    pub identity: IdentitySpec,
    /// As in its tokens.
    pub subject: String,
}

impl Control {
    /// Hands every connection from inside a sandbox to `serve`, until `shutdown`.
    pub async fn receive_visitors<F, S>(&self, shutdown: CancellationToken, serve: F)
    where
        F: Fn(SandboxId, GuestStream) -> S + Clone + Send + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let mut loops = JoinSet::new();
        let mut changes = self.0.hosts.changes();
        let mut served: Vec<Arc<Host>> = Vec::new();
        loop {
            served.retain(|host| !host.ended.is_cancelled());
            while loops.try_join_next().is_some() {}
            for host in self.hosts().iter() {
                if served.iter().any(|known| Arc::ptr_eq(known, host)) {
                    continue;
                }
                served.push(Arc::clone(host));
                let (control, host) = (self.clone(), Arc::clone(host));
                let serve = serve.clone();
                loops.spawn(async move {
                    tokio::select! {
                        () = host.ended.cancelled() => {}
                        () = control.receive_from(&host, serve) => {}
                    }
                });
            }
            tokio::select! {
                () = shutdown.cancelled() => break,
                changed = changes.changed() => if changed.is_err() { break },
            }
        }
        loops.abort_all();
    }

    async fn receive_from<F, S>(&self, host: &Host, serve: F)
    where
        F: Fn(SandboxId, GuestStream) -> S + Clone + Send + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        loop {
            let ready = async { host.runner().await?.visitors(WAIT_MS).await };
            let ready = match ready.await {
                Ok(ready) => ready,
                Err(_) => {
                    tokio::time::sleep(FAILURE_PAUSE).await;
                    continue;
                }
            };
            let mut taken = false;
            // One of each sandbox in turn, so that none waits for another's. Whoever has no place stays in its
            // own queue at the host, for a while.
            for id in &ready {
                let visit = match self.begin_visit(host, id).await {
                    Ok(Some(visit)) => Some(visit),
                    // Gone: nobody will ever answer this one.
                    Err(error) if error.code == ErrorCode::NotFound => None,
                    Ok(None) | Err(_) => continue,
                };
                let stream = async { host.runner().await?.visitor(id).await };
                let stream = match stream.await {
                    Ok(stream) => stream,
                    Err(RunnerError::NotFound { .. }) => continue,
                    Err(error) => {
                        tracing::debug!(%error, sandbox = %id, "cannot take over a connection to the metadata endpoint");
                        continue;
                    }
                };
                taken = true;
                let Some(visit) = visit else {
                    continue;
                };
                let served = serve(id.clone(), stream);
                tokio::spawn(async move {
                    served.await;
                    drop(visit);
                });
            }
            if !taken && !ready.is_empty() {
                tokio::time::sleep(FULL_PAUSE).await;
            }
        }
    }

    /// `None` while it has to wait. A node speaks for its own sandboxes only: for others it gets the same answer as
    /// for those that do not exist.
    async fn begin_visit(
        &self,
        host: &Host,
        id: &SandboxId,
    ) -> Result<Option<Visit>, ControlError> {
        let visits = &self.0.visits;
        let remembered = match host.node {
            None => visits.owner(id),
            Some(_) => None,
        };
        let org = match remembered {
            Some(org) => org,
            None if host.node.is_some() => {
                let found = self.store().any_sandbox(id).await?;
                let found = found
                    .filter(|record| record.host == host.id)
                    .ok_or_else(|| ControlError::not_found("sandbox", id.as_str()))?;
                // One that is still being made may go to another host. Afterwards it stays where it is, so whoever
                // visits now comes from the right host to the end of the visit.
                if found.state == State::Creating {
                    return Ok(None);
                }
                found.org
            }
            None => {
                let found = self.store().any_sandbox(id).await?;
                let org = found
                    .ok_or_else(|| ControlError::not_found("sandbox", id.as_str()))?
                    .org;
                visits.remember_owner(id, &org);
                org
            }
        };
        Ok(visits.begin(id, &org, self.steady()))
    }

    /// The sandbox that asks.
    async fn myself(&self, id: &SandboxId) -> Result<WhoAmI, ControlError> {
        let found = self.store().any_sandbox(id).await?;
        let record = found
            .filter(|record| record.deleted_at.is_none() && !is_doomed(record))
            .ok_or_else(|| ControlError::not_found("sandbox", id.as_str()))?;
        let identity = record.spec.identity.clone().ok_or_else(|| {
            ControlError::new(ErrorCode::Forbidden, "this sandbox has no identity")
        })?;
        let issuer = &self.config().identity.issuer;
        let subject = issuer.subject(record.org.as_str(), record.id.as_str());
        Ok(WhoAmI {
            record,
            identity,
            subject,
        })
    }

    /// The same, if its owner granted that.
    async fn myself_with(&self, id: &SandboxId, grant: Grant) -> Result<WhoAmI, ControlError> {
        let me = self.myself(id).await?;
        if !me.identity.allows(grant) {
            return Err(ControlError::new(
                ErrorCode::Forbidden,
                format!("this sandbox was not granted '{}'", grant.as_str()),
            )
            .hint("grants are listed in identity.grants when a sandbox is created"));
        }
        Ok(me)
    }

    /// Refuses a sandbox that was not granted this, before anything else that it sends is read.
    #[boxed]
    pub async fn require_grant(&self, id: &SandboxId, grant: Grant) -> Result<(), ControlError> {
        self.myself_with(id, grant).await.map(drop)
    }

    /// The sandbox and as whom it acts, for a change that it may make now.
    async fn granted(
        &self,
        id: &SandboxId,
        grant: Grant,
    ) -> Result<(SandboxRecord, Principal), ControlError> {
        let record = self.myself_with(id, grant).await?.record;
        if grant != Grant::KeepAwake && !self.0.visits.may_change(id, self.steady()) {
            return Err(ControlError::new(
                ErrorCode::RateLimited,
                "this sandbox changes itself too often",
            )
            .retry_after(1));
        }
        let principal = Principal {
            org: record.org.clone(),
            key: None,
            scopes: vec![Scope::Manage],
            home: &record.org == self.home()?,
            sandbox: None,
            origin: Origin {
                source: Some(format!("sandbox {id}")),
                request_id: None,
            },
        };
        Ok((record, principal))
    }

    #[boxed]
    pub async fn who_am_i(&self, id: &SandboxId) -> Result<WhoAmI, ControlError> {
        self.myself(id).await
    }

    /// Not audited one by one: a sandbox could fill its organisation's records.
    #[boxed]
    pub async fn my_token(
        &self,
        id: &SandboxId,
        request: IdentityTokenRequest,
    ) -> Result<IdentityToken, ControlError> {
        let lifetime = lifetime(&request)?;
        let me = self.myself(id).await?;
        self.mint(&me.record, request.audience, lifetime).await
    }

    /// What it may use itself, and how many seconds it may still live. What its organisation has is not for guests.
    #[boxed]
    pub async fn my_limits(
        &self,
        id: &SandboxId,
    ) -> Result<(Resources, Option<u64>), ControlError> {
        let record = self.myself(id).await?.record;
        let left = self.lifetime_left(&record);
        let limits = record.facts.limits.unwrap_or(record.spec.resources);
        Ok((limits, left))
    }

    /// Seconds until its longest life is over, where its owner set one.
    pub(crate) fn lifetime_left(&self, record: &SandboxRecord) -> Option<u64> {
        let longest = record.spec.lifecycle.max_lifetime_s?;
        let age = self.steady().since(record.created_steady).as_secs();
        Some(longest.saturating_sub(age))
    }

    #[boxed]
    pub async fn snapshot_myself(
        &self,
        id: &SandboxId,
        name: Option<String>,
    ) -> Result<SnapshotId, ControlError> {
        let (record, principal) = self.granted(id, Grant::Snapshot).await?;
        let request = TakeSnapshot {
            durable: false,
            name,
            memory: false,
            idempotency_key: None,
        };
        let taken = self
            .take_snapshot(&principal, record.id.as_str(), request)
            .await?;
        Ok(taken.snapshot.id)
    }

    /// A copy that begins from its disk, with an identity of its own. It is granted nothing and lives no longer
    /// than this one would have.
    #[boxed]
    pub async fn fork_myself(&self, id: &SandboxId) -> Result<SandboxId, ControlError> {
        let (record, principal) = self.granted(id, Grant::Fork).await?;
        let request = ForkRequest {
            by_itself: true,
            ..ForkRequest::default()
        };
        let forked = self
            .fork_sandbox(&principal, record.id.as_str(), request)
            .await?;
        let first = forked.into_iter().next();
        let first = first.ok_or_else(|| ControlError::internal("a fork created no sandbox"))?;
        Ok(first?.id)
    }

    /// Counts as use: its idle policy begins anew.
    #[boxed]
    pub async fn keep_myself_awake(&self, id: &SandboxId) -> Result<(), ControlError> {
        let (record, _) = self.granted(id, Grant::KeepAwake).await?;
        self.0.in_use.activity.note(&record.id, self.moment());
        Ok(())
    }

    /// Replaces its labels, but for those that the server keeps for other APIs.
    #[boxed]
    pub async fn label_myself(
        &self,
        id: &SandboxId,
        labels: BTreeMap<String, String>,
    ) -> Result<(), ControlError> {
        let (mut record, principal) = self.granted(id, Grant::Label).await?;
        if let Some(key) = labels.keys().find(|key| is_reserved_label(key)) {
            return Err(ControlError::invalid(format!(
                "labels: '{}' is reserved; a sandbox cannot set it",
                key.escape_debug()
            )));
        }
        let mut tries = 1;
        loop {
            let kept = record.spec.labels.iter();
            let kept = kept.filter(|(key, _)| is_reserved_label(key));
            let kept = kept.map(|(key, value)| (key.clone(), value.clone()));
            let patch = SandboxPatch {
                labels: Some(labels.clone().into_iter().chain(kept).collect()),
                // Reserved labels that were changed meanwhile must not be put back.
                expected_generation: Some(record.generation),
                ..SandboxPatch::default()
            };
            let updated = self.update_sandbox(&principal, id.as_str(), patch).await;
            match updated {
                Err(error) if error.code == ErrorCode::Stale && tries < LABEL_TRIES => tries += 1,
                other => return other.map(drop),
            }
            record = self.myself_with(id, Grant::Label).await?.record;
        }
    }

    /// Answers when it is decided: whoever asks goes with it.
    #[boxed]
    pub async fn end_myself(&self, id: &SandboxId) -> Result<(), ControlError> {
        let (record, principal) = self.granted(id, Grant::End).await?;
        let control = self.clone();
        self.0.tasks.changes.spawn(async move {
            let ended = control.delete_sandbox(&principal, record.id.as_str()).await;
            if let Err(error) = ended {
                tracing::warn!(%error, sandbox = %record.id, "a sandbox could not end itself");
            }
        });
        Ok(())
    }
}
