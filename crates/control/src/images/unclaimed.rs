//! Images that an organisation has no word for any more: who still uses them, and their end.
//!
//! An organisation pays for what it brought onto the host for as long as it is there because of it:
//! when its last word for an image moves on or is taken back, it goes on paying until nothing of its
//! own uses the image and the host has removed it, or until others pay for it. What is left to do is
//! in the database, so a crash in between only delays it until the next look.

use std::collections::HashMap;

use cove_model::{HostId, ImageId, OrgId};
use cove_runner_api::{JobState, RunnerError};
use cove_store::{ImageJobRecord, PAGE_MAX, PageRequest, SandboxFilter, SnapshotFilter};

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::guards::Exclusive;
use crate::hosts::Host;

/// How many of an organisation's things need an image.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Uses {
    pub sandboxes: u64,
    pub snapshots: u64,
    /// Snapshots nobody asked for; they go with their sandbox.
    pub automatic: u64,
}

impl Uses {
    /// Refuses to take away what is needed.
    pub fn refuse(self) -> Result<(), ControlError> {
        let what = match (self.sandboxes, self.snapshots) {
            (0, 0) => return Ok(()),
            (sandboxes, 0) => format!("{sandboxes} of your sandboxes use this image"),
            (0, snapshots) => format!("{snapshots} of your snapshots use this image"),
            (sandboxes, snapshots) => format!(
                "{sandboxes} of your sandboxes and {snapshots} of your snapshots use this image"
            ),
        };
        Err(ControlError::new(ErrorCode::InUse, what).hint("delete them first"))
    }
}

impl Control {
    /// What an organisation's sandboxes and snapshots need, by image.
    pub(super) async fn image_uses(
        &self,
        org: &OrgId,
    ) -> Result<HashMap<ImageId, Uses>, ControlError> {
        let mut uses: HashMap<ImageId, Uses> = HashMap::new();
        let first = PageRequest {
            limit: PAGE_MAX,
            cursor: None,
        };
        let mut page = Some(first.clone());
        while let Some(asked) = page {
            let all = SandboxFilter::default();
            let found = self.store().sandboxes(org, &all, &asked).await?;
            for image in found.items.into_iter().filter_map(|row| row.facts.image) {
                uses.entry(image).or_default().sandboxes += 1;
            }
            page = found.next_cursor.map(|cursor| PageRequest {
                limit: PAGE_MAX,
                cursor: Some(cursor),
            });
        }
        let mut page = Some(first);
        while let Some(asked) = page {
            let all = SnapshotFilter::default();
            let found = self.store().snapshots(org, &all, &asked).await?;
            for row in found.items {
                let Some(image) = row.facts.image else {
                    continue;
                };
                let uses = uses.entry(image).or_default();
                match row.kind.is_automatic() {
                    true => uses.automatic += 1,
                    false => uses.snapshots += 1,
                }
            }
            page = found.next_cursor.map(|cursor| PageRequest {
                limit: PAGE_MAX,
                cursor: Some(cursor),
            });
        }
        Ok(uses)
    }

    /// Removes an image that nobody has a word for and no other fetch is about to bring to somebody;
    /// answers whether it is gone. `but` is the fetch that is being settled. The caller has the turn.
    pub(super) async fn drop_unclaimed(
        &self,
        image: &ImageId,
        but: Option<&ImageJobRecord>,
    ) -> Result<bool, ControlError> {
        let hosts = self.store().image_hosts(image).await?;
        if self.store().image_is_granted(image).await?
            || self.is_awaited(image, &hosts, but).await?
        {
            return Ok(false);
        }
        match self.remove_image_everywhere(image).await {
            Ok(()) => Ok(true),
            Err(error) if error.code == ErrorCode::NotFound => Ok(true),
            Err(error) if error.code == ErrorCode::InUse => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes an image from every host that has it; not found where none has. The caller has the turn.
    pub(super) async fn remove_image_everywhere(
        &self,
        image: &ImageId,
    ) -> Result<(), ControlError> {
        let mut missing = ControlError::not_found("image", image.as_str());
        let mut is_removed = false;
        for id in self.hosts_with(image).await? {
            match self.runner(&id).await?.remove_image(image.as_str()).await {
                Ok(()) => is_removed = true,
                Err(error @ RunnerError::NotFound { .. }) => missing = error.into(),
                Err(error) => return Err(error.into()),
            }
            self.store().remove_image_from(&id, image).await?;
        }
        match is_removed {
            true => Ok(()),
            false => Err(missing),
        }
    }

    /// As it is written down, and where it has arrived since.
    async fn hosts_with(&self, image: &ImageId) -> Result<Vec<HostId>, ControlError> {
        let mut hosts = self.store().image_hosts(image).await?;
        let listed = self.ask_hosts(|host| async move {
            let images = host.runner().await?.images().await?;
            let is_there = images.iter().any(|view| view.id == *image);
            Ok(is_there.then(|| host.id.clone()))
        });
        let listed: Vec<_> = listed.await?.into_iter().flatten().collect();
        hosts.retain(|host| !listed.contains(host));
        hosts.extend(listed);
        Ok(hosts)
    }

    /// Writes down which images a host has.
    pub(crate) async fn note_images(&self, host: &Host) -> Result<(), ControlError> {
        let _turn = self.0.guards.lock(Exclusive::Images).await?;
        let images = host.runner().await?.images().await?;
        let ids: Vec<_> = images.into_iter().map(|view| view.id).collect();
        Ok(self.store().set_images_on(&host.id, &ids).await?)
    }

    /// Whether a fetch that has brought this image to one of these hosts is still to be settled for somebody.
    async fn is_awaited(
        &self,
        image: &ImageId,
        hosts: &[HostId],
        but: Option<&ImageJobRecord>,
    ) -> Result<bool, ControlError> {
        for record in self.store().unfinished_image_jobs().await? {
            let is_same = but.is_some_and(|but| but.id == record.id && but.org == record.org);
            if is_same || !hosts.contains(&record.host) {
                continue;
            }
            let job = async { self.runner(&record.host).await?.image_job(&record.id).await };
            match job.await {
                Ok(job) => {
                    let brought = job.image.is_some_and(|view| view.id == *image);
                    if job.state == JobState::Done && brought {
                        return Ok(true);
                    }
                }
                Err(RunnerError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// Ends what an organisation pays for an image that it has no word for, if it can end now. The
    /// caller has the turn.
    pub(super) async fn let_go(
        &self,
        org: &OrgId,
        image: &ImageId,
        uses: &HashMap<ImageId, Uses>,
    ) -> Result<(), ControlError> {
        if uses.contains_key(image) {
            return Ok(());
        }
        let others = self.store().image_is_held_by_others(org, image).await?;
        if others || self.drop_unclaimed(image, None).await? {
            self.store().release_image(org, image).await?;
        }
        Ok(())
    }

    /// Looks after every image that an organisation pays for without a word for it.
    pub(crate) async fn tend_images(&self) -> Result<(), ControlError> {
        let mut after = None;
        loop {
            let found = self.store().loose_images(after).await?;
            let Some(last) = found.last().cloned() else {
                return Ok(());
            };
            after = Some(last);
            let mut known: Option<(OrgId, HashMap<ImageId, Uses>)> = None;
            for (org, image) in found {
                let _turn = self.0.guards.lock(Exclusive::Images).await?;
                let uses = match known.take() {
                    Some((whose, uses)) if whose == org => uses,
                    _ => self.image_uses(&org).await?,
                };
                self.let_go(&org, &image, &uses).await?;
                known = Some((org, uses));
            }
        }
    }
}
