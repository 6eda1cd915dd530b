//! Builds of templates from Dockerfiles.
//!
//! A build is a row, a task and a log. The row is written before anything is made, and names the build; its sandboxes
//! have names that only this build uses. So whatever a crash leaves is found by the row at the next start, and removed
//! (`recover`). A step is a change of a sandbox's disk and a snapshot of it; the cache of an organisation knows the
//! snapshot by a hash of all that the step depends on (`cove_template::key`).
//!
//! The context is a tar archive that the caller sends. It is written to a file without a name, and only its headers are
//! read here; each file goes back out into a sandbox of its organisation, which writes it (`context`, `copying`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cove_model::spec::{check_env, check_name};
use cove_model::template::check_tag;
use cove_model::{BuildId, BuildState, NetworkPolicy, OrgId, SandboxSpec};
use cove_store::{BuildRecord, SandboxRef, Scope};
use cove_template::ignore::Ignore;
use cove_template::{Dockerfile, Variables};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;
use crate::shares::Sharing;
use crate::work::OwnWork;

mod archive;
mod context;
mod copying;
mod log;
mod run;
mod sources;
mod start;
mod uploads;

pub use context::ContextUpload;
pub use log::{BuildEvent, BuildLog, StepState};
pub use start::StartCommand;
pub(crate) use uploads::Uploads;
pub use uploads::{BuildFileLink, BuildFileUpload};

/// Of builds that are over, logs of so many of one organisation are kept in memory.
const LOGS_KEPT: usize = 4;
/// And so many in all.
const LOGS_KEPT_ALL: usize = 64;
/// How long a build waits for its context to begin.
const CONTEXT_WAIT: Duration = Duration::from_secs(600);
/// How a build that was under way when the server ended is reported.
const INTERRUPTED: &str = "the server was restarted during the build; start it again";

type Over = Arc<dyn Fn(SandboxSpec) -> Result<SandboxSpec, ControlError> + Send + Sync>;

/// A build as its caller asks for it.
pub struct CreateBuild {
    /// Of the template.
    pub name: String,
    /// Empty: `latest`.
    pub tags: Vec<String>,
    pub dockerfile: String,
    /// The text of `.dockerignore`.
    pub ignore: String,
    pub args: BTreeMap<String, String>,
    /// The stage to build; absent: the last.
    pub target: Option<String>,
    /// What steps may reach.
    pub network: NetworkPolicy,
    /// Run every step, whatever earlier builds made.
    pub no_cache: bool,
    /// Ask registries for images that are here already.
    pub pull: bool,
    /// Run this before the template's memory is captured.
    pub start: Option<StartCommand>,
    /// Puts the template's defaults over its settings. Sandboxes that run steps have its limits too.
    pub over: Over,
}

/// A build whose instructions somebody else has read, in place of a Dockerfile's text.
pub struct BuildSteps {
    /// The build has this id; it must be new.
    pub id: BuildId,
    pub file: Dockerfile,
    /// Names of uploads. The files of each are in the context, in a directory of that name.
    pub uploads: Vec<String>,
    /// Steps of this line and later ones run whatever earlier builds made.
    pub fresh_from: Option<u32>,
    /// How long one ready check may take.
    pub check_max: Duration,
}

/// What is left of a request once it is checked.
struct Plan {
    fresh_from: Option<u32>,
    check_max: Duration,
    file: Dockerfile,
    ignore: Ignore,
    variables: Variables,
    stages: Vec<usize>,
    request: CreateBuild,
}

/// One build of this process.
struct Live {
    id: BuildId,
    org: OrgId,
    record: Mutex<BuildRecord>,
    log: BuildLog,
    cancel: CancellationToken,
    /// Taken by whoever sends the context.
    begin: Mutex<Option<context::Arrival>>,
    /// Goes with the file that the context is in: more than this one are there while it is open.
    place: Arc<()>,
}

impl Live {
    fn state(&self) -> BuildState {
        self.record.lock().state
    }

    /// Whether it takes a place among the builds under way. One that is over does so until its context's file is
    /// closed, so that uploads which go on slowly cannot fill the disk.
    fn is_under_way(&self) -> bool {
        !self.state().is_over() || Arc::strong_count(&self.place) > 1
    }
}

/// Builds of all organisations, and what one has in any case.
pub const BUILDS: Sharing = Sharing::new(cove_limits::BUILDS_RUNNING_ALL_MAX, 1);

/// What one organisation may have under way when others have so many.
fn share_of_builds(others: usize) -> usize {
    BUILDS.share(others).min(cove_limits::BUILDS_RUNNING_MAX)
}

#[derive(Default)]
pub(crate) struct Builds(Mutex<HashMap<BuildId, Arc<Live>>>);

impl Builds {
    /// Refuses one more of an organisation that has its share.
    fn enter(&self, live: &Arc<Live>) -> Result<(), ControlError> {
        let mut builds = self.0.lock();
        let running = builds.values().filter(|live| live.is_under_way());
        let (own, all) = running.fold((0, 0), |(own, all), other| {
            (own + usize::from(other.org == live.org), all + 1)
        });
        let full = |text: String| {
            Err(ControlError::new(ErrorCode::LimitReached, text)
                .hint("wait for a build to end, or cancel one")
                .retry_after(5))
        };
        if own >= share_of_builds(all - own) {
            return full(format!("{own} builds of this organisation are under way"));
        }
        builds.insert(live.id.clone(), Arc::clone(live));
        Ok(())
    }

    fn get(&self, org: &OrgId, id: &BuildId) -> Option<Arc<Live>> {
        let found = self.0.lock().get(id).map(Arc::clone);
        found.filter(|live| live.org == *org)
    }

    /// Forgets the oldest that are over.
    fn tidy(&self) {
        let mut builds = self.0.lock();
        let mut over: Vec<_> = builds
            .values()
            .filter(|live| !live.is_under_way())
            .map(|live| {
                (
                    live.record.lock().created_at,
                    live.org.clone(),
                    live.id.clone(),
                )
            })
            .collect();
        over.sort();
        let mut of: HashMap<OrgId, usize> = HashMap::new();
        for (rank, (_, org, id)) in over.into_iter().rev().enumerate() {
            let own = of.entry(org).or_default();
            *own += 1;
            if *own > LOGS_KEPT || rank >= LOGS_KEPT_ALL {
                builds.remove(&id);
            }
        }
    }
}

fn no_build(given: &str) -> ControlError {
    ControlError::not_found("build", given).hint("see `cove template builds`")
}

/// What is wrong with a Dockerfile, for its author.
fn wrong(error: &cove_template::Error) -> ControlError {
    ControlError::invalid(format!("Dockerfile: {error}"))
}

/// The names of a build's sandboxes: the one that steps change, and one that files are copied from.
fn sandbox_names(id: &BuildId) -> [String; 2] {
    let part = id.as_str().trim_start_matches("bld_");
    [format!("build-{part}"), format!("build-{part}-from")]
}

pub(crate) fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl CreateBuild {
    fn check(self, steps: Option<&BuildSteps>) -> Result<Plan, ControlError> {
        check_name(&self.name)?;
        for tag in &self.tags {
            check_tag(tag)?;
        }
        let most = cove_model::template::TEMPLATE_TAGS_MAX;
        if self.tags.len() > most {
            return Err(ControlError::invalid(format!("tags: at most {most}")));
        }
        for (field, text) in [("dockerfile", &self.dockerfile), ("ignore", &self.ignore)] {
            if text.len() > cove_limits::DOCKERFILE_MAX {
                return Err(ControlError::invalid(format!(
                    "{field}: at most {} bytes",
                    cove_limits::DOCKERFILE_MAX
                )));
            }
        }
        if self.args.len() > cove_limits::BUILD_ARGS_MAX {
            return Err(ControlError::invalid(format!(
                "args: at most {}",
                cove_limits::BUILD_ARGS_MAX
            )));
        }
        check_env("args", &self.args)?;
        self.network.check()?;
        if let Some(start) = &self.start {
            start.check()?;
        }
        let file = match steps {
            Some(steps) => steps.file.clone(),
            None => Dockerfile::parse(&self.dockerfile).map_err(|error| wrong(&error))?,
        };
        let ignore = Ignore::parse(&self.ignore).map_err(ControlError::invalid)?;
        let variables = Variables::new(self.args.clone(), arch());
        let stages = file
            .needed(self.target.as_deref(), &variables, arch())
            .map_err(|error| wrong(&error))?;
        let count: usize = stages
            .iter()
            .map(|stage| file.stages[*stage].instructions.len())
            .sum();
        if count > cove_limits::BUILD_STEPS_MAX {
            return Err(ControlError::invalid(format!(
                "Dockerfile: at most {} instructions",
                cove_limits::BUILD_STEPS_MAX
            )));
        }
        Ok(Plan {
            fresh_from: steps.and_then(|steps| steps.fresh_from),
            check_max: steps.map_or(start::CHECK_MAX, |steps| steps.check_max),
            file,
            ignore,
            variables,
            stages,
            request: self,
        })
    }
}

impl Control {
    /// Needs `manage`. The build begins once its context is there.
    pub async fn create_build(
        &self,
        principal: &Principal,
        request: CreateBuild,
    ) -> Result<BuildRecord, ControlError> {
        self.record_build(principal, request, None).await
    }

    /// Needs `manage`. The same of instructions and uploads, which are all that the build needs: it begins at once.
    pub async fn build_from_steps(
        &self,
        principal: &Principal,
        request: CreateBuild,
        steps: BuildSteps,
    ) -> Result<BuildRecord, ControlError> {
        self.record_build(principal, request, Some(steps)).await
    }

    async fn record_build(
        &self,
        principal: &Principal,
        request: CreateBuild,
        steps: Option<BuildSteps>,
    ) -> Result<BuildRecord, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let name = request.name.clone();
            let outcome = control.begin_build(&principal, request, steps).await;
            let target = match &outcome {
                Ok(record) => record.id.to_string(),
                Err(_) => name,
            };
            let operation = Operation::new("template.build", target);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn begin_build(
        &self,
        principal: &Principal,
        request: CreateBuild,
        steps: Option<BuildSteps>,
    ) -> Result<BuildRecord, ControlError> {
        principal.require(Scope::Manage)?;
        let plan = request.check(steps.as_ref())?;
        self.check_reach(principal, &plan.request.network)?;
        let uploads = match &steps {
            Some(steps) => Some(self.uploads_of(&principal.org, &steps.uploads)?),
            None => None,
        };
        let id = steps.map_or_else(BuildId::random, |steps| steps.id);
        let record = BuildRecord {
            id: id.clone(),
            org: principal.org.clone(),
            name: plan.request.name.clone(),
            state: BuildState::Waiting,
            error: None,
            template: None,
            steps: 0,
            cached: 0,
            created_at: self.now(),
            finished_at: None,
        };
        let (begin, context) = oneshot::channel();
        let live = Arc::new(Live {
            id: id.clone(),
            org: principal.org.clone(),
            record: Mutex::new(record.clone()),
            log: BuildLog::default(),
            cancel: self.0.tasks.closing.child_token(),
            begin: Mutex::new(Some(begin)),
            place: Arc::default(),
        });
        self.0.builds.enter(&live)?;
        let begun = async {
            // Before its row, so that no other process takes it for one that was left.
            let work = self.take_work(id.as_str(), live.cancel.clone()).await?;
            let put = self.store().put_build(&record, cove_limits::BUILDS_KEPT);
            if let Err(error) = put.await {
                work.end().await;
                return Err(error.into());
            }
            Ok::<_, ControlError>(work)
        };
        let work = match begun.await {
            Ok(work) => work,
            Err(error) => {
                self.0.builds.0.lock().remove(&id);
                return Err(error);
            }
        };
        if let Some(uploads) = uploads {
            let (directory, live) = (self.config().build_dir.clone(), Arc::clone(&live));
            let begin = live.begin.lock().take();
            self.0.tasks.changes.spawn_blocking(move || {
                let context = uploads::assemble(
                    directory,
                    &uploads,
                    cove_limits::BUILD_CONTEXT_MAX as u64,
                    &live.cancel,
                    Arc::clone(&live.place),
                );
                // Nobody waits for it any more where the build is over.
                begin.and_then(|begin| begin.send(context).ok());
            });
        }
        let (control, principal) = (self.clone(), principal.clone());
        self.0.tasks.changes.spawn(async move {
            control
                .build_to_the_end(&principal, &live, plan, context, work)
                .await;
        });
        Ok(record)
    }

    /// Waits for the context, runs the build, and leaves nothing of it but its result.
    async fn build_to_the_end(
        &self,
        principal: &Principal,
        live: &Arc<Live>,
        plan: Plan,
        context: oneshot::Receiver<Result<context::Context, ControlError>>,
        work: OwnWork,
    ) {
        let context = tokio::select! {
            context = context => context
                .unwrap_or_else(|_| Err(ControlError::invalid("the context did not arrive"))),
            () = live.cancel.cancelled() => Err(cancelled()),
            () = tokio::time::sleep(CONTEXT_WAIT) => Err(ControlError::new(
                ErrorCode::TimedOut,
                "the context did not arrive in time",
            )),
        };
        live.begin.lock().take();
        let outcome = match context {
            Err(error) => Err(error),
            Ok(context) => {
                live.record.lock().state = BuildState::Running;
                let timer = {
                    let cancel = live.cancel.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_secs(cove_limits::BUILD_TIME_MAX_S))
                            .await;
                        cancel.cancel();
                    })
                };
                let ran = self.run_build(principal, live, plan, context).await;
                let timed_out = timer.is_finished();
                timer.abort();
                match ran {
                    Err(error) if timed_out && is_cancelled(&error) => Err(ControlError::new(
                        ErrorCode::TimedOut,
                        format!(
                            "the build took more than {} seconds",
                            cove_limits::BUILD_TIME_MAX_S
                        ),
                    )),
                    outcome => outcome,
                }
            }
        };
        self.remove_build_sandboxes(&live.org, &live.id).await;
        // The server is ending: the next start reports it.
        if self.0.tasks.closing.is_cancelled() && outcome.is_err() {
            return;
        }
        let record = {
            let mut record = live.record.lock();
            record.finished_at = Some(self.now());
            match outcome {
                Ok(template) => {
                    record.state = BuildState::Done;
                    record.template = Some(template);
                }
                Err(error) if is_cancelled(&error) => record.state = BuildState::Cancelled,
                Err(error) => {
                    record.state = BuildState::Failed;
                    record.error = Some(match &error.hint {
                        Some(hint) => format!("{}; {hint}", error.message),
                        None => error.message.clone(),
                    });
                    if error.code == ErrorCode::Internal {
                        tracing::error!(build = %live.id, error = ?error, "a build failed");
                    }
                }
            }
            record.clone()
        };
        if let Err(error) = self
            .store()
            .put_build(&record, cove_limits::BUILDS_KEPT)
            .await
        {
            tracing::error!(%error, build = %live.id, "cannot record the end of a build");
        }
        work.end().await;
        live.log.end();
        self.0.builds.tidy();
    }

    /// Removes what a build has of sandboxes, by their names. What cannot be removed now is, in the end: the intent is
    /// in the row.
    async fn remove_build_sandboxes(&self, org: &OrgId, id: &BuildId) {
        for name in sandbox_names(id) {
            let removed = async {
                let found = self.store().sandbox(org, SandboxRef::Name(&name)).await?;
                let Some(found) = found else { return Ok(()) };
                let _turn = self.lock_sandbox(&found.id).await?;
                match self.store().sandbox(org, SandboxRef::Id(&found.id)).await? {
                    Some(record) => self.delete_now(&record, None).await,
                    None => Ok::<(), ControlError>(()),
                }
            };
            if let Err(error) = removed.await {
                tracing::warn!(%error, build = %id, sandbox = name, "cannot remove a build's sandbox; retrying later");
            }
        }
    }

    /// Ends what an earlier process of this installation was building.
    pub(crate) async fn recover_builds(&self) -> Result<(), ControlError> {
        self.end_builds(true).await
    }

    /// Ends what another control process was building that has gone silent.
    pub(crate) async fn recover_others_builds(&self) -> Result<(), ControlError> {
        self.end_builds(false).await
    }

    async fn end_builds(&self, own: bool) -> Result<(), ControlError> {
        for mut record in self.store().unfinished_builds().await? {
            let id = record.id.as_str();
            if self.0.builds.get(&record.org, &record.id).is_some()
                || self.is_own_work(id).await? != own
                || self.is_others_work(id).await?
            {
                continue;
            }
            // If its process was only hung, it learns by this that the build is over.
            let work = self.take_work(id, CancellationToken::new()).await?;
            // Its process may have finished it since the list was read.
            let now = self.store().build(&record.org, &record.id).await?;
            if now.is_none_or(|now| now.finished_at.is_some()) {
                work.end().await;
                continue;
            }
            self.remove_build_sandboxes(&record.org, &record.id).await;
            record.state = BuildState::Failed;
            record.error = Some(INTERRUPTED.into());
            record.finished_at = Some(self.now());
            self.store()
                .put_build(&record, cove_limits::BUILDS_KEPT)
                .await?;
            work.end().await;
        }
        Ok(())
    }

    fn build_id(which: &str) -> Result<BuildId, ControlError> {
        which.parse().map_err(|_| no_build(which))
    }

    /// Needs `manage`. The context of a build that waits for it.
    pub async fn build_context(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<ContextUpload, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = control.find_context(&principal, &which).await;
            let operation = Operation::new("template.build_context", which);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn find_context(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<ContextUpload, ControlError> {
        principal.require(Scope::Manage)?;
        let id = Self::build_id(which)?;
        let Some(live) = self.0.builds.get(&principal.org, &id) else {
            // One of an earlier process, or none.
            self.get_build(principal, which).await?;
            return Err(ControlError::conflict(
                "the build is not waiting for a context",
            ));
        };
        let begin = live.begin.lock().take();
        let begin = begin
            .ok_or_else(|| ControlError::conflict("the build is not waiting for a context"))?;
        ContextUpload::new(self.config().build_dir.clone(), live, begin)
    }

    /// Needs `read`.
    pub async fn get_build(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<BuildRecord, ControlError> {
        principal.require(Scope::Read)?;
        let id = Self::build_id(which)?;
        if let Some(live) = self.0.builds.get(&principal.org, &id) {
            return Ok(live.record.lock().clone());
        }
        let found = self.store().build(&principal.org, &id).await?;
        found.ok_or_else(|| no_build(which))
    }

    /// Needs `read`. Newest first; as many as are remembered.
    pub async fn list_builds(
        &self,
        principal: &Principal,
    ) -> Result<Vec<BuildRecord>, ControlError> {
        principal.require(Scope::Read)?;
        let most = cove_limits::BUILDS_KEPT + cove_limits::BUILDS_RUNNING_MAX as u32;
        let mut found = self.store().builds(&principal.org, most).await?;
        for record in &mut found {
            if let Some(live) = self.0.builds.get(&principal.org, &record.id) {
                *record = live.record.lock().clone();
            }
        }
        Ok(found)
    }

    /// Needs `manage`. Answers with the build as it is; one that is over stays as it is.
    pub async fn cancel_build(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<BuildRecord, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = async {
                principal.require(Scope::Manage)?;
                let id = Self::build_id(&which)?;
                if let Some(live) = control.0.builds.get(&principal.org, &id) {
                    live.cancel.cancel();
                }
                control.get_build(&principal, &which).await
            };
            let outcome = outcome.await;
            let operation = Operation::new("template.build_cancel", which);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `read`. The log of a build of this process, from its beginning; empty for one that is over for long.
    pub async fn build_log(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Option<BuildLog>, ControlError> {
        self.get_build(principal, which).await?;
        let id = Self::build_id(which)?;
        let live = self.0.builds.get(&principal.org, &id);
        Ok(live.map(|live| live.log.clone()))
    }

    /// Needs `manage`. Forgets the states that builds of the organisation keep; answers how many.
    pub async fn clear_build_cache(&self, principal: &Principal) -> Result<u64, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let outcome = async {
                principal.require(Scope::Manage)?;
                Ok(control.store().clear_steps(&principal.org).await?)
            };
            let outcome = outcome.await;
            let operation = Operation::new("template.build_cache_clear", "all");
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }
}

const CANCELLED: &str = "the build was cancelled";

fn cancelled() -> ControlError {
    ControlError::conflict(CANCELLED)
}

fn is_cancelled(error: &ControlError) -> bool {
    error.code == ErrorCode::Conflict && error.message == CANCELLED
}

impl From<cove_template::Error> for ControlError {
    fn from(error: cove_template::Error) -> Self {
        wrong(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn organisations_that_build_all_they_can_leave_room_for_the_next() {
        let mut held = 0;
        let shares: Vec<usize> = (0..6)
            .map(|_| {
                let share = share_of_builds(held);
                held += share;
                share
            })
            .collect();
        assert_eq!(shares, [2, 2, 2, 1, 1, 1]);
    }
}
