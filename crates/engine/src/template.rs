//! Images made from snapshots: flattened, so that chains never grow, and with the snapshot's
//! processes when it has some, so that sandboxes of the image begin where these were.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use cove_image::{Image, Progress};
use cove_model::SnapshotId;
use cove_runner_api::{ImageJob, ImageOwner, RunnerError};
use time::OffsetDateTime;
use tokio::net::unix::pipe;
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner};
use crate::error::{from_pool, internal};
use crate::images::{self, Asked};
use crate::merged::FlowingTask;
use crate::snapshots::{SnapshotHold, SnapshotRecord, staging, volume_of};
use crate::volumes::Draft;

impl Engine {
    pub(crate) async fn make_template(
        &self,
        id: &SnapshotId,
        name: &str,
        owner: ImageOwner,
    ) -> Result<ImageJob, RunnerError> {
        let hold = self.inner.snapshots.hold(id).await?;
        let record = &hold.snapshot.record;
        if record.memory.is_some() && !record.spec.volumes.is_empty() {
            return Err(RunnerError::Invalid {
                message: format!(
                    "snapshot {id} has memory of processes that had volumes, which no image has; take one without memory"
                ),
            });
        }
        let inner = Arc::clone(&self.inner);
        let asked = Asked::Snapshot(id.clone(), name.to_owned());
        let wanted = name.to_owned();
        self.inner
            .images
            .begin(name, asked, owner, move |progress| {
                Box::pin(async move { inner.flatten(&hold, &wanted, progress).await })
            })
    }
}

impl Inner {
    async fn flatten(
        self: &Arc<Self>,
        hold: &SnapshotHold,
        name: &str,
        progress: Box<dyn Fn(Progress) + Send + Sync>,
    ) -> Result<Image, RunnerError> {
        let record = &hold.snapshot.record;
        let (base, _base_hold) = self.hold_image(record.image.as_str())?;
        let (inner, snapshot) = (Arc::clone(self), Arc::clone(&hold.snapshot));
        let packed_base = base.clone();
        let (begun, packed) = tokio::sync::oneshot::channel();
        // One thread for the packer's whole life, because it ends with the thread that started it.
        let packing = spawn_blocking(move || -> Result<(), RunnerError> {
            let failed =
                |error: &dyn std::fmt::Display| internal(format!("pack the snapshot: {error}"));
            let trees = inner.trees_of(&snapshot, &packed_base)?;
            let packing = inner.parser.pack_tree(trees, false);
            let (output, end) = packing.map_err(|error| failed(&error))?.split();
            // Whoever does not take it closes it, which ends the packer.
            let _ = begun.send(OwnedFd::from(output));
            end.wait().map_err(|error| failed(&error))
        });
        let Ok(input) = packed.await else {
            packing.await.map_err(internal)??;
            return Err(internal("the packer returned nothing"));
        };
        let input = pipe::Receiver::from_owned_fd(input).map_err(internal)?;
        let input = FlowingTask::new(input);
        // On a failure the input is dropped, which ends the packer.
        let image = self
            .images
            .store
            .import_root(Some(name), base.config.clone(), input, progress)
            .await
            .map_err(images::failure)?;
        if let Err(error) = packing.await.map_err(internal)? {
            let _ = self.images.store.remove(&image.id, |_| None).await;
            return Err(error);
        }
        let image_hold = self.images.store.hold(&image.id);
        if record.memory.is_some() {
            self.add_processes(hold, &image).await?;
        }
        drop(image_hold);
        let memory_bytes = record.memory.as_ref().map_or(0, |memory| memory.bytes);
        Ok(Image {
            size_bytes: image.size_bytes.saturating_add(memory_bytes),
            ..image
        })
    }

    /// Keeps a snapshot's processes beside an image, as a snapshot of it in which nothing changed.
    async fn add_processes(
        self: &Arc<Self>,
        hold: &SnapshotHold,
        image: &Image,
    ) -> Result<(), RunnerError> {
        let older = self.snapshots.template_of(&image.id);
        let id = SnapshotId::random();
        let from = self.pool.disk(&hold.snapshot.volume());
        let new = SnapshotRecord {
            id: id.clone(),
            parent: None,
            image: image.id.clone(),
            created_at: OffsetDateTime::now_utc(),
            accounts: Vec::new(),
            template_of: Some(image.id.clone()),
            weight_bytes: 0,
            ..hold.snapshot.record.clone()
        };
        let inner = Arc::clone(self);
        spawn_blocking(move || {
            let draft = Draft::new(&inner.pool, staging("draft", id.as_str()));
            inner.pool.create(draft.id()).map_err(from_pool)?;
            from.copy_memory(&inner.pool.disk(draft.id()))
                .map_err(from_pool)?;
            let target = volume_of(&id);
            let published = Draft::new(&inner.pool, target.clone());
            inner
                .pool
                .rename(draft.id(), &target)
                .and_then(|()| inner.pool.set_read_only(&target))
                .and_then(|()| inner.pool.sync(&target))
                .map_err(from_pool)?;
            draft.keep();
            published.keep();
            inner.publish_snapshot(new)
        })
        .await
        .map_err(internal)??;
        match older {
            Some(older) => self.erase(&older).await,
            None => Ok(()),
        }
    }
}
