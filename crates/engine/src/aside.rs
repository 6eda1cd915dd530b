//! What cannot be used and is not given up: sandboxes and snapshots with a damaged record, and sandboxes that
//! could not be taken over.
//!
//! They are kept out of every operation and shown as failed with the reason. Their disks stay until somebody
//! deletes them, or, for sandboxes, has them put back into service with what the control plane knows of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use cove_model::{ImageId, Resources, SandboxId, SandboxSpec, SnapshotId, State};
use cove_runner_api::{Reinstate, RunnerError, SandboxView, SnapshotView};
use time::OffsetDateTime;
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner};
use crate::error::{chain, from_pool, from_write, internal};
use crate::files::Damaged;
use crate::record::{Durability, Record};
use crate::sandbox::volume_of;
use crate::snapshots::staging;

/// How the reason begins of one that a new engine could not take over.
pub const NOT_TAKEN_OVER: &str = "it could not be taken over";
/// Letters of an image's id after its prefix.
const IMAGE_LETTERS: usize = 20;

#[derive(Debug, Clone)]
pub struct SetAside {
    pub reason: String,
    pub since: OffsetDateTime,
    /// Its record, where that can be read.
    pub record: Option<Box<Record>>,
    /// What it is known to lie on.
    pub image: Option<ImageId>,
}

impl SetAside {
    pub fn damaged(damaged: &Damaged) -> Self {
        Self {
            reason: format!("its record is damaged: {}", damaged.reason),
            since: OffsetDateTime::now_utc(),
            record: None,
            image: find_image(&damaged.content),
        }
    }

    pub fn refused(record: Record, reason: String) -> Self {
        Self {
            reason: format!("{NOT_TAKEN_OVER}: {reason}"),
            since: OffsetDateTime::now_utc(),
            image: Some(record.image.clone()),
            record: Some(Box::new(record)),
        }
    }

    /// Whether it may need an image: one whose image is not known may need any.
    fn may_use(&self, image: &ImageId) -> bool {
        self.image.as_ref().is_none_or(|used| used == image)
    }

    fn error(&self, what: &str, id: &str) -> RunnerError {
        RunnerError::Unsupported {
            message: format!("{what} {id} is set aside: {}", self.reason),
        }
    }

    fn sandbox(&self, id: &SandboxId) -> SandboxView {
        let spec = self
            .record
            .as_ref()
            .map_or_else(SandboxSpec::default, |record| record.spec.clone());
        SandboxView {
            id: id.clone(),
            state: State::Failed,
            reason: Some(self.reason.clone()),
            limits: spec.resources.clone(),
            spec,
            image: self.image.clone().unwrap_or_else(ImageId::random),
            image_env: Vec::new(),
            image_user: None,
            image_workdir: None,
            created_at: self.since,
            started_at: None,
            placeholders: Default::default(),
            set_aside: true,
        }
    }

    pub fn snapshot(&self, id: &SnapshotId) -> SnapshotView {
        SnapshotView {
            id: id.clone(),
            sandbox: SandboxId::random(),
            parent: None,
            memory: false,
            image: self.image.clone().unwrap_or_else(ImageId::random),
            spec: SandboxSpec::default(),
            created_at: self.since,
            exclusive_bytes: 0,
            shared_bytes: 0,
            counted_bytes: 0,
            memory_bytes: 0,
            stopped_us: 0,
            unfit: None,
            set_aside: Some(self.reason.clone()),
        }
    }
}

/// The first image id in what is left of a record.
fn find_image(content: &[u8]) -> Option<ImageId> {
    let text = String::from_utf8_lossy(content);
    let at = text.find(&format!("{}_", ImageId::PREFIX))?;
    text.get(at..at + ImageId::PREFIX.len() + 1 + IMAGE_LETTERS)?
        .parse()
        .ok()
}

/// What is set aside of one kind.
#[derive(Debug)]
pub struct Aside<Id> {
    what: &'static str,
    entries: RwLock<BTreeMap<Id, Arc<SetAside>>>,
}

impl<Id: Ord + Clone + std::fmt::Display> Aside<Id> {
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            entries: RwLock::default(),
        }
    }

    pub fn put(&self, id: Id, entry: SetAside) {
        tracing::error!(%id, what = self.what, reason = entry.reason, "quarantined; its disk is kept");
        self.entries.write().insert(id, Arc::new(entry));
    }

    pub fn get(&self, id: &Id) -> Option<Arc<SetAside>> {
        self.entries.read().get(id).cloned()
    }

    pub fn remove(&self, id: &Id) {
        self.entries.write().remove(id);
    }

    pub fn all(&self) -> Vec<(Id, Arc<SetAside>)> {
        self.entries
            .read()
            .iter()
            .map(|(id, entry)| (id.clone(), Arc::clone(entry)))
            .collect()
    }

    /// Refuses what is asked of one that is set aside.
    pub fn refuse(&self, id: &Id) -> Result<(), RunnerError> {
        match self.get(id) {
            Some(entry) => Err(entry.error(self.what, &id.to_string())),
            None => Ok(()),
        }
    }

    /// One that may need an image, for the refusal to remove it.
    pub fn user_of(&self, image: &ImageId) -> Option<Id> {
        self.all()
            .into_iter()
            .find(|(_, entry)| entry.may_use(image))
            .map(|(id, _)| id)
    }
}

impl Aside<SandboxId> {
    pub fn view(&self, id: &SandboxId) -> Option<SandboxView> {
        Some(self.get(id)?.sandbox(id))
    }

    pub fn views(&self) -> Vec<SandboxView> {
        self.all()
            .into_iter()
            .map(|(id, entry)| entry.sandbox(&id))
            .collect()
    }
}

impl Engine {
    /// Takes a sandbox that was set aside back into service: by its record where that can be read, otherwise
    /// stopped, as the caller describes it. Its disk is what it was.
    pub(crate) async fn reinstate_sandbox(
        &self,
        request: Reinstate,
    ) -> Result<SandboxView, RunnerError> {
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _turn = engine.inner.aside_turn.lock().await;
            let id = request.id.clone();
            let Some(entry) = engine.inner.aside.get(&id) else {
                return Ok(engine.inner.find(&id)?.view());
            };
            let record = match &entry.record {
                Some(record) => record.as_ref().clone(),
                None => engine.inner.described(request)?,
            };
            let failed = |error: &dyn std::error::Error| RunnerError::Internal {
                message: format!("sandbox {id} cannot be taken over: {}", chain(error)),
            };
            let (records, kept) = (engine.inner.records.clone(), record.clone());
            spawn_blocking(move || records.write(&kept, Durability::Flushed))
                .await
                .map_err(internal)?
                .map_err(|error| from_write("the sandbox's record", &error))?;
            engine
                .adopt(record, None)
                .await
                .map_err(|error| failed(&error))?;
            engine.inner.aside.remove(&id);
            Ok(engine.inner.find(&id)?.view())
        });
        task.await.map_err(internal)?
    }

    /// Deletes one that is set aside; `false` when it is not.
    pub(crate) async fn delete_set_aside(&self, id: &SandboxId) -> Result<bool, RunnerError> {
        let _turn = self.inner.aside_turn.lock().await;
        if self.inner.aside.get(id).is_none() {
            return Ok(false);
        }
        let (inner, gone) = (Arc::clone(&self.inner), id.clone());
        spawn_blocking(move || {
            for volume in [volume_of(&gone), staging("resume", gone.as_str())] {
                inner.pool.delete(&volume).map_err(from_pool)?;
            }
            inner
                .records
                .remove(&gone)
                .map_err(|error| internal(format!("remove the sandbox's record: {error}")))
        })
        .await
        .map_err(internal)??;
        self.inner.aside.remove(id);
        Ok(true)
    }
}

impl Inner {
    /// The record of a stopped sandbox whose own was lost.
    fn described(&self, request: Reinstate) -> Result<Record, RunnerError> {
        // Control describes it, and may describe another tier or network than it had.
        let owner = request.owner.as_ref().map(|owner| owner.org.as_str());
        self.check_allowed(owner, &request.spec)?;
        self.check_network(&request.spec.network)?;
        let image = self
            .images
            .store
            .get(&request.image)
            .ok_or_else(|| RunnerError::NotFound {
                what: "image".into(),
                id: request.image.to_string(),
            })?;
        if !self
            .pool
            .exists(&volume_of(&request.id))
            .map_err(from_pool)?
        {
            return Err(RunnerError::NotFound {
                what: "disk of sandbox".into(),
                id: request.id.to_string(),
            });
        }
        let limits: Resources = request.spec.resources.clone();
        Ok(Record {
            id: request.id,
            home: request.owner.as_ref().is_none_or(|owner| owner.home),
            owner: request.owner.map(|owner| owner.org),
            state: State::Stopped,
            reason: Some("its record was damaged and was written again".into()),
            limits,
            grown_mb: None,
            image: image.id.clone(),
            image_env: image.config.env.clone(),
            image_user: image.config.user.clone(),
            image_workdir: image.config.workdir.clone(),
            created_at: request.created_at,
            started_at: None,
            started_boot_us: None,
            machine: None,
            host_boot: self.host_boot.clone(),
            past_cpu_usec: 0,
            past_oom_kills: 0,
            past_network_sent_bytes: 0,
            past_network_received_bytes: 0,
            parent: request.parent,
            // An empty disk must not take the place of this one.
            grown_from_snapshot: true,
            inherited_bytes: 0,
            accounts: Vec::new(),
            snapshotted: None,
            memory: None,
            restoring: None,
            placeholders: crate::secrets::fresh_placeholders(&request.spec),
            secret_hosts: Vec::new(),
            spec: request.spec,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_record_still_tells_its_image_or_may_need_any() {
        let image = ImageId::random();
        let damaged = |content: String| {
            SetAside::damaged(&Damaged {
                name: "sbx".into(),
                reason: "torn".into(),
                content: content.into_bytes(),
            })
        };
        let told = damaged(format!("{{\"image\":\"{image}\",\"im"));
        assert!(told.may_use(&image));
        assert!(!told.may_use(&ImageId::random()));
        for silent in ["", "img_", "\u{0}garbage", "img_ü"] {
            assert!(damaged(silent.into()).may_use(&image), "{silent:?}");
        }
    }
}
