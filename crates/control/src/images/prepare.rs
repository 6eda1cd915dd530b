//! Images come by themselves. The first create that needs one and finds it missing has the host build it (the default
//! images) or pull it (references), and waits. Creates that come meanwhile wait for the same job, which one task
//! follows. A pull is for one organisation, with its quota and its share of image jobs. A failed build is remembered
//! for a while, so that creates do not have the host build again and again.

use std::collections::HashMap;
use std::time::Duration;

use cove_model::event::EventKind;
use cove_model::spec::{DEFAULT_IMAGE, INTERPRETER_IMAGE, SCRATCH_IMAGE};
use cove_model::{HostId, OrgId, State, Steady};
use cove_runner_api::{ImageJob, ImageOwner, ImageSource, JobState, RunnerError};
use cove_store::{ImageJobRecord, SandboxChange, SandboxRecord};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::jobs::JOB_WATCH_MAX;
use crate::Control;
use crate::error::{ControlError, ErrorCode};

/// How often a job is looked at.
const POLL: Duration = Duration::from_millis(100);
/// How often a create that waits writes down how far the job is, unless a new stage begins.
const EXPLAIN_EVERY: Duration = Duration::from_secs(1);
/// How long a create waits: less than clients do, so that they hear why. The job goes on, and the next create
/// finds what it brought.
const WAIT_MAX: Duration = Duration::from_secs(4 * 60);
/// How long creates are answered with an earlier failure instead of a new try. The operator's own command tries at
/// any time.
const RETRY_AFTER: Duration = Duration::from_secs(5 * 60);

fn source(image: &str) -> Option<ImageSource> {
    match image {
        DEFAULT_IMAGE => Some(ImageSource::Debian),
        INTERPRETER_IMAGE => Some(ImageSource::CodeInterpreter),
        SCRATCH_IMAGE => Some(ImageSource::Scratch),
        _ => None,
    }
}

/// Whether this server can make the image itself.
pub(crate) fn is_default(image: &str) -> bool {
    source(image).is_some()
}

/// Names that can only be images: `python:3.12`, `ghcr.io/a/b`. A bare word may be a typing error or meant as the name
/// of the sandbox, so it is not pulled.
fn is_reference(image: &str) -> bool {
    image.contains([':', '/', '@'])
}

/// How far a job is.
#[derive(Clone)]
enum Progress {
    Stage(Stage),
    Done,
    Failed(RunnerError),
}

#[derive(Clone, PartialEq)]
struct Stage {
    text: String,
    done_bytes: u64,
    total_bytes: Option<u64>,
}

impl Stage {
    fn of(job: &ImageJob) -> Self {
        Self {
            text: job.stage.clone(),
            done_bytes: job.done_bytes,
            total_bytes: job.total_bytes,
        }
    }

    /// The stage without its figures.
    fn name(&self) -> &str {
        let end = self.text.find([',', '(']).unwrap_or(self.text.len());
        self.text[..end].trim_end()
    }

    fn shown(&self) -> String {
        match self.total_bytes {
            Some(total) if total > 0 => {
                let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
                let (done, total) = (mib(self.done_bytes), mib(total));
                format!("{} ({done:.1} of {total:.1} MiB)", self.text)
            }
            _ => self.text.clone(),
        }
    }
}

/// What a create has the host add.
#[derive(Clone)]
struct Addition {
    image: String,
    source: ImageSource,
    owner: ImageOwner,
    /// Who asked for a pull; builds are everybody's.
    puller: Option<OrgId>,
    /// Everybody may use what it brings.
    shared: bool,
}

impl Addition {
    fn key(&self, host: &HostId) -> Key {
        (host.clone(), self.puller.clone(), self.image.clone())
    }

    fn verb(&self) -> &'static str {
        match self.puller {
            Some(_) => "pulling",
            None => "preparing",
        }
    }

    /// What a create hears. The cause of a failed build may name the operator's mirrors and proxies, so only the home
    /// organisation gets it. The cause of a failed pull was written for the organisation that asked.
    fn failure(&self, cause: &RunnerError, home: bool) -> ControlError {
        let image = &self.image;
        if self.puller.is_none() {
            return failure(cause, image, home);
        }
        ControlError::new(
            cause.code(),
            format!("the image {image} is not on this host and could not be pulled: {cause}"),
        )
        .hint(format!(
            "check the name; `cove image pull --username USER {image}` pulls an image that \
             needs a login; `cove image ls` lists the images of this server"
        ))
    }
}

/// The host, who pulls (nobody: a build), and the image.
type Key = (HostId, Option<OrgId>, String);

/// Builds of the default images, and the pulls under way.
#[derive(Default)]
pub(crate) struct Preparing(Mutex<HashMap<Key, Known>>);

#[derive(Default)]
struct Known {
    /// The job under way, for those who wait for it.
    job: Option<watch::Receiver<Progress>>,
    failed: Option<(Steady, RunnerError)>,
}

impl Control {
    /// Whether a create pulls this image when it is missing. Refuses registries that the organisation may not reach.
    pub(crate) fn pulls(&self, org: &OrgId, image: &str) -> Result<bool, ControlError> {
        let config = self.config();
        if !config.pull_on_create || !is_reference(image) {
            return Ok(false);
        }
        if crate::reach::registry_of(image).is_none() && !config.has_default_registry {
            return Ok(false);
        }
        self.check_registry(org == self.home()?, image)?;
        Ok(true)
    }

    /// Has the host of this sandbox add an image that it lacks, and waits for it. Answers with what the host calls it.
    /// How far it is stands in the sandbox's reason meanwhile, and each stage is an event.
    pub(crate) async fn bring_image(
        &self,
        sandbox: &SandboxRecord,
        resolved: Option<&str>,
    ) -> Result<String, ControlError> {
        let home = sandbox.org == *self.home()?;
        let image = &sandbox.spec.image;
        if let Some(name) = resolved
            && let Some(source) = source(name)
        {
            let addition = Addition {
                image: name.to_owned(),
                source,
                // It is everybody's, so the installation pays for it and not who came first; and what is said of it
                // is for the operator.
                owner: ImageOwner::Operator,
                puller: None,
                shared: true,
            };
            self.wait_for_image(sandbox, &addition, home).await?;
            return Ok(name.to_owned());
        }
        if !self.pulls(&sandbox.org, image)? {
            return Err(self.no_image(image));
        }
        let addition = Addition {
            image: image.clone(),
            source: ImageSource::Registry {
                reference: image.clone(),
                username: None,
                password: None,
            },
            owner: self.image_owner(&sandbox.org).await?,
            puller: Some(sandbox.org.clone()),
            shared: home,
        };
        self.wait_for_image(sandbox, &addition, home).await?;
        let found = self.resolve_image(&sandbox.org, image).await?;
        found.ok_or_else(|| self.no_image(image))
    }

    async fn wait_for_image(
        &self,
        sandbox: &SandboxRecord,
        addition: &Addition,
        home: bool,
    ) -> Result<(), ControlError> {
        let (image, verb) = (&addition.image, addition.verb());
        let mut job = self.join_job(&sandbox.host, addition, home)?;
        let mut told = String::new();
        let waited = tokio::time::timeout(WAIT_MAX, async {
            loop {
                let progress = job.borrow_and_update().clone();
                match progress {
                    Progress::Done => return Ok(()),
                    Progress::Failed(error) => return Err(addition.failure(&error, home)),
                    Progress::Stage(stage) => {
                        let text = |stage: &str| format!("{verb} the image {image}: {stage}");
                        self.explain(sandbox, &text(&stage.shown())).await?;
                        if told != stage.name() {
                            stage.name().clone_into(&mut told);
                            let kind = EventKind::State {
                                state: State::Creating,
                                reason: Some(text(&told)),
                            };
                            self.tell(sandbox, kind).await;
                        }
                    }
                }
                if job.changed().await.is_err() {
                    return Err(addition.failure(&cut_off(), home));
                }
            }
        });
        let waited = waited.await.unwrap_or_else(|_| {
            Err(ControlError::new(
                ErrorCode::TimedOut,
                format!("{verb} the image {image} takes longer than a create waits; it continues in the background"),
            )
            .hint("try again in a few minutes; `cove image ls` shows when the image is ready"))
        });
        if let (Err(error), false) = (&waited, told.is_empty()) {
            let kind = EventKind::State {
                state: State::Gone,
                reason: Some(error.message.clone()),
            };
            self.tell(sandbox, kind).await;
        }
        waited
    }

    /// The job that adds this image on this host, which is begun if there is none.
    fn join_job(
        &self,
        host: &HostId,
        addition: &Addition,
        home: bool,
    ) -> Result<watch::Receiver<Progress>, ControlError> {
        let key = addition.key(host);
        let mut preparing = self.0.preparing.0.lock();
        let known = preparing.entry(key.clone()).or_default();
        if let Some(job) = &known.job {
            return Ok(job.clone());
        }
        self.refuse_if_failed(known, &addition.image, home)?;
        let image = &addition.image;
        tracing::info!(%host, image, "{} an image for a create", addition.verb());
        let (tell, job) = watch::channel(Progress::Stage(Stage {
            text: "begun".into(),
            done_bytes: 0,
            total_bytes: None,
        }));
        known.job = Some(job.clone());
        let (control, host, addition) = (self.clone(), host.clone(), addition.clone());
        let closing = self.0.tasks.closing.clone();
        // It goes on when the create that began it is cut off.
        tokio::spawn(async move {
            let followed = control.follow_addition(&host, &addition, &tell);
            let outcome = tokio::select! {
                outcome = tokio::time::timeout(JOB_WATCH_MAX, followed) => outcome,
                () = closing.cancelled() => return,
            };
            let end = match outcome {
                Ok(Ok(end)) => end,
                Ok(Err(error)) => Progress::Failed(RunnerError::Internal {
                    message: error.to_string(),
                }),
                Err(_) => Progress::Failed(cut_off()),
            };
            {
                let mut preparing = control.0.preparing.0.lock();
                if let Some(known) = preparing.get_mut(&key) {
                    known.job = None;
                    if known.failed.is_none() {
                        preparing.remove(&key);
                    }
                }
            }
            if let Progress::Failed(error) = &end {
                let image = &addition.image;
                tracing::warn!(%error, %host, image, "{} an image for a create failed", addition.verb());
            }
            tell.send_replace(end);
        });
        Ok(job)
    }

    async fn follow_addition(
        &self,
        host: &HostId,
        addition: &Addition,
        tell: &watch::Sender<Progress>,
    ) -> Result<Progress, ControlError> {
        let runner = self.runner(host).await?;
        let added = runner.add_image(addition.source.clone(), addition.owner.clone());
        let job = match added.await {
            Ok(job) => job,
            Err(error) => return Ok(Progress::Failed(error)),
        };
        let record = ImageJobRecord {
            id: job.id.clone(),
            org: match &addition.puller {
                Some(org) => org.clone(),
                None => self.home()?.clone(),
            },
            host: host.clone(),
            name: addition.image.clone(),
            shared: addition.shared,
            created_at: self.now(),
            outcome: None,
        };
        self.store().put_image_job(&record).await?;
        let mut explained = tokio::time::Instant::now();
        loop {
            match self.look_at_job(&record).await {
                Ok(job) => match job.state {
                    JobState::Running => {
                        let stage = Stage::of(&job);
                        let is_due = explained.elapsed() >= EXPLAIN_EVERY;
                        if tell.send_if_modified(|progress| is_news(progress, stage, is_due)) {
                            explained = tokio::time::Instant::now();
                        }
                    }
                    JobState::Done => return Ok(Progress::Done),
                    _ => return Ok(Progress::Failed(job.error.unwrap_or_else(cut_off))),
                },
                // The host goes on with it, so it is looked at again.
                Err(error) => {
                    tracing::debug!(%error, job = record.id, "cannot read the state of an image job");
                }
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Remembers how a build of a default image ended, whoever asked for it.
    pub(super) fn note_prepared(&self, host: &HostId, image: &str, job: &ImageJob) {
        if !is_default(image) {
            return;
        }
        let failed = match (&job.error, job.state) {
            (_, JobState::Done) => None,
            // The host was restarted, which says nothing about the next try.
            (Some(RunnerError::Unreachable { .. }), _) => None,
            (error, _) => Some((self.steady(), error.clone().unwrap_or_else(cut_off))),
        };
        let mut known = self.0.preparing.0.lock();
        let known = known
            .entry((host.clone(), None, image.to_owned()))
            .or_default();
        known.failed = failed;
    }

    /// Refuses to build a default image again shortly after that has failed.
    pub(super) fn refuse_after_failure(
        &self,
        host: &HostId,
        image: &str,
        home: bool,
    ) -> Result<(), ControlError> {
        let known = self.0.preparing.0.lock();
        match known.get(&(host.clone(), None, image.to_owned())) {
            Some(known) => self.refuse_if_failed(known, image, home),
            None => Ok(()),
        }
    }

    fn refuse_if_failed(&self, known: &Known, image: &str, home: bool) -> Result<(), ControlError> {
        match &known.failed {
            Some((at, error)) if self.steady().since(*at) < RETRY_AFTER => {
                let left = RETRY_AFTER.saturating_sub(self.steady().since(*at));
                Err(failure(error, image, home).retry_after(left.as_secs().max(1)))
            }
            _ => Ok(()),
        }
    }

    async fn explain(&self, sandbox: &SandboxRecord, reason: &str) -> Result<(), ControlError> {
        let change = SandboxChange {
            reason: Some(Some(reason.to_owned())),
            ..SandboxChange::default()
        };
        self.store()
            .note_sandbox(&sandbox.id, &change, self.now())
            .await?;
        Ok(())
    }
}

/// Whether those who wait are told: a new stage at once, new figures of the same one when it is due.
fn is_news(progress: &mut Progress, stage: Stage, is_due: bool) -> bool {
    let is_news = match progress {
        Progress::Stage(told) => told.name() != stage.name() || (is_due && *told != stage),
        Progress::Done | Progress::Failed(_) => true,
    };
    if is_news {
        *progress = Progress::Stage(stage);
    }
    is_news
}

fn cut_off() -> RunnerError {
    RunnerError::Internal {
        message: "the job ended without a result".into(),
    }
}

/// What a create hears. The cause may name the operator's mirrors and proxies, so only the home organisation gets
/// it; others find that it failed, and the log has why.
fn failure(cause: &RunnerError, image: &str, home: bool) -> ControlError {
    let message = format!("the image {image} is not on this host and could not be prepared");
    if !home {
        return ControlError::new(cause.code(), message).hint(
            "ask the operator of this server, whose log has the cause; the server retries in a few minutes",
        );
    }
    if image == SCRATCH_IMAGE {
        return ControlError::new(cause.code(), format!("{message}: {cause}"));
    }
    let command = match image {
        INTERPRETER_IMAGE => "cove image build-code-interpreter",
        _ => "cove image build-debian",
    };
    ControlError::new(cause.code(), format!("{message}: {cause}"))
        .hint(format!("`{command}` retries and shows each step"))
}
