//! The default images come by themselves: the first create that needs one and finds it missing has the host
//! prepare it, and waits. Creates that come meanwhile wait for the same job.

use std::time::Duration;

use cove_model::spec::{DEFAULT_IMAGE, INTERPRETER_IMAGE};
use cove_runner_api::{ImageJob, ImageOwner, ImageSource, JobState, RunnerError};
use cove_store::{ImageJobRecord, SandboxChange, SandboxRecord};

use crate::Control;
use crate::error::ControlError;

/// How often the job is looked at.
const POLL: Duration = Duration::from_millis(100);
/// How long a create waits: less than clients do, so that they hear why. The job goes on, and the next create
/// finds what it brought.
const WAIT_MAX: Duration = Duration::from_secs(4 * 60);

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
        tracing::info!(sandbox = %sandbox.id, image, "preparing a default image");
        let runner = self.runner(&sandbox.host).await?;
        // It is everybody's, so the installation pays for it and not who came first.
        let job = runner.add_image(source, ImageOwner::Operator).await?;
        let record = ImageJobRecord {
            id: job.id.clone(),
            org: sandbox.org.clone(),
            host: sandbox.host.clone(),
            name: image.to_owned(),
            shared: true,
            created_at: self.now(),
            outcome: None,
        };
        self.store().put_image_job(&record).await?;
        // Settled also when this create is cut off.
        self.watch_job(record.clone());
        let waited = tokio::time::timeout(WAIT_MAX, async {
            let mut told = String::new();
            loop {
                let job = self.look_at_job(&record).await?;
                if job.state != JobState::Running {
                    return ended(job, image);
                }
                if job.stage != told {
                    told.clone_from(&job.stage);
                    self.explain(sandbox, &format!("preparing the image {image}: {told}"))
                        .await?;
                }
                tokio::time::sleep(POLL).await;
            }
        });
        match waited.await {
            Ok(outcome) => outcome?,
            Err(_) => {
                return Err(ControlError::new(
                    crate::error::ErrorCode::TimedOut,
                    format!("the image {image} is still being prepared"),
                )
                .hint("ask again in a few minutes; `cove image ls` shows when it is there"));
            }
        }
        Ok(())
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

fn ended(job: ImageJob, image: &str) -> Result<(), ControlError> {
    match (job.state, job.error) {
        (JobState::Done, _) => Ok(()),
        (_, error) => {
            let why = error
                .as_ref()
                .map_or_else(String::new, |error| format!(": {error}"));
            let cause = error.unwrap_or(RunnerError::Internal {
                message: "the job ended without a result".into(),
            });
            let command = match image {
                INTERPRETER_IMAGE => "cove image build-code-interpreter",
                _ => "cove image build-debian",
            };
            Err(ControlError::new(
                cause.code(),
                format!("the image {image} is not on this host and could not be prepared{why}"),
            )
            .hint(format!("`{command}` tries again and shows each step")))
        }
    }
}
