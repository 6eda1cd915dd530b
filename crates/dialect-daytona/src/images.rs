//! Sandboxes from images that have to be built first.
//!
//! A build is one of the control plane's own (`docs/templates.md`). What it makes is a template, which is deleted as
//! soon as the sandbox exists: the organisation's build cache keeps the steps, so the same image is there at once the
//! next time. Until the sandbox exists this module answers for it, under the id that the sandbox will have. Nothing of
//! that outlives the server: a build ends with it, and so does the sandbox that waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use bytes::Bytes;
use cove_control::{
    BuildRecord, Control, ControlError, CreateBuild, ErrorCode, PageRequest, Principal, Sandbox,
    Scope, Source,
};
use cove_dialect::Front;
use cove_model::network::{Entry, NetworkMode};
use cove_model::{
    BuildId, BuildState, HostId, NetworkPolicy, OrgId, SandboxId, SandboxSpec,
    State as SandboxState, Steady,
};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::asking::{Caller, Names};
use crate::build_logs;
use crate::convert::{self, SandboxDto};
use crate::entrypoint;
use crate::refusal::{Answer, Refusal};
use crate::sandboxes::Wanted;
use crate::server_address::ServerAddress;
use crate::wire::BuildInfo;

/// What templates are called that are there for one sandbox only.
pub const TEMPLATE: &str = "daytona-image";
/// What steps of a build may reach, as in every other build that does not say.
const REACH: &str = "preset:packages";
/// Two blocks of zeros: an archive with nothing in it.
const EMPTY_CONTEXT: Bytes = Bytes::from_static(&[0; 1024]);
/// How long a create waits for an image whose steps may all be in the cache.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How often a create that waits for its turn asks for it.
const TURN_EVERY: Duration = Duration::from_millis(500);
/// Sandboxes that wait for a build: of one organisation, and in all.
const WAITING_MAX: usize = 32;
const WAITING_ALL_MAX: usize = 256;
/// Names of snapshots that are remembered while they are built, and after a failure.
const CALLED_MAX: usize = 1024;
/// How long a failed one is shown, and the build of one that exists is known.
const KEPT: Duration = Duration::from_secs(3600);

/// Why images with files of their maker's machine are not built.
pub const NO_CONTEXT: &str = "images with local files are not built here: fetch the files in a step (run_commands), upload them to the sandbox, or build with `cove template build`; see docs/daytona.md, Images";

/// How far one is.
#[derive(Debug, Clone)]
enum Stage {
    Waiting,
    Building(BuildId),
    Made { build: BuildId, cached: bool },
    Failed { build: Option<BuildId>, why: String },
}

impl Stage {
    fn build(&self) -> Option<&BuildId> {
        match self {
            Self::Waiting => None,
            Self::Building(build) | Self::Made { build, .. } => Some(build),
            Self::Failed { build, .. } => build.as_ref(),
        }
    }

    fn is_over(&self) -> bool {
        matches!(self, Self::Made { .. } | Self::Failed { .. })
    }
}

/// A sandbox that its maker knows and that is not there yet.
struct Pending {
    id: SandboxId,
    org: OrgId,
    spec: SandboxSpec,
    asked_at: OffsetDateTime,
    entered: Instant,
    stage: watch::Sender<Stage>,
    doomed: CancellationToken,
}

impl Pending {
    fn shown(&self, place: &ServerAddress, state: &'static str) -> SandboxDto {
        let none = Steady::from_micros(0);
        let as_if = Sandbox {
            id: self.id.clone(),
            org: self.org.clone(),
            host: HostId::random(),
            state: SandboxState::Creating,
            reason: None,
            limits: self.spec.resources.clone(),
            spec: self.spec.clone(),
            image: None,
            created_at: self.asked_at,
            updated_at: self.asked_at,
            started_at: None,
            stopped_at: None,
            last_active_at: self.asked_at,
            created_steady: none,
            active_steady: none,
            generation: 0,
            origin: None,
            head: None,
        };
        let mut dto = convert::sandbox(as_if, place.toolbox());
        dto.state = state;
        dto
    }

    /// Nothing once the control plane knows it, also when it has been deleted since.
    fn now(&self, place: &ServerAddress) -> Option<SandboxDto> {
        match &*self.stage.borrow() {
            Stage::Waiting => Some(self.shown(place, "pending_build")),
            Stage::Building(_) => Some(self.shown(place, "building_snapshot")),
            Stage::Made { .. } => None,
            Stage::Failed { why, .. } => {
                let mut dto = self.shown(place, "build_failed");
                dto.error_reason = Some(why.clone());
                Some(dto)
            }
        }
    }
}

type Turn = tokio::sync::Mutex<()>;

#[derive(Default)]
struct Kept {
    pending: HashMap<SandboxId, Arc<Pending>>,
    turns: HashMap<(OrgId, [u8; 32]), Weak<Turn>>,
    /// What builds of snapshots are called by their makers, the newest last.
    called: VecDeque<(BuildId, String)>,
}

/// Every sandbox that waits for its image.
#[derive(Clone, Default)]
pub struct Images(Arc<Mutex<Kept>>);

impl Images {
    fn enter(&self, org: &OrgId, spec: SandboxSpec) -> Result<Arc<Pending>, Refusal> {
        let mut kept = self.0.lock();
        kept.pending
            .retain(|_, one| !one.stage.borrow().is_over() || one.entered.elapsed() < KEPT);
        let own = kept.pending.values().filter(|one| one.org == *org).count();
        if own >= WAITING_MAX || kept.pending.len() >= WAITING_ALL_MAX {
            // What is over makes room, oldest first.
            let over = |one: &&Arc<Pending>| {
                one.stage.borrow().is_over() && (own < WAITING_MAX || one.org == *org)
            };
            let oldest = kept
                .pending
                .values()
                .filter(over)
                .min_by_key(|one| one.entered);
            let Some(oldest) = oldest.map(|one| one.id.clone()) else {
                let message = "too many sandboxes wait for their images; wait for some to start";
                return Err(Refusal::new(429, "RATE_LIMITED", message));
            };
            kept.pending.remove(&oldest);
        }
        let pending = Arc::new(Pending {
            id: SandboxId::random(),
            org: org.clone(),
            spec,
            asked_at: OffsetDateTime::now_utc(),
            entered: Instant::now(),
            stage: watch::Sender::new(Stage::Waiting),
            doomed: CancellationToken::new(),
        });
        let shared = Arc::clone(&pending);
        kept.pending.insert(pending.id.clone(), shared);
        Ok(pending)
    }

    fn leave(&self, id: &SandboxId) {
        self.0.lock().pending.remove(id);
    }

    fn find(&self, caller: &Principal, which: &str) -> Option<Arc<Pending>> {
        if !caller.allows(Scope::Read) {
            return None;
        }
        let kept = self.0.lock();
        let is_it = |one: &&Arc<Pending>| {
            one.org == caller.org
                && (one.id.as_str() == which || one.spec.name.as_deref() == Some(which))
        };
        let found = kept.pending.values().filter(is_it);
        found.max_by_key(|one| one.entered).cloned()
    }

    /// One at a time of what is the same: the first does the work, the others find it done.
    pub fn turn(&self, org: &OrgId, key: [u8; 32]) -> Arc<Turn> {
        let mut kept = self.0.lock();
        kept.turns.retain(|_, turn| turn.strong_count() > 0);
        let known = kept.turns.entry((org.clone(), key)).or_default();
        if let Some(turn) = known.upgrade() {
            return turn;
        }
        let turn = Arc::new(Turn::default());
        *known = Arc::downgrade(&turn);
        turn
    }

    /// Remembers the name of a snapshot that is built.
    pub fn call(&self, build: BuildId, name: String) {
        let mut kept = self.0.lock();
        kept.called.push_back((build, name));
        if kept.called.len() > CALLED_MAX {
            kept.called.pop_front();
        }
    }

    pub fn name_of(&self, build: &BuildRecord) -> String {
        let kept = self.0.lock();
        let mut called = kept.called.iter().rev();
        let found = called.find(|(id, _)| *id == build.id);
        found.map_or_else(|| build.name.clone(), |(_, name)| name.clone())
    }

    /// The sandbox as its maker sees it, while its image is not there yet or after that failed.
    pub fn shown(
        &self,
        caller: &Principal,
        which: &str,
        place: &ServerAddress,
    ) -> Option<SandboxDto> {
        self.find(caller, which)?.now(place)
    }

    /// Gives up one that is not there yet.
    pub fn delete(
        &self,
        caller: &Principal,
        which: &str,
        place: &ServerAddress,
    ) -> Option<SandboxDto> {
        let found = self.find(caller, which)?;
        if !caller.allows(Scope::Manage) || matches!(*found.stage.borrow(), Stage::Made { .. }) {
            return None;
        }
        found.doomed.cancel();
        self.leave(&found.id);
        Some(found.shown(place, "destroyed"))
    }
}

/// The text of a Dockerfile, where nothing beside it is needed.
pub fn dockerfile(build: &BuildInfo) -> Result<String, Refusal> {
    if build.context_hashes.as_ref().is_some_and(|h| !h.is_empty()) {
        return Err(Refusal::unsupported(NO_CONTEXT));
    }
    let text = build.dockerfile_content.clone().unwrap_or_default();
    let most = cove_limits::DOCKERFILE_MAX;
    if text.trim().is_empty() || text.len() > most {
        return Err(Refusal::invalid(format!(
            "buildInfo: dockerfileContent has 1 to {most} bytes"
        )));
    }
    Ok(text)
}

fn reach() -> Result<NetworkPolicy, ControlError> {
    Ok(NetworkPolicy {
        mode: NetworkMode::Allowlist,
        allow: Some(Entry::list([REACH])?),
        ..NetworkPolicy::default()
    })
}

/// Begins a build without files beside its Dockerfile. `over` puts its limits over the settings.
pub async fn begin(
    control: &Control,
    caller: &Principal,
    name: &str,
    dockerfile: &str,
    over: impl Fn(&mut SandboxSpec) + Send + Sync + 'static,
) -> Result<BuildRecord, ControlError> {
    let request = CreateBuild {
        name: name.to_owned(),
        tags: Vec::new(),
        dockerfile: dockerfile.to_owned(),
        ignore: String::new(),
        args: Default::default(),
        target: None,
        network: reach()?,
        no_cache: false,
        pull: false,
        start: None,
        over: Arc::new(move |mut spec| {
            over(&mut spec);
            Ok(spec)
        }),
    };
    let record = control.create_build(caller, request).await?;
    let id = record.id.as_str();
    let sent = async {
        let mut context = control.build_context(caller, id).await?;
        context.write(EMPTY_CONTEXT).await?;
        context.finish()
    };
    if let Err(error) = sent.await {
        control.cancel_build(caller, id).await.ok();
        return Err(error);
    }
    Ok(record)
}

/// One create, carried on after it was answered.
struct Create {
    front: Front,
    caller: Principal,
    wanted: Wanted,
    dockerfile: String,
    pending: Arc<Pending>,
}

fn given_up() -> ControlError {
    ControlError::new(ErrorCode::Conflict, "the sandbox was deleted")
}

impl Create {
    async fn build(&self) -> Result<BuildRecord, ControlError> {
        let wanted = self.wanted.resources();
        let over = move |spec: &mut SandboxSpec| wanted.put(spec);
        let control = &self.front.control;
        let build = begin(control, &self.caller, TEMPLATE, &self.dockerfile, over).await?;
        self.pending
            .stage
            .send_replace(Stage::Building(build.id.clone()));
        Ok(build)
    }

    /// Begins the build once there is room for it.
    async fn build_in_turn(&self) -> Result<BuildRecord, ControlError> {
        let given_up_at = Instant::now() + Duration::from_secs(cove_limits::BUILD_TIME_MAX_S);
        loop {
            match self.build().await {
                Err(error)
                    if error.code == ErrorCode::LimitReached && Instant::now() < given_up_at =>
                {
                    tokio::time::sleep(TURN_EVERY).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// From a build that has begun to a sandbox; answers whether nothing had to be built.
    async fn finish(&self, build: &BuildRecord) -> Result<bool, ControlError> {
        let (control, caller) = (&self.front.control, &self.caller);
        let id = build.id.as_str();
        let ended = tokio::select! {
            ended = ended(control, caller, id) => ended?,
            () = self.pending.doomed.cancelled() => {
                control.cancel_build(caller, id).await?;
                return Err(given_up());
            }
        };
        let Some(template) = ended.template else {
            let why = ended
                .error
                .unwrap_or_else(|| "the build was cancelled".into());
            return Err(ControlError::invalid(why));
        };
        let made = async {
            let base = control.base(caller, Source::Template(template.to_string()));
            let base = base.await?;
            let spec = self.wanted.over(base.spec);
            let mut spec = spec.map_err(|refusal| ControlError::invalid(refusal.message()))?;
            let record = control.get_template(caller, template.as_str()).await?;
            entrypoint::note(&mut spec, &record)?;
            let request = cove_control::CreateSandbox {
                spec,
                idempotency_key: None,
                asked: None,
                from: base.from,
            };
            let id = self.pending.id.clone();
            control.create_sandbox_as(caller, id, request).await
        };
        let made = made.await;
        let removed = control.delete_template(caller, template.as_str(), false);
        if let Err(error) = removed.await {
            tracing::warn!(%error, %template, "cannot delete the template of an image; trying again with the next one");
        }
        let made = made?;
        if self.pending.doomed.is_cancelled() {
            let id = self.pending.id.as_str();
            control.delete_sandbox(caller, id).await?;
        } else {
            entrypoint::start(&self.front, caller, &made.sandbox).await;
        }
        Ok(ended.steps == ended.cached)
    }

    async fn run(
        self,
        turn: Arc<Turn>,
        begun: Option<(tokio::sync::OwnedMutexGuard<()>, BuildRecord)>,
    ) {
        let work = async {
            let (_turn, build) = match begun {
                Some(begun) => begun,
                None => {
                    let waited = async {
                        let turn = turn.lock_owned().await;
                        Ok::<_, ControlError>((turn, self.build_in_turn().await?))
                    };
                    tokio::select! {
                        waited = waited => waited?,
                        () = self.pending.doomed.cancelled() => return Err(given_up()),
                    }
                }
            };
            let cached = self.finish(&build).await?;
            Ok(Stage::Made {
                build: build.id,
                cached,
            })
        };
        let admission = self.front.control.admission_of(&self.caller);
        // A key that was revoked makes no sandbox: its build is cancelled, as by a deletion.
        let revoked = async {
            admission.ended().await;
            self.pending.doomed.cancel();
            std::future::pending::<()>().await;
        };
        let outcome = tokio::select! {
            outcome = work => outcome,
            () = revoked => return,
            () = self.front.draining.cancelled() => return,
        };
        let stage = outcome.unwrap_or_else(|error: ControlError| Stage::Failed {
            build: self.pending.stage.borrow().build().cloned(),
            why: cove_dialect::refused::message_of(&error),
        });
        self.pending.stage.send_replace(stage);
        self.tidy().await;
    }

    /// Deletes what an earlier process left between a build and its sandbox.
    async fn tidy(&self) {
        let (control, caller) = (&self.front.control, &self.caller);
        let page = PageRequest {
            limit: 50,
            cursor: None,
        };
        let before = OffsetDateTime::now_utc()
            - time::Duration::seconds(cove_limits::BUILD_TIME_MAX_S.cast_signed());
        if let Ok(found) = control.list_templates(caller, Some(TEMPLATE), &page).await {
            for old in found.items.iter().filter(|one| one.created_at < before) {
                control
                    .delete_template(caller, old.id.as_str(), false)
                    .await
                    .ok();
            }
        }
    }
}

/// Waits for the end of a build.
async fn ended(
    control: &Control,
    caller: &Principal,
    id: &str,
) -> Result<BuildRecord, ControlError> {
    if let Some(log) = control.build_log(caller, id).await? {
        let mut at = 0;
        loop {
            let (events, next) = log.next(at).await;
            if events.is_empty() {
                break;
            }
            at = next;
        }
    }
    control.get_build(caller, id).await
}

/// Answers at once if every step is in the cache, else with a sandbox that waits for its image.
pub async fn create(
    front: Front,
    images: &Images,
    caller: Principal,
    place: &ServerAddress,
    wanted: Wanted,
    dockerfile: String,
) -> Answer {
    // What can be refused is refused now, not after the build.
    front.control.expect(&caller, Scope::Manage, None).await?;
    let spec = wanted.over(SandboxSpec::default())?;
    spec.check().map_err(ControlError::from)?;
    if let Some(name) = &spec.name {
        let there = front.control.get_sandbox(&caller, name).await.is_ok();
        if there
            || images
                .find(&caller, name)
                .is_some_and(|one| !one.stage.borrow().is_over())
        {
            let message = format!("a sandbox named '{name}' exists already");
            return Err(Refusal::new(409, "CONFLICT", message));
        }
    }
    let resources = format!("{:?}", wanted.resources());
    let mut hash = Sha256::new();
    hash.update(&resources);
    hash.update(&dockerfile);
    let turn = images.turn(&caller.org, hash.finalize().into());
    let pending = images.enter(&caller.org, spec)?;
    let create = Create {
        front: front.clone(),
        caller: caller.clone(),
        wanted,
        dockerfile,
        pending: Arc::clone(&pending),
    };
    let begun = match Arc::clone(&turn).try_lock_owned() {
        Err(_) => None,
        Ok(held) => match create.build().await {
            Ok(build) => Some((held, build)),
            Err(error) if error.code == ErrorCode::LimitReached => None,
            Err(error) => {
                images.leave(&pending.id);
                return Err(error.into());
            }
        },
    };
    front.sessions.spawn(create.run(turn, begun));
    let mut stage = pending.stage.subscribe();
    let is_there = async {
        let over = stage.wait_for(Stage::is_over).await;
        over.is_ok_and(|stage| matches!(*stage, Stage::Made { cached: true, .. }))
    };
    let is_there = tokio::time::timeout(AT_ONCE, is_there).await == Ok(true);
    let dto = match is_there {
        true => {
            let made = front
                .control
                .get_sandbox(&caller, pending.id.as_str())
                .await?;
            convert::sandbox(made, place.toolbox())
        }
        // The SDKs ask for the log of what waits, and only of that.
        false => pending.shown(place, "pending_build"),
    };
    Ok((StatusCode::OK, axum::Json(dto)).into_response())
}

pub async fn logs_url(
    Extension(images): Extension<Images>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
) -> Answer {
    let found = images.find(&caller, &id).ok_or_else(no_log)?;
    build_logs::url(&place, &format!("/sandbox/{}", found.id))
}

pub async fn logs(
    State(front): State<Front>,
    Extension(images): Extension<Images>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    crate::asking::Query(query): crate::asking::Query<build_logs::Follow>,
) -> Answer {
    let found = images.find(&caller, &id).ok_or_else(no_log)?;
    let mut stage = found.stage.subscribe();
    let begun = async move {
        let begun = stage.wait_for(|stage| stage.is_over() || stage.build().is_some());
        begun.await.ok()?.build().cloned()
    };
    build_logs::stream(&front, caller, begun, query).await
}

fn no_log() -> Refusal {
    Refusal::new(
        404,
        "NOT_FOUND",
        "there is no build of this sandbox; logs are kept for an hour",
    )
}

/// Whether a build is under way or has failed, in the words for snapshots.
pub fn state(record: &BuildRecord) -> &'static str {
    match record.state {
        BuildState::Waiting | BuildState::Running => "building",
        BuildState::Done => "active",
        BuildState::Failed | BuildState::Cancelled => "build_failed",
    }
}
