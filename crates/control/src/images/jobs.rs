//! Fetches of images, followed to their end.
//!
//! The host runs a fetch; the database says who asked for it and, once it is over, how it ended. So an
//! organisation that follows its fetch learns the truth also from a control plane that was started
//! later. What an organisation asks for twice with the same credentials is one fetch; another
//! organisation or other credentials are another. A fetch that died with the host's process counts as
//! failed: what the host has under that name may have come with somebody else's credentials.

use async_recursion::async_recursion as boxed;
use std::time::Duration;

use cove_model::{HostId, OrgId};
use cove_runner_api::{ImageJob, JobState, RunnerError};
use cove_store::{ImageJobRecord, Scope};

use super::stands_for;
use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::guards::Exclusive;
use crate::principal::Principal;

/// How often a fetch is looked at until it ends.
const JOB_POLL: Duration = Duration::from_secs(1);
/// A fetch that takes longer than this is granted only when somebody asks again.
pub(super) const JOB_WATCH_MAX: Duration = Duration::from_secs(4 * 3600);

/// What the host has forgotten was lost with its process.
fn interrupted(record: &ImageJobRecord) -> ImageJob {
    ImageJob {
        id: record.id.clone(),
        name: record.name.clone(),
        state: JobState::Failed,
        stage: "failed".into(),
        done_bytes: 0,
        total_bytes: None,
        warnings: Vec::new(),
        image: None,
        error: Some(RunnerError::Unreachable {
            message: "it was restarted while it pulled this image; pull the image again, \
                      downloaded layers are kept"
                .into(),
        }),
    }
}

fn fail(job: &mut ImageJob, error: RunnerError) {
    job.image = None;
    job.state = JobState::Failed;
    job.stage = "failed".into();
    job.error = Some(error);
}

/// How a job ended, as it was written down.
fn outcome(written: &str) -> Result<ImageJob, ControlError> {
    serde_json::from_str(written).map_err(|error| {
        ControlError::internal("cannot read the result of an image job").because(error)
    })
}

/// The job as this organisation may see it: other names of the same image may be somebody else's
/// words for it, and how many use it is nobody's business. Why the host could not build an image of its own tells
/// of the operator's mirrors and proxies.
fn seen(mut job: ImageJob, record: &ImageJobRecord, home: bool) -> ImageJob {
    job.name.clone_from(&record.name);
    if !home && record.shared && job.error.is_some() {
        job.error = Some(RunnerError::Internal {
            message: format!("the host could not prepare the image {}", record.name),
        });
        job.warnings.clear();
    }
    if let (false, Some(image)) = (home, &mut job.image) {
        image.names.retain(|name| stands_for(&record.name, name));
        image.in_use_by = 0;
    }
    job
}

impl Control {
    /// Writes down whose fetch this is, and sees to its end.
    pub(crate) async fn follow_job(
        &self,
        principal: &Principal,
        host: &HostId,
        job: ImageJob,
        name: &str,
        shared: bool,
    ) -> Result<ImageJob, ControlError> {
        let record = ImageJobRecord {
            id: job.id.clone(),
            org: principal.org.clone(),
            host: host.clone(),
            name: name.to_owned(),
            shared,
            created_at: self.now(),
            outcome: None,
        };
        self.store().put_image_job(&record).await?;
        let job = if job.state == JobState::Running {
            self.watch_job(record.clone());
            job
        } else {
            self.settle_job(&record, &job).await?
        };
        Ok(seen(job, &record, principal.home))
    }

    /// Picks up the fetches an earlier control plane was following.
    pub(crate) async fn resume_image_jobs(&self) -> Result<(), ControlError> {
        for record in self.store().unfinished_image_jobs().await? {
            self.watch_job(record);
        }
        Ok(())
    }

    /// Grants what a fetch brought and writes down how it ended, in this order: until its end is
    /// written, a fetch is looked at again. How large an image is becomes known only once it is there, so
    /// one beyond the quota ends here, as failed.
    async fn settle_job(
        &self,
        record: &ImageJobRecord,
        job: &ImageJob,
    ) -> Result<ImageJob, ControlError> {
        let _turn = self.0.guards.lock(Exclusive::Images).await?;
        // Who follows it and who asks for it may both have seen its end.
        let settled = self.store().image_job(Some(&record.org), &record.id);
        if let Some(settled) = settled.await?.and_then(|record| record.outcome) {
            return outcome(&settled);
        }
        let holder: Option<&OrgId> = (!record.shared).then_some(&record.org);
        let mut job = job.clone();
        if !self.is_on_host(&record.host, &job).await? {
            fail(
                &mut job,
                RunnerError::Internal {
                    message: "the image was removed right after it was pulled; pull it again"
                        .into(),
                },
            );
        }
        let left = match self.grant(&job, &record.name, holder).await {
            Err(error) if error.code == ErrorCode::QuotaExceeded => {
                if let Some(image) = job.image.take() {
                    self.drop_unclaimed(&image.id, Some(record)).await?;
                }
                fail(
                    &mut job,
                    RunnerError::NoCapacity {
                        resource: "disk".into(),
                        message: error.message,
                    },
                );
                Vec::new()
            }
            granted => granted?,
        };
        let outcome = serde_json::to_string(&job).map_err(|error| {
            ControlError::internal("cannot record the result of an image job").because(error)
        })?;
        let record = ImageJobRecord {
            outcome: Some(outcome),
            ..record.clone()
        };
        self.store().put_image_job(&record).await?;
        if record.shared {
            self.note_prepared(&record.host, &record.name, &job);
        }
        if let (Some(org), false) = (holder, left.is_empty()) {
            let uses = self.image_uses(org).await?;
            for image in left {
                // What fails is in the database, and tried again later.
                if let Err(error) = self.let_go(org, &image, &uses).await {
                    tracing::warn!(%error, %image, "cannot remove a replaced image; retrying later");
                }
            }
        }
        Ok(job)
    }

    /// Whether what a fetch brought is still there, which is then written down; another who shared it may have been refused it, and
    /// taken it along.
    async fn is_on_host(&self, host: &HostId, job: &ImageJob) -> Result<bool, ControlError> {
        let (JobState::Done, Some(image)) = (job.state, &job.image) else {
            return Ok(true);
        };
        let images = self.runner(host).await?.images().await?;
        let is_there = images.iter().any(|view| view.id == image.id);
        if is_there {
            self.store().put_image_on(host, &image.id).await?;
        }
        Ok(is_there)
    }

    /// How the fetch stands; settles it when it is over.
    pub(super) async fn look_at_job(
        &self,
        record: &ImageJobRecord,
    ) -> Result<ImageJob, ControlError> {
        if let Some(written) = &record.outcome {
            return outcome(written);
        }
        let job = match self.runner(&record.host).await?.image_job(&record.id).await {
            Ok(job) if job.state == JobState::Running => return Ok(job),
            Ok(job) => job,
            Err(RunnerError::NotFound { .. }) => interrupted(record),
            Err(error) => return Err(error.into()),
        };
        self.settle_job(record, &job).await
    }

    /// Follows a fetch to its end, so that it is granted also when nobody polls.
    pub(super) fn watch_job(&self, record: ImageJobRecord) {
        let control = self.clone();
        let watch = async move {
            loop {
                tokio::time::sleep(JOB_POLL).await;
                match control.look_at_job(&record).await {
                    Ok(job) if job.state == JobState::Running => {}
                    Ok(_) => return,
                    Err(error) => {
                        tracing::debug!(%error, job = record.id, "cannot read the state of an image job");
                    }
                }
            }
        };
        let closing = self.0.tasks.closing.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = tokio::time::timeout(JOB_WATCH_MAX, watch) => {}
                () = closing.cancelled() => {}
            }
        });
    }

    /// Needs `read`. An operator sees everybody's.
    #[boxed]
    pub async fn image_job(
        &self,
        principal: &Principal,
        id: &str,
    ) -> Result<ImageJob, ControlError> {
        principal.require(Scope::Read)?;
        let mut record = self.store().image_job(Some(&principal.org), id).await?;
        if record.is_none() && principal.is_operator() {
            record = self.store().image_job(None, id).await?;
        }
        let record = record.ok_or_else(|| {
            ControlError::not_found("image job", id).hint("request the image again to follow it")
        })?;
        let job = self.look_at_job(&record).await?;
        Ok(seen(job, &record, principal.home))
    }
}
