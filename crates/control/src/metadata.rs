//! What sandboxes ask and do about themselves.
//!
//! A host hands over connections that came from inside one sandbox. Which one is known by the listener they
//! came by, and never by what they say: the callers here take the sandbox's id from the host. A sandbox can
//! do what its owner granted in `identity.grants`, to itself, and is audited like its owner.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cove_model::{Grant, IdentitySpec, RateLimit, SandboxId, SnapshotId, Steady, TokenBucket};
use cove_runner_api::{GuestStream, RunnerError};
use cove_store::{Holding, Quota, SandboxRecord, Scope};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;
use crate::identity::{IdentityToken, IdentityTokenRequest, lifetime};
use crate::principal::{Origin, Principal};
use crate::sandboxes::{SandboxPatch, is_doomed};
use crate::snapshots::{ForkRequest, TakeSnapshot};

/// How long a host is asked to wait for the next visitor.
const WAIT_MS: u64 = 20_000;
/// Pause after a failure.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Pause when all who wait have to.
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// Visits served at once, of all sandboxes and of one.
const VISITS_MAX: usize = 256;
const VISITS_EACH: usize = 4;
/// Requests of one sandbox: signing a token takes about a millisecond of CPU.
const RATE: RateLimit = RateLimit {
    per_second: 100.0,
    burst: 200.0,
};
/// Sandboxes whose rates are remembered.
const RATES_MAX: usize = 10_000;

/// Who visits now, and how often each came lately.
#[derive(Default)]
pub(crate) struct Visits {
    present: Mutex<HashMap<SandboxId, usize>>,
    rates: Mutex<HashMap<SandboxId, TokenBucket<Steady>>>,
}

/// One visit under way.
struct Visit {
    control: Control,
    id: SandboxId,
}

impl Visit {
    fn begin(control: &Control, id: &SandboxId) -> Option<Self> {
        let mut present = control.0.visits.present.lock();
        let count = present.entry(id.clone()).or_default();
        if *count >= VISITS_EACH {
            return None;
        }
        *count += 1;
        Some(Self {
            control: control.clone(),
            id: id.clone(),
        })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut present = self.control.0.visits.present.lock();
        if let Some(count) = present.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                present.remove(&self.id);
            }
        }
    }
}

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
        let room = Arc::new(Semaphore::new(VISITS_MAX));
        let mut loops = JoinSet::new();
        for host in self.hosts() {
            let (control, host) = (self.clone(), Arc::clone(host));
            let (room, serve) = (Arc::clone(&room), serve.clone());
            loops.spawn(async move { control.receive_from(&host, &room, serve).await });
        }
        shutdown.cancelled().await;
        loops.abort_all();
    }

    async fn receive_from<F, S>(&self, host: &Host, room: &Arc<Semaphore>, serve: F)
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
            // One of each sandbox in turn, so that none waits for another's.
            for id in &ready {
                let Some(visit) = Visit::begin(self, id) else {
                    continue;
                };
                let Ok(place) = Arc::clone(room).acquire_owned().await else {
                    return;
                };
                let stream = async { host.runner().await?.visitor(id).await };
                let stream = match stream.await {
                    Ok(stream) => stream,
                    Err(RunnerError::NotFound { .. }) => continue,
                    Err(error) => {
                        tracing::debug!(%error, sandbox = %id, "a visitor was lost");
                        continue;
                    }
                };
                taken = true;
                let served = serve(id.clone(), stream);
                tokio::spawn(async move {
                    served.await;
                    drop((visit, place));
                });
            }
            if !taken && !ready.is_empty() {
                tokio::time::sleep(FULL_PAUSE).await;
            }
        }
    }

    /// The sandbox that asks, if it may ask now.
    async fn myself(&self, id: &SandboxId) -> Result<WhoAmI, ControlError> {
        let now = self.moment().steady;
        {
            let mut rates = self.0.visits.rates.lock();
            if rates.len() >= RATES_MAX {
                rates.retain(|_, bucket| !bucket.is_full(now));
            }
            let bucket = rates.entry(id.clone());
            let bucket = bucket.or_insert_with(|| TokenBucket::full(RATE, now));
            if bucket.take(1, now).is_err() {
                return Err(ControlError::new(
                    ErrorCode::RateLimited,
                    "this sandbox asks too often",
                )
                .retry_after(1));
            }
        }
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

    /// The same, and as whom it acts, if its owner granted that.
    async fn granted(
        &self,
        id: &SandboxId,
        grant: Grant,
    ) -> Result<(SandboxRecord, Principal), ControlError> {
        let WhoAmI {
            record, identity, ..
        } = self.myself(id).await?;
        if !identity.allows(grant) {
            return Err(ControlError::new(
                ErrorCode::Forbidden,
                format!("this sandbox was not granted '{}'", grant.as_str()),
            )
            .hint("its owner names grants in identity.grants when it is created"));
        }
        let principal = Principal {
            org: record.org.clone(),
            key: None,
            scopes: vec![Scope::Manage],
            home: &record.org == self.home()?,
            origin: Origin {
                source: Some(format!("sandbox {id}")),
                request_id: None,
            },
        };
        Ok((record, principal))
    }

    pub async fn who_am_i(&self, id: &SandboxId) -> Result<WhoAmI, ControlError> {
        self.myself(id).await
    }

    /// Not audited one by one: a sandbox could fill its organisation's records.
    pub async fn my_token(
        &self,
        id: &SandboxId,
        request: IdentityTokenRequest,
    ) -> Result<IdentityToken, ControlError> {
        let lifetime = lifetime(&request)?;
        let me = self.myself(id).await?;
        self.mint(&me.record, request.audience, lifetime).await
    }

    /// What its organisation may have, and has.
    pub async fn my_quota(&self, id: &SandboxId) -> Result<(Quota, Holding), ControlError> {
        let me = self.myself(id).await?;
        let org = self.store().organisation(&me.record.org).await?;
        let org = org.ok_or_else(|| ControlError::internal("an organisation is missing"))?;
        Ok((org.quota, org.used))
    }

    pub async fn snapshot_myself(
        &self,
        id: &SandboxId,
        name: Option<String>,
    ) -> Result<SnapshotId, ControlError> {
        let (record, principal) = self.granted(id, Grant::Snapshot).await?;
        let request = TakeSnapshot {
            name,
            memory: false,
            idempotency_key: None,
        };
        let taken = self
            .take_snapshot(&principal, record.id.as_str(), request)
            .await?;
        Ok(taken.snapshot.id)
    }

    /// A copy that begins from its disk, with an identity of its own.
    pub async fn fork_myself(&self, id: &SandboxId) -> Result<SandboxId, ControlError> {
        let (record, principal) = self.granted(id, Grant::Fork).await?;
        let forked = self
            .fork_sandbox(&principal, record.id.as_str(), ForkRequest::default())
            .await?;
        let first = forked.into_iter().next();
        let first = first.ok_or_else(|| ControlError::internal("a fork made nothing"))?;
        Ok(first?.id)
    }

    /// Counts as use: its idle policy begins anew.
    pub async fn keep_myself_awake(&self, id: &SandboxId) -> Result<(), ControlError> {
        let (record, _) = self.granted(id, Grant::KeepAwake).await?;
        self.0.in_use.activity.note(&record.id, self.moment());
        Ok(())
    }

    pub async fn label_myself(
        &self,
        id: &SandboxId,
        labels: BTreeMap<String, String>,
    ) -> Result<(), ControlError> {
        let (record, principal) = self.granted(id, Grant::Label).await?;
        let patch = SandboxPatch {
            labels: Some(labels),
            ..SandboxPatch::default()
        };
        self.update_sandbox(&principal, record.id.as_str(), patch)
            .await
            .map(drop)
    }

    /// Answers when it is decided: whoever asks goes with it.
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
