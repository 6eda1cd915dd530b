//! Images, and which organisation may see which.
//!
//! A host keeps each image once. An organisation may use those it fetched itself and those the home
//! organisation fetched, which are everybody's; any other might as well not be there. Each has its own
//! words for its images: a fetch that came to its end binds the name that was asked for to the image
//! it brought, for that organisation alone, so nobody else's fetch can move or borrow it, and asking
//! for a private image without the right credentials opens nothing.

use async_recursion::async_recursion as boxed;
use std::collections::HashSet;

use cove_model::spec::{DEFAULT_IMAGE, INTERPRETER_IMAGE, SCRATCH_IMAGE};
use cove_model::{ImageId, OrgId, Placement};
use cove_runner_api::{HostReport, ImageJob, ImageOwner, ImageSource, ImageView, JobState};
use cove_store::{Scope, StoreError};

mod jobs;
mod prepare;
mod unclaimed;

pub(crate) use prepare::Preparing;

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::guards::Exclusive;
use crate::principal::Principal;

/// Everybody's, however they came onto the host.
const BUILT_IN: [&str; 3] = [DEFAULT_IMAGE, INTERPRETER_IMAGE, SCRATCH_IMAGE];

/// Whether this server can make the image itself.
pub(crate) fn is_built_in(image: &str) -> bool {
    BUILT_IN.contains(&image)
}

/// Registries leave the tag out when it is this one.
const DEFAULT_TAG: &str = ":latest";

fn beyond_quota(error: StoreError, mb: u64) -> ControlError {
    match error {
        StoreError::Quota { .. } => ControlError::new(
            ErrorCode::QuotaExceeded,
            format!("the image needs {mb} MiB, more than is left of the organisation's disk quota"),
        )
        .hint("remove images, snapshots or sandboxes, or have the quota raised"),
        other => other.into(),
    }
}

/// A reference without its tag or digest.
fn repository(reference: &str) -> &str {
    let plain = reference.split('@').next().unwrap_or(reference);
    match plain.rsplit_once(':') {
        // A colon before a slash belongs to a registry's port.
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => plain,
    }
}

/// `text` with the tag registries assume when there is none.
fn tagged(text: &str) -> String {
    if repository(text) == text {
        format!("{text}{DEFAULT_TAG}")
    } else {
        text.to_owned()
    }
}

/// Whether `name`, as a host spells it out, is what `asked` stands for.
pub(crate) fn stands_for(asked: &str, name: &str) -> bool {
    let is_tail = |whole: &str, tail: &str| {
        whole == tail
            || whole
                .strip_suffix(tail)
                .is_some_and(|front| front.ends_with('/'))
    };
    is_tail(name, asked)
        || is_tail(name, &tagged(asked))
        || (name.contains('@') && is_tail(repository(name), repository(asked)))
}

fn is_called(view: &ImageView, text: &str) -> bool {
    view.id.as_str() == text || view.names.iter().any(|name| tagged(name) == tagged(text))
}

impl Control {
    /// The error for an image that is not there, with the command that brings it.
    pub(crate) fn no_image(&self, given: &str) -> ControlError {
        let has_registry =
            crate::reach::registry_of(given).is_some() || self.config().has_default_registry;
        let reference = match has_registry {
            true => given.to_owned(),
            false => format!("REGISTRY/{given}"),
        };
        let is_word = !given.contains([':', '/', '@']);
        let name = match is_word {
            true => format!("; `cove create --name {given}` makes a sandbox of that name"),
            false => String::new(),
        };
        ControlError::not_found("image", given).hint(format!(
            "`cove image pull {reference}` pulls it; `cove image ls` lists the images of this server{name}"
        ))
    }

    /// What to ask the host for when an organisation names an image; `None`: it has none of that name. One that it
    /// may not use is answered exactly like one that is not there.
    pub(crate) async fn resolve_image(
        &self,
        org: &OrgId,
        given: &str,
    ) -> Result<Option<String>, ControlError> {
        if org == self.home()? {
            return Ok(Some(given.to_owned()));
        }
        let grants = self.store().image_grants(org).await?;
        let with_tag = tagged(given);
        let own_first = [false, true].into_iter().find_map(|shared| {
            let mut grants = grants.iter().filter(|grant| grant.shared == shared);
            let exact = grants.clone().find(|grant| grant.name == given);
            exact.or_else(|| {
                grants
                    .find(|grant| tagged(&grant.name) == with_tag || grant.image.as_str() == given)
            })
        });
        Ok(match own_first {
            Some(grant) => Some(grant.image.to_string()),
            // Everybody's, however it came onto the host.
            None => BUILT_IN.contains(&given).then(|| given.to_owned()),
        })
    }

    /// Needs `read`. Those everybody may use and those the caller's organisation fetched.
    #[boxed]
    pub async fn list_images(&self, principal: &Principal) -> Result<Vec<ImageView>, ControlError> {
        principal.require(Scope::Read)?;
        let mut images = self.images_on_hosts().await?;
        if principal.home {
            return Ok(images);
        }
        let grants = self.store().image_grants(&principal.org).await?;
        // How many of other organisations' sandboxes use an image is nobody's business, and neither
        // are their words for it.
        let mut uses = self.image_uses(&principal.org).await?;
        for view in &mut images {
            view.names.retain(|name| BUILT_IN.contains(&name.as_str()));
            let words = grants.iter().filter(|grant| grant.image == view.id);
            view.names.extend(words.map(|grant| grant.name.clone()));
            view.names.sort();
            view.names.dedup();
            view.in_use_by = uses.remove(&view.id).unwrap_or_default().sandboxes;
        }
        images.retain(|view| !view.names.is_empty());
        Ok(images)
    }

    /// What hosts have, each image once.
    async fn images_on_hosts(&self) -> Result<Vec<ImageView>, ControlError> {
        let asked = self.ask_hosts(|host| async move { Ok(host.runner().await?.images().await?) });
        let mut images: Vec<ImageView> = Vec::new();
        for view in asked.await?.into_iter().flatten() {
            match images.iter_mut().find(|known| known.id == view.id) {
                Some(known) => known.in_use_by = known.in_use_by.saturating_add(view.in_use_by),
                None => images.push(view),
            }
        }
        Ok(images)
    }

    /// Needs `read`. By id or name.
    #[boxed]
    pub async fn get_image(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<ImageView, ControlError> {
        let images = self.list_images(principal).await?;
        let found = images.into_iter().find(|view| is_called(view, which));
        found.ok_or_else(|| self.no_image(which))
    }

    /// Needs `manage`; a path on the host needs an operator. Answers at once with a job to poll.
    #[boxed]
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
                ImageSource::CodeInterpreter => INTERPRETER_IMAGE.into(),
                ImageSource::Scratch => SCRATCH_IMAGE.into(),
                ImageSource::Local { name, .. } => name.clone(),
            };
            let outcome = control.try_add_image(&principal, source, &name).await;
            let operation = Operation::new("image.add", name);
            control.conclude(&principal, operation, outcome).await
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
        if let ImageSource::Registry { reference, .. } = &source {
            self.check_registry(principal.home, reference)?;
        }
        let owner = self.image_owner(&principal.org).await?;
        let builds = matches!(
            source,
            ImageSource::Debian | ImageSource::CodeInterpreter | ImageSource::Scratch
        );
        let shared = principal.home || builds;
        let host = self.choose_host(&Placement::default())?;
        if builds && !principal.home {
            self.refuse_after_failure(&host, name, false)?;
        }
        let job = self.runner(&host).await?.add_image(source, owner).await?;
        self.follow_job(principal, &host, job, name, shared).await
    }

    /// Answers with the images whose last word of the holder this has taken.
    async fn grant(
        &self,
        job: &ImageJob,
        asked: &str,
        holder: Option<&OrgId>,
    ) -> Result<Vec<ImageId>, ControlError> {
        let (JobState::Done, Some(image)) = (job.state, &job.image) else {
            return Ok(Vec::new());
        };
        // Other names of the same image may be somebody else's words for it.
        let spelled_out = image.names.iter().map(String::as_str);
        let mut names: HashSet<&str> = spelled_out.filter(|name| stands_for(asked, name)).collect();
        names.insert(asked);
        let mut left = Vec::new();
        for name in names {
            let mb = image.size_bytes.div_ceil(1 << 20);
            let granted = self.store().grant_image(holder, name, &image.id, mb).await;
            left.extend(granted.map_err(|error| beyond_quota(error, mb))?);
        }
        Ok(left)
    }

    /// On whose behalf the host adds an image. Refuses to begin with one of an organisation that has no
    /// room for any.
    pub(crate) async fn image_owner(&self, org: &OrgId) -> Result<ImageOwner, ControlError> {
        if org == self.home()? {
            return Ok(ImageOwner::Operator);
        }
        let found = self.store().organisation(org).await?;
        let room_mb = match found {
            Some(org) if org.used.disk_mb >= org.quota.disk_mb => {
                return Err(ControlError::new(
                    ErrorCode::QuotaExceeded,
                    format!(
                        "the organisation's disk quota of {} MiB is used up",
                        org.quota.disk_mb
                    ),
                )
                .hint("remove images, snapshots or sandboxes, or have the quota raised"));
            }
            Some(org) => org.quota.disk_mb - org.used.disk_mb,
            None => 0,
        };
        Ok(ImageOwner::Tenant {
            org: org.clone(),
            room_bytes: room_mb.saturating_mul(1 << 20),
        })
    }

    /// Needs `manage`. An image others may use too stays on the host; one that sandboxes or snapshots of
    /// the caller need is not removed.
    #[boxed]
    pub async fn remove_image(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = control.try_remove_image(&principal, &which).await;
            let operation = Operation::new("image.remove", which);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn try_remove_image(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        principal.require(Scope::Manage)?;
        let _turn = self.0.guards.lock(Exclusive::Images).await?;
        let view = self.get_image(principal, which).await?;
        if principal.home {
            self.remove_image_everywhere(&view.id).await?;
            // It is no more, so nobody's words lead to it.
            self.store().forget_image(&view.id).await?;
            return Ok(());
        }
        let org = &principal.org;
        let uses = self.image_uses(org).await?;
        uses.get(&view.id).copied().unwrap_or_default().refuse()?;
        if !self.store().withdraw_image(Some(org), &view.id).await? {
            return Err(ControlError::new(
                ErrorCode::Forbidden,
                "this image is shared by all organisations; only the home organisation may remove it",
            ));
        }
        self.let_go(org, &view.id, &uses).await
    }

    /// Operators only: what the host has, has promised and lacks. Of several hosts, the one that new sandboxes go
    /// to.
    #[boxed]
    pub async fn host(&self, principal: &Principal) -> Result<HostReport, ControlError> {
        principal.require_operator()?;
        let host = self.any_host()?;
        let mut report = self.runner(&host).await?.host().await?;
        report.findings.push(self.quarantine_finding().await);
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spelled_out_name_stands_for_what_was_asked() {
        for (asked, name) in [
            ("python", "docker.io/library/python:latest"),
            ("python:3.12", "docker.io/library/python:3.12"),
            ("library/python:3.12", "docker.io/library/python:3.12"),
            ("python:3.12", "docker.io/library/python@sha256:00"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            ("debian", "debian"),
        ] {
            assert!(stands_for(asked, name), "{asked} {name}");
        }
        for (asked, name) in [
            ("python:3.12", "docker.io/library/python:3.11"),
            ("python", "docker.io/evil/not-python:latest"),
            ("app", "registry.internal/secret/app2:latest"),
            ("localhost:5000/app", "localhost:5001/app:latest"),
        ] {
            assert!(!stands_for(asked, name), "{asked} {name}");
        }
    }
}
