//! Images, and which organisation may see which.
//!
//! A host keeps each image once. An organisation may use those it fetched itself and those the home
//! organisation fetched, which are everybody's; for all others it might as well not be there. A grant
//! is written only when the fetch came to its end, so asking for a private image without the right
//! credentials opens nothing.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cove_model::OrgId;
use cove_model::spec::DEFAULT_IMAGE;
use cove_runner::{HostReport, ImageJob, ImageSource, ImageView, JobState};
use cove_store::{PAGE_MAX, PageRequest, SandboxFilter, Scope};

use crate::Control;
use crate::audit::Deed;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;

/// Jobs remembered for their owners.
const JOBS_MAX: usize = 1024;
/// How often a fetch is looked at until it ends.
const JOB_POLL: Duration = Duration::from_secs(1);
/// A fetch that takes longer than this is granted only when somebody asks again.
const JOB_WATCH_MAX: Duration = Duration::from_secs(4 * 3600);

/// Whose job is whose, as long as this process lives.
#[derive(Default)]
pub(crate) struct Jobs(Mutex<HashMap<String, HashSet<OrgId>>>);

impl Jobs {
    fn add(&self, job: &str, org: &OrgId) {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.len() >= JOBS_MAX && !jobs.contains_key(job) {
            jobs.clear();
        }
        jobs.entry(job.to_owned()).or_default().insert(org.clone());
    }

    fn is_of(&self, job: &str, org: &OrgId) -> bool {
        let jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.get(job).is_some_and(|owners| owners.contains(org))
    }
}

pub(crate) fn no_image(given: &str) -> ControlError {
    ControlError::not_found("image", given)
        .hint("see `cove image ls`; `cove image pull` fetches one")
}

/// Registries leave the tag out when it is this one.
const DEFAULT_TAG: &str = ":latest";

fn is_called(view: &ImageView, text: &str) -> bool {
    let short = text.strip_suffix(DEFAULT_TAG).unwrap_or(text);
    view.id.as_str() == text
        || view
            .names
            .iter()
            .any(|name| name.strip_suffix(DEFAULT_TAG).unwrap_or(name) == short)
}

impl Control {
    /// Names the caller may use; `None` means all.
    async fn granted(
        &self,
        principal: &Principal,
    ) -> Result<Option<HashSet<String>>, ControlError> {
        if principal.home {
            return Ok(None);
        }
        let grants = self.store().image_grants(&principal.org).await?;
        let mut names: HashSet<String> = grants.into_iter().map(|(name, _)| name).collect();
        // The default image is everybody's however it came onto the host.
        names.insert(DEFAULT_IMAGE.to_owned());
        Ok(Some(names))
    }

    /// Refuses an image the caller may not use, exactly like one that is not there.
    pub(crate) async fn require_image(
        &self,
        principal: &Principal,
        given: &str,
    ) -> Result<(), ControlError> {
        let Some(granted) = self.granted(principal).await? else {
            return Ok(());
        };
        if granted.contains(given) {
            return Ok(());
        }
        let images = self.runner().images().await?;
        let usable = images
            .iter()
            .any(|view| is_called(view, given) && view.names.iter().any(|n| granted.contains(n)));
        if usable { Ok(()) } else { Err(no_image(given)) }
    }

    /// Needs `read`. Those everybody may use and those the caller's organisation fetched.
    pub async fn list_images(&self, principal: &Principal) -> Result<Vec<ImageView>, ControlError> {
        principal.require(Scope::Read)?;
        let granted = self.granted(principal).await?;
        let mut images = self.runner().images().await?;
        let Some(granted) = granted else {
            return Ok(images);
        };
        for view in &mut images {
            view.names.retain(|name| granted.contains(name));
        }
        images.retain(|view| !view.names.is_empty());
        // How many of other organisations' sandboxes use an image is nobody's business.
        let mut uses = self.image_uses(&principal.org).await?;
        for view in &mut images {
            view.in_use_by = uses.remove(view.id.as_str()).unwrap_or(0);
        }
        Ok(images)
    }

    async fn image_uses(&self, org: &OrgId) -> Result<HashMap<String, u64>, ControlError> {
        let mut uses = HashMap::new();
        let mut page = PageRequest {
            limit: PAGE_MAX,
            cursor: None,
        };
        loop {
            let found = self
                .store()
                .sandboxes(org, &SandboxFilter::default(), &page)
                .await?;
            for image in found.items.into_iter().filter_map(|row| row.facts.image) {
                *uses.entry(image.to_string()).or_insert(0) += 1;
            }
            match found.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => return Ok(uses),
            }
        }
    }

    /// Needs `read`. By id or name.
    pub async fn get_image(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<ImageView, ControlError> {
        let images = self.list_images(principal).await?;
        let found = images.into_iter().find(|view| is_called(view, which));
        found.ok_or_else(|| no_image(which))
    }

    /// Needs `manage`; a path on the host needs an operator. Answers at once with a job to poll.
    pub async fn add_image(
        &self,
        principal: &Principal,
        source: ImageSource,
    ) -> Result<ImageJob, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let name = match &source {
                ImageSource::Registry { reference, .. } => reference.clone(),
                ImageSource::Debian => DEFAULT_IMAGE.into(),
                ImageSource::Local { name, .. } => name.clone(),
            };
            let outcome = control.try_add_image(&principal, source, &name).await;
            let deed = Deed::new("image.add", name);
            control.record(&principal, deed, &outcome).await;
            outcome
        })
        .await
    }

    async fn try_add_image(
        &self,
        principal: &Principal,
        source: ImageSource,
        name: &str,
    ) -> Result<ImageJob, ControlError> {
        principal.require(Scope::Manage)?;
        // A path on the host can be any file of it, so only who owns the host may name one.
        if matches!(source, ImageSource::Local { .. }) {
            principal.require_operator()?;
        }
        let shared = principal.home || matches!(source, ImageSource::Debian);
        let holder = (!shared).then(|| principal.org.clone());
        let job = self.runner().add_image(source).await?;
        self.0.image_jobs.add(&job.id, &principal.org);
        if job.state == JobState::Running {
            let (control, id) = (self.clone(), job.id.clone());
            let name = name.to_owned();
            tokio::spawn(async move { control.watch_job(id, name, holder).await });
        } else {
            self.grant(&job, name, holder.as_ref()).await?;
        }
        Ok(job)
    }

    async fn grant(
        &self,
        job: &ImageJob,
        name: &str,
        holder: Option<&OrgId>,
    ) -> Result<(), ControlError> {
        let (JobState::Done, Some(image)) = (job.state, &job.image) else {
            return Ok(());
        };
        let asked = [name, job.name.as_str()].into_iter();
        // Other names of the same image may be another organisation's words for it.
        let known = image.names.iter().map(String::as_str);
        let names: HashSet<&str> = asked
            .filter(|name| known.clone().any(|n| n == *name))
            .collect();
        for name in names {
            self.store().grant_image(holder, name).await?;
        }
        Ok(())
    }

    /// Follows a fetch to its end, so that it is granted also when nobody polls.
    async fn watch_job(self, id: String, name: String, holder: Option<OrgId>) {
        let watch = async {
            loop {
                tokio::time::sleep(JOB_POLL).await;
                match self.runner().image_job(&id).await {
                    Ok(job) if job.state == JobState::Running => {}
                    Ok(job) => return self.grant(&job, &name, holder.as_ref()).await,
                    Err(cove_runner::RunnerError::Unreachable { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        };
        tokio::select! {
            outcome = tokio::time::timeout(JOB_WATCH_MAX, watch) => {
                if let Ok(Err(error)) = outcome {
                    tracing::warn!(%error, job = id, "an image job was lost sight of");
                }
            }
            () = self.0.closing.cancelled() => {}
        }
    }

    /// Needs `read`.
    pub async fn image_job(
        &self,
        principal: &Principal,
        id: &str,
    ) -> Result<ImageJob, ControlError> {
        principal.require(Scope::Read)?;
        let missing = || {
            ControlError::not_found("image job", id).hint("ask for the image again to follow it")
        };
        if !self.0.image_jobs.is_of(id, &principal.org) && !principal.is_operator() {
            return Err(missing());
        }
        let job = self
            .runner()
            .image_job(id)
            .await
            .map_err(|error| match error {
                cove_runner::RunnerError::NotFound { .. } => missing(),
                other => other.into(),
            })?;
        // Whoever sees the end may use the image at once.
        if job.state == JobState::Done && self.0.image_jobs.is_of(id, &principal.org) {
            let holder = (!principal.home).then_some(&principal.org);
            self.grant(&job, &job.name, holder).await?;
        }
        Ok(job)
    }

    /// Needs `manage`. An image others may use too stays on the host.
    pub async fn remove_image(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = control.try_remove_image(&principal, &which).await;
            let deed = Deed::new("image.remove", which);
            control.record(&principal, deed, &outcome).await;
            outcome
        })
        .await
    }

    async fn try_remove_image(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        principal.require(Scope::Manage)?;
        let view = self.get_image(principal, which).await?;
        if principal.home {
            self.runner().remove_image(view.id.as_str()).await?;
            for name in &view.names {
                self.store().withdraw_image(None, name).await?;
            }
            return Ok(());
        }
        if view.in_use_by > 0 {
            return Err(ControlError::new(
                ErrorCode::Conflict,
                format!("{} of your sandboxes use this image", view.in_use_by),
            )
            .hint("delete them first"));
        }
        let mut mine = Vec::new();
        for name in &view.names {
            if self
                .store()
                .withdraw_image(Some(&principal.org), name)
                .await?
            {
                mine.push(name);
            }
        }
        if mine.is_empty() {
            return Err(ControlError::new(
                ErrorCode::Forbidden,
                "this image belongs to everybody; only the home organisation may remove it",
            ));
        }
        let all = self.runner().images().await?;
        let names = all
            .into_iter()
            .find(|one| one.id == view.id)
            .map(|one| one.names);
        for name in names.iter().flatten() {
            if self.store().image_grant_count(name).await? > 0 {
                return Ok(());
            }
        }
        match self.runner().remove_image(view.id.as_str()).await {
            // Somebody else's sandbox still runs from it; for the caller it is gone all the same.
            Err(cove_runner::RunnerError::InUse { .. }) => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    /// Operators only: what the host has, has promised and lacks.
    pub async fn host(&self, principal: &Principal) -> Result<HostReport, ControlError> {
        principal.require_operator()?;
        Ok(self.runner().host().await?)
    }
}
