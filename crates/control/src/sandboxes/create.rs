//! Creating: the row first, then the host, and nothing left of a create that failed.

use std::time::Duration;

use cove_model::{HostId, IdlePolicy, Placement, SandboxId, SandboxSpec, State};
use cove_runner_api::{CreateRequest, FromSnapshot, RunnerError, SandboxView};
use cove_store::{
    Created as Inserted, Desired, Holding, HostFacts, IdempotencyKey, Moment, SandboxChange,
    SandboxRecord, Scope, StoreError,
};
use sha2::{Digest, Sha256};

use super::{CreateSandbox, Created, is_doomed, observed};
use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::guards::Guard;
use crate::keys::check_label;
use crate::principal::Principal;
use cove_limits::IDEMPOTENCY_KEY_MAX;

/// Why a sandbox was deleted whose create was answered as failed after the host had made it.
pub(crate) const RETRACTED: &str = "its create could not be recorded";
/// How often a create looks again when the one it would repeat has just failed.
const REPLAYS_MAX: u32 = 4;
/// How long a repeated create waits for one that the host goes on with after its caller's end.
const CUT_OFF_WAIT: Duration = Duration::from_secs(10);
const CUT_OFF_LOOK: Duration = Duration::from_millis(20);

impl Control {
    pub(super) async fn create_audited(
        &self,
        principal: &Principal,
        id: SandboxId,
        request: CreateSandbox,
    ) -> Result<Created, ControlError> {
        // Until its record is written: a repeat of the request waits for that, because a create whose record
        // fails is deleted again.
        let _turn = self.lock_sandbox(&id).await?;
        let outcome = async {
            principal.require(Scope::Manage)?;
            match self.prepare_create(principal, &request).await {
                Ok((hosts, _held)) => self.begin(principal, request, hosts, &id).await,
                Err(error) => {
                    let (key, _) = claims(&request)?;
                    self.replay_or(principal, key.as_ref(), error).await
                }
            }
        }
        .await;
        self.conclude_create(principal, &id, outcome).await
    }

    /// The hosts to ask, in order, and a guard of the snapshot that it begins from.
    async fn prepare_create(
        &self,
        principal: &Principal,
        request: &CreateSandbox,
    ) -> Result<(Vec<HostId>, Option<Guard>), ControlError> {
        let mut hosts = Vec::new();
        let mut held = None;
        if let Some(from) = &request.from {
            let origin = self.check_origin(principal, from).await?;
            // Nobody collects the snapshot while it is begun from.
            held = Some(self.0.guards.hold(&from.snapshot).await?);
            let origin = self
                .bring_back_for(principal, origin, &request.spec)
                .await?;
            hosts.push(origin.host);
        }
        if !request.spec.volumes.is_empty() {
            let wanted = self
                .check_volumes(principal, &request.spec, held.is_some())
                .await?;
            match wanted {
                Some(wanted) if held.is_some() && !hosts.contains(&wanted) => {
                    return Err(ControlError::invalid(
                        "volumes: they are on another host than the snapshot",
                    ));
                }
                Some(wanted) => hosts = vec![wanted],
                None => {}
            }
        }
        if hosts.is_empty() {
            hosts = self.place(principal, &request.spec).await?;
        }
        Ok((hosts, held))
    }

    /// A repeated request gets the sandbox of the first, whatever has become of hosts and permissions meanwhile.
    async fn replay_or(
        &self,
        principal: &Principal,
        key: Option<&IdempotencyKey>,
        error: ControlError,
    ) -> Result<Created, ControlError> {
        let Some(key) = key else {
            return Err(error);
        };
        match self.store().claimed_sandbox(&principal.org, key).await? {
            Some(Inserted::Replayed(first)) => self.replay(&first).await?.ok_or(error),
            Some(Inserted::KeyReused) => Err(key_reused("for another request")),
            Some(Inserted::New) | None => Err(error),
        }
    }

    /// Writes down how a create ended. One that cannot be written down is answered as failed, so nothing
    /// of it may stay.
    pub(crate) async fn conclude_create(
        &self,
        principal: &Principal,
        id: &SandboxId,
        outcome: Result<Created, ControlError>,
    ) -> Result<Created, ControlError> {
        let target = match &outcome {
            Ok(created) => created.sandbox.id.as_str(),
            Err(_) => id.as_str(),
        };
        let made = match &outcome {
            Ok(created) if !created.replayed => Some(created.sandbox.host.clone()),
            _ => None,
        };
        let mut operation = Operation::new("sandbox.create", target);
        operation.detail = outcome
            .as_ref()
            .ok()
            .and_then(|it| exposed_in(&it.sandbox.spec));
        let concluded = self.conclude(principal, operation, outcome).await;
        if let (Err(_), Some(host)) = (&concluded, made) {
            self.retract(&host, id);
        }
        concluded
    }

    /// What it writes is durable once the caller has concluded, and the caller holds the lock of the new sandbox
    /// until then. A snapshot to begin from is one that the caller may use.
    pub(crate) async fn begin(
        &self,
        principal: &Principal,
        mut request: CreateSandbox,
        hosts: Vec<HostId>,
        id: &SandboxId,
    ) -> Result<Created, ControlError> {
        principal.require(Scope::Manage)?;
        request.spec.check()?;
        self.check_reach(principal, &request.spec.network)?;
        check_identity(principal, &request.spec)?;
        let mut others = hosts.iter().cloned();
        let host = others
            .next()
            .ok_or_else(|| ControlError::new(ErrorCode::NoCapacity, "no host can take it"))?;
        let at = self.host_of(&host)?;
        let (mut idempotency, mut by_earlier_version) = claims(&request)?;
        // After the key's claim: the same request may come to another tier when it is repeated.
        let settled = async {
            self.check_placement(principal, &request.spec.placement, &hosts)
                .await?;
            self.settle_isolation(principal, &host, &mut request.spec)
                .await
        };
        if let Err(error) = settled.await {
            return self.replay_or(principal, idempotency.as_ref(), error).await;
        }
        self.give_secrets(&principal.org, &request.spec, &at)
            .await?;
        let image = match &request.from {
            None => {
                let given = &request.spec.image;
                let found = self.resolve_image(&principal.org, given).await?;
                if found.is_none() && !self.pulls(&principal.org, given)? {
                    return Err(self.no_image(given));
                }
                found
            }
            Some(_) => Some(request.spec.image.clone()),
        };
        let Moment { at: now, steady } = self.moment();
        let origin = request.from.as_ref().map(|from| from.snapshot.clone());
        let record = SandboxRecord {
            id: id.clone(),
            org: principal.org.clone(),
            host,
            holds: Holding::running(&request.spec.resources),
            spec: request.spec,
            desired: Desired::Running,
            state: State::Creating,
            reason: None,
            generation: 1,
            facts: HostFacts::default(),
            created_at: now,
            created_steady: steady,
            active_steady: steady,
            updated_at: now,
            started_at: None,
            stopped_at: None,
            last_active_at: now,
            deleted_at: None,
            head: origin.clone(),
            origin,
        };
        let from = request.from;
        let mut waited = false;
        for _ in 0..REPLAYS_MAX {
            let inserted = self
                .store()
                .create_sandbox(&record, idempotency.as_ref())
                .await;
            let inserted = match inserted {
                Err(error) if !waited => {
                    // A sandbox that is still to be deleted may hold the name or the quota.
                    waited = true;
                    let freed = match &error {
                        StoreError::Exists { .. } => {
                            let name = record.spec.name.as_deref();
                            self.finish_deletions(&record.org, name).await?
                        }
                        StoreError::Quota { .. } => {
                            self.finish_deletions(&record.org, None).await?
                        }
                        _ => false,
                    };
                    match freed {
                        true => continue,
                        false => Err(error),
                    }
                }
                outcome => outcome,
            };
            match inserted.map_err(|error| name_taken(error, &record))? {
                Inserted::New => {
                    let made = self.make_on(record, others, image, from).await?;
                    let sandbox = made.into();
                    return Ok(Created {
                        sandbox,
                        replayed: false,
                    });
                }
                Inserted::KeyReused if by_earlier_version.is_some() => {
                    idempotency = by_earlier_version.take();
                }
                Inserted::KeyReused => return Err(key_reused("for another request")),
                Inserted::Replayed(first) => {
                    if let Some(created) = self.replay(&first).await? {
                        return Ok(created);
                    }
                }
            }
        }
        Err(key_reused("for a sandbox that is gone"))
    }

    /// Needs `manage`. What an earlier create with this key made, for one whose names stand for nothing any more.
    pub async fn repeated_create(
        &self,
        principal: &Principal,
        idempotency_key: &str,
        asked: &str,
    ) -> Result<Option<Created>, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let key = claim_asked(idempotency_key.to_owned(), asked)?;
        self.to_the_end(async move {
            principal.require(Scope::Manage)?;
            let before = control.store().claimed_sandbox(&principal.org, &key);
            let Some(Inserted::Replayed(first)) = before.await? else {
                return Ok(None);
            };
            let Some(created) = control.replay(&first).await? else {
                return Ok(None);
            };
            let operation = Operation::new("sandbox.create", first.as_str());
            control.conclude(&principal, operation, Ok(())).await?;
            Ok(Some(created))
        })
        .await
    }

    /// The sandbox an earlier request made, once that request is over.
    ///
    /// A row that still says `creating` was left by a process that died: only the host knows what
    /// came of it, and until it has said so the caller is promised nothing.
    async fn replay(&self, first: &SandboxId) -> Result<Option<Created>, ControlError> {
        let _turn = self.lock_sandbox(first).await?;
        let deadline = tokio::time::Instant::now() + CUT_OFF_WAIT;
        loop {
            let found = self.store().any_sandbox(first).await?;
            let Some(record) = found else {
                return Ok(None);
            };
            if self.is_retracted(&record) {
                self.finish_retraction(&record).await?;
                return Ok(None);
            }
            let is_gone = record.deleted_at.is_some();
            let has_failed =
                record.started_at.is_none() || record.reason.as_deref() == Some(RETRACTED);
            if has_failed && (is_gone || is_doomed(&record)) {
                // The first request failed and its key was not freed: a crash came between.
                if !is_gone {
                    self.finish_delete(&record).await?;
                }
                self.store().forget_idempotency(&record.org, first).await?;
                return Ok(None);
            }
            if is_gone {
                return Ok(None);
            }
            if record.state != State::Creating {
                return Ok(Some(Created {
                    sandbox: record.into(),
                    replayed: true,
                }));
            }
            self.settle_locked(&record, None).await?;
            let settled = self.store().any_sandbox(first).await?;
            if settled.is_some_and(|record| record.state == State::Creating) {
                if tokio::time::Instant::now() > deadline {
                    return Err(ControlError::new(
                        ErrorCode::TimedOut,
                        "the first request with this idempotency key is still being carried out",
                    )
                    .hint("ask again in a moment"));
                }
                tokio::time::sleep(CUT_OFF_LOOK).await;
            }
        }
    }

    /// Asks one host after the other, until one does not refuse for lack of room. The row names each host before it
    /// is asked.
    async fn make_on(
        &self,
        mut record: SandboxRecord,
        others: impl Iterator<Item = HostId>,
        image: Option<String>,
        from: Option<FromSnapshot>,
    ) -> Result<SandboxRecord, ControlError> {
        for next in others {
            match self.try_make(&record, image.as_deref(), &from).await {
                Err(Unmade::Refused(error @ RunnerError::NoCapacity { .. })) => {
                    tracing::debug!(sandbox = %record.id, host = %record.host, %error, "asking the next host");
                    let place = async {
                        let at = self.host_of(&next)?;
                        self.give_secrets(&record.org, &record.spec, &at).await?;
                        let placed = self.store().place_sandbox(&record.id, &record.host, &next);
                        Ok::<_, ControlError>(placed.await?)
                    };
                    if let Err(failed) = place.await {
                        tracing::debug!(%failed, host = %next, "cannot ask the next host");
                        self.unmake(&record, &error).await;
                        return Err(error.into());
                    }
                    record.host = next;
                }
                outcome => return self.made_or_unmade(&record, outcome).await,
            }
        }
        let outcome = self.try_make(&record, image.as_deref(), &from).await;
        self.made_or_unmade(&record, outcome).await
    }

    /// Asks the host for a sandbox whose row is there already. Without an image it is pulled first.
    async fn try_make(
        &self,
        record: &SandboxRecord,
        image: Option<&str>,
        from: &Option<FromSnapshot>,
    ) -> Result<SandboxRecord, Unmade> {
        let owner = self.owner_of(&record.org).map_err(Unmade::Other)?;
        let request = |image: &str| CreateRequest {
            owner: Some(owner.clone()),
            id: record.id.clone(),
            spec: SandboxSpec {
                image: image.to_owned(),
                // Leases are between the holder and control.
                lifecycle: IdlePolicy {
                    lease: None,
                    ..record.spec.lifecycle.clone()
                },
                // The host was chosen by it.
                placement: Placement::default(),
                ..record.spec.clone()
            },
            from: from.clone(),
        };
        let made = async {
            let ask = async |image: &str| {
                let (runner, _slot) = self.runner_in_turn(&record.host, &record.org).await?;
                runner.create(request(image)).await
            };
            let mut created = match image {
                Some(image) => ask(image).await,
                None => Err(missing_image(record)),
            };
            if from.is_none()
                && let Err(RunnerError::NotFound { what, .. }) = &created
                && what == "image"
            {
                let image = match self.bring_image(record, image).await {
                    Ok(image) => image,
                    Err(error) => return Ok(Err(error)),
                };
                created = ask(&image).await;
            }
            let made = match created {
                // The id is ours alone, so this is our own earlier try.
                Err(RunnerError::AlreadyExists { .. }) => {
                    self.runner(&record.host).await?.get(&record.id).await?
                }
                outcome => outcome?,
            };
            Ok(Ok(made))
        };
        match made.await {
            // Nothing was asked of the host for this sandbox but its image.
            Ok(Err(error)) => Err(Unmade::Image(error)),
            // Its counters begin with it, so its first figures can wait for the next round.
            Ok(Ok(view)) => match self.keep(record, &view).await {
                Ok(kept) => {
                    match from {
                        Some(_) => self.begin_services(&kept).await,
                        None => self.note_services_begun(&kept),
                    }
                    Ok(kept)
                }
                Err(error) => {
                    // The caller hears that it failed, so it must go. Whether the database has it as running is
                    // unknown: a commit whose answer was lost may have happened. So the host is asked only
                    // after the database has the deletion, or a repeat would find a sandbox without a machine.
                    self.retract(&record.host, &record.id);
                    Err(Unmade::Other(error))
                }
            },
            Err(error) => Err(Unmade::Refused(error)),
        }
    }

    async fn made_or_unmade(
        &self,
        record: &SandboxRecord,
        outcome: Result<SandboxRecord, Unmade>,
    ) -> Result<SandboxRecord, ControlError> {
        match outcome {
            Ok(made) => {
                if made.origin.is_some() {
                    self.furnish_early(&made).await;
                }
                Ok(made)
            }
            Err(Unmade::Image(error)) => {
                self.unmake(record, &missing_image(record)).await;
                Err(error)
            }
            Err(Unmade::Refused(error)) => {
                self.unmake(record, &error).await;
                Err(self.image_hint(error, record))
            }
            Err(Unmade::Other(error)) => Err(error),
        }
    }

    fn image_hint(&self, error: RunnerError, record: &SandboxRecord) -> ControlError {
        match &error {
            RunnerError::NotFound { what, .. } if what == "image" && record.origin.is_none() => {
                self.no_image(&record.spec.image)
            }
            _ => error.into(),
        }
    }

    async fn keep(
        &self,
        record: &SandboxRecord,
        view: &SandboxView,
    ) -> Result<SandboxRecord, ControlError> {
        let change = observed(view, record);
        Ok(self
            .store()
            .note_sandbox(&record.id, &change, self.now())
            .await?)
    }

    /// Undoes a create the host refused, failed at, or never answered.
    async fn unmake(&self, record: &SandboxRecord, error: &RunnerError) {
        let refused = matches!(
            error,
            RunnerError::NoCapacity { .. }
                | RunnerError::Invalid { .. }
                | RunnerError::Unsupported { .. }
                | RunnerError::MissingFeature { .. }
                | RunnerError::NotFound { .. }
                | RunnerError::Unfit { .. }
        );
        let deleted = async { self.runner(&record.host).await?.delete(&record.id).await };
        let clean = refused || deleted.await.is_ok();
        let reason = Some(Some(error.to_string()));
        let now = self.now();
        let change = if clean {
            SandboxChange {
                desired: Some(Desired::Deleted),
                state: Some(State::Gone),
                reason,
                holds: Some(Holding::nothing()),
                deleted_at: Some(now),
                ..SandboxChange::default()
            }
        } else {
            // The host may have it or not; the next reconcile finds out and removes it.
            SandboxChange {
                desired: Some(Desired::Deleted),
                state: Some(State::Deleting),
                reason,
                ..SandboxChange::default()
            }
        };
        let written = self.store().note_sandbox(&record.id, &change, now).await;
        if let Err(error) = written {
            tracing::error!(%error, sandbox = %record.id, "cannot record a failed create");
        }
        let forgotten = self
            .store()
            .forget_idempotency(&record.org, &record.id)
            .await;
        if let Err(error) = forgotten {
            tracing::error!(%error, sandbox = %record.id, "cannot free an idempotency key");
        }
        if !clean {
            self.mark_stale(record);
        }
    }
}

fn missing_image(record: &SandboxRecord) -> RunnerError {
    RunnerError::NotFound {
        what: "image".into(),
        id: record.spec.image.clone(),
    }
}

/// Why there is no sandbox, and what is to be done about its row.
enum Unmade {
    /// The host refused, failed or did not answer.
    Refused(RunnerError),
    /// The host has no image for it.
    Image(ControlError),
    /// The row is taken care of.
    Other(ControlError),
}

/// Services that check tokens take the owner's word for whom a sandbox acts for. Copies of a sandbox that
/// acts for somebody are asked for it too.
fn check_identity(principal: &Principal, spec: &SandboxSpec) -> Result<(), ControlError> {
    let identity = spec.identity.as_ref();
    match identity.and_then(|identity| identity.on_behalf_of.as_ref()) {
        Some(_) => principal.require(Scope::Admin),
        None => Ok(()),
    }
}

/// What a request's key is bound to, and what an earlier version of this program bound it to.
fn claims(
    request: &CreateSandbox,
) -> Result<(Option<IdempotencyKey>, Option<IdempotencyKey>), ControlError> {
    let Some(key) = request.idempotency_key.clone() else {
        return Ok((None, None));
    };
    let resolved = |key: String| match &request.from {
        None => claim(key, &request.spec),
        // In this form, so that keys of earlier versions keep their meaning.
        Some(from) => claim(key, &(&request.spec, (&from.snapshot, from.memory))),
    };
    match &request.asked {
        None => Ok((Some(resolved(key)?), None)),
        Some(asked) => {
            let earlier = resolved(key.clone())?;
            Ok((Some(claim_asked(key, asked)?), Some(earlier)))
        }
    }
}

fn claim_asked(key: String, asked: &str) -> Result<IdempotencyKey, ControlError> {
    claim(key, &("asked", asked))
}

/// Binds a key to what was asked for with it.
pub(crate) fn claim(
    key: String,
    asked: &impl serde::Serialize,
) -> Result<IdempotencyKey, ControlError> {
    check_label("the idempotency key", &key, IDEMPOTENCY_KEY_MAX)?;
    let request = serde_json::to_vec(asked)
        .map_err(|error| ControlError::internal("the request cannot be hashed").because(error))?;
    let hash = Sha256::digest(&request);
    Ok(IdempotencyKey {
        key,
        request_hash: hex::encode(hash),
    })
}

/// For the audit: which values are inside as they are.
fn exposed_in(spec: &SandboxSpec) -> Option<String> {
    let exposed = spec.secrets.iter().filter(|grant| grant.exposed);
    let names: Vec<&str> = exposed.map(|grant| grant.name.as_str()).collect();
    (!names.is_empty()).then(|| format!("exposed secrets: {}", names.join(" ")))
}

pub(crate) fn key_reused(why: &str) -> ControlError {
    ControlError::new(
        ErrorCode::IdempotencyKeyReused,
        format!("the idempotency key was used before {why}"),
    )
    .hint("use a new key for a new request")
}

fn name_taken(error: StoreError, record: &SandboxRecord) -> ControlError {
    match (&error, &record.spec.name) {
        (StoreError::Exists { .. }, Some(name)) => ControlError::new(
            ErrorCode::AlreadyExists,
            format!("a sandbox named '{name}' exists already"),
        )
        .hint("choose another name, or delete that sandbox first"),
        _ => error.into(),
    }
}
