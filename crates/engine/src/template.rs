//! Images made from snapshots: flattened, so that chains never grow, and with the snapshot's
//! processes when it has some, so that sandboxes of the image begin where these were.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cove_image::{Image, Progress};
use cove_model::SnapshotId;
use cove_runner::{ImageJob, RunnerError};
use time::OffsetDateTime;
use tokio::net::unix::pipe;
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner};
use crate::error::{from_pool, internal};
use crate::images::{self, Asked};
use crate::merged::{self, FlowingTask, Packing};
use crate::snapshots::{SnapshotHold, SnapshotRecord, memory_dir, staging, volume_of};
use crate::volumes::{Draft, add_empty_changes, copy_memory, pool_io};

impl Engine {
    pub(crate) async fn make_template(
        &self,
        id: &SnapshotId,
        name: &str,
    ) -> Result<ImageJob, RunnerError> {
        let hold = self.inner.snapshots.hold(id).await?;
        let inner = Arc::clone(&self.inner);
        let asked = Asked::Snapshot(id.clone(), name.to_owned());
        let wanted = name.to_owned();
        self.inner.images.begin(name, asked, move |progress| {
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
        let (image_root, volume) = (
            self.images.store.root(&base),
            self.pool.path(&hold.snapshot.volume()),
        );
        let (packing, input) = spawn_blocking(move || {
            let root = merged::open(&image_root, &volume)?;
            let (packing, output) = Packing::begin(&root)?;
            Ok::<_, io::Error>((packing, OwnedFd::from(output)))
        })
        .await
        .map_err(internal)?
        .map_err(|error| internal(format!("put the snapshot together: {error}")))?;
        let input = pipe::Receiver::from_owned_fd(input).map_err(internal)?;
        let input = FlowingTask::new(input);
        // On a failure the packing is dropped, which ends it.
        let image = self
            .images
            .store
            .import_root(Some(name), base.config.clone(), input, progress)
            .await
            .map_err(images::failure)?;
        let packed = spawn_blocking(move || packing.finish())
            .await
            .map_err(internal)?;
        if let Err(error) = packed {
            let _ = self.images.store.remove(&image.id, |_| None).await;
            return Err(internal(format!(
                "the snapshot could not be packed: {error}"
            )));
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
        let from = memory_dir(&self.pool.path(&hold.snapshot.volume()));
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
            let into = memory_dir(&inner.pool.path(draft.id()));
            add_empty_changes(&inner.pool.path(draft.id()))
                .and_then(|()| copy_memory(&from, &into))
                .map_err(|error| from_pool(pool_io("copy memory to", &into, error)))?;
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
