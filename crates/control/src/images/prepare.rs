//! The default images come by themselves: the first create that needs one and finds it missing has the host
//! prepare it, and waits. Creates that come meanwhile wait for the same job, which one task follows. A failure is
//! remembered for a while, so that creates do not have the host build again and again.

use std::collections::HashMap;
use std::time::Duration;

use cove_model::spec::{DEFAULT_IMAGE, INTERPRETER_IMAGE};
use cove_model::{HostId, Steady};
use cove_runner_api::{ImageJob, ImageOwner, ImageSource, JobState, RunnerError};
use cove_store::{ImageJobRecord, SandboxChange, SandboxRecord};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::jobs::JOB_WATCH_MAX;
use crate::Control;
use crate::error::{ControlError, ErrorCode};

/// How often a job is looked at.
const POLL: Duration = Duration::from_millis(100);
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
        _ => None,
    }
}

/// Whether this server can make the image itself.
pub(crate) fn is_default(image: &str) -> bool {
    source(image).is_some()
}

/// How far a job is.
#[derive(Clone)]
enum Progress {
    Stage(String),
    Done,
    Failed(RunnerError),
}

/// Of each host; there are two default images, so this stays small.
#[derive(Default)]
pub(crate) struct Preparing(Mutex<HashMap<(HostId, String), Known>>);

#[derive(Default)]
struct Known {
    /// The job under way, for those who wait for it.
    job: Option<watch::Receiver<Progress>>,
    failed: Option<(Steady, RunnerError)>,
}

impl Control {
    /// Has the host of this sandbox prepare a default image, and waits for it. How far it is stands in the
    /// sandbox's reason meanwhile.
    pub(crate) async fn prepare_image(
        &self,
        sandbox: &SandboxRecord,
        image: &str,
    ) -> Result<(), ControlError> {
        let Some(source) = source(image) else {
            return Err(super::no_image(image));
        };
        let home = sandbox.org == *self.home()?;
        let mut job = self.join_job(&sandbox.host, image, source, home)?;
        let waited = tokio::time::timeout(WAIT_MAX, async {
            loop {
                let progress = job.borrow_and_update().clone();
                match progress {
                    Progress::Done => return Ok(()),
                    Progress::Failed(error) => return Err(failure(&error, image, home)),
                    Progress::Stage(stage) => {
                        self.explain(sandbox, &format!("preparing the image {image}: {stage}"))
                            .await?;
                    }
                }
                if job.changed().await.is_err() {
                    return Err(failure(&cut_off(), image, home));
                }
            }
        });
        waited.await.unwrap_or_else(|_| {
            Err(ControlError::new(
                ErrorCode::TimedOut,
                format!("the image {image} is still being prepared"),
            )
            .hint("ask again in a few minutes; `cove image ls` shows when it is there"))
        })
    }

    /// The job that prepares this image on this host, which is begun if there is none.
    fn join_job(
        &self,
        host: &HostId,
        image: &str,
        source: ImageSource,
        home: bool,
    ) -> Result<watch::Receiver<Progress>, ControlError> {
        let mut known = self.0.preparing.0.lock();
        let known = known.entry((host.clone(), image.to_owned())).or_default();
        if let Some(job) = &known.job {
            return Ok(job.clone());
        }
        self.refuse_if_failed(known, image, home)?;
        tracing::info!(%host, image, "preparing a default image");
        let (tell, job) = watch::channel(Progress::Stage("begun".into()));
        known.job = Some(job.clone());
        let (control, host, image) = (self.clone(), host.clone(), image.to_owned());
        let closing = self.0.tasks.closing.clone();
        // It goes on when the create that began it is cut off.
        tokio::spawn(async move {
            let followed = control.follow_preparation(&host, &image, source, &tell);
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
                let mut known = control.0.preparing.0.lock();
                let known = known.entry((host.clone(), image.clone())).or_default();
                known.job = None;
            }
            if let Progress::Failed(error) = &end {
                tracing::warn!(%error, %host, image, "a default image could not be prepared");
            }
            tell.send_replace(end);
        });
        Ok(job)
    }

    async fn follow_preparation(
        &self,
        host: &HostId,
        image: &str,
        source: ImageSource,
        tell: &watch::Sender<Progress>,
    ) -> Result<Progress, ControlError> {
        let runner = self.runner(host).await?;
        // It is everybody's, so the installation pays for it and not who came first; and what is said of it is
        // for the operator.
        let job = runner.add_image(source, ImageOwner::Operator).await?;
        let record = ImageJobRecord {
            id: job.id.clone(),
            org: self.home()?.clone(),
            host: host.clone(),
            name: image.to_owned(),
            shared: true,
            created_at: self.now(),
            outcome: None,
        };
        self.store().put_image_job(&record).await?;
        loop {
            match self.look_at_job(&record).await {
                Ok(job) => match job.state {
                    JobState::Running => {
                        tell.send_if_modified(|progress| is_new_stage(progress, job.stage));
                    }
                    JobState::Done => return Ok(Progress::Done),
                    _ => return Ok(Progress::Failed(job.error.unwrap_or_else(cut_off))),
                },
                // The host goes on with it, so it is looked at again.
                Err(error) => {
                    tracing::debug!(%error, job = record.id, "an image job cannot be seen now");
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
        let known = known.entry((host.clone(), image.to_owned())).or_default();
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
        match known.get(&(host.clone(), image.to_owned())) {
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

fn is_new_stage(progress: &mut Progress, stage: String) -> bool {
    let is_new = !matches!(progress, Progress::Stage(told) if *told == stage);
    if is_new {
        *progress = Progress::Stage(stage);
    }
    is_new
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
            "tell the operator of this installation, whose log has the cause; it is tried again in a few minutes",
        );
    }
    let command = match image {
        INTERPRETER_IMAGE => "cove image build-code-interpreter",
        _ => "cove image build-debian",
    };
    ControlError::new(cause.code(), format!("{message}: {cause}"))
        .hint(format!("`{command}` tries again and shows each step"))
}
