//! Deleting snapshots, and the images that only they used.

use std::sync::Arc;

use cove_model::{ImageId, SnapshotId};
use cove_runner_api::RunnerError;
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner};
use crate::error::{from_pool, internal};

use super::{Snapshot, volume_of};

impl Engine {
    pub(crate) async fn remove_snapshot(&self, id: &SnapshotId) -> Result<(), RunnerError> {
        if self.inner.snapshots.aside.get(id).is_some() {
            let (inner, id) = (Arc::clone(&self.inner), id.clone());
            let erased = spawn_blocking(move || inner.erase_volume(&id)).await;
            return erased.map_err(internal)?;
        }
        let snapshot = match self.inner.snapshots.find_made(id) {
            Err(RunnerError::NotFound { .. }) => return Ok(()),
            found => found?,
        };
        let engine = self.clone();
        let task = tokio::spawn(async move {
            engine.inner.erase(&snapshot).await?;
            engine
                .inner
                .drop_unnamed_image(&snapshot.record.image)
                .await;
            Ok(())
        });
        task.await.map_err(internal)?
    }
}

impl Inner {
    /// Deletes a snapshot, and nothing that it used.
    pub(crate) async fn erase(
        self: &Arc<Self>,
        snapshot: &Arc<Snapshot>,
    ) -> Result<(), RunnerError> {
        // Whoever is growing from it now has what it needs first.
        let _alone = snapshot.users.write().await;
        let (inner, id) = (Arc::clone(self), snapshot.record.id.clone());
        spawn_blocking(move || inner.erase_volume(&id))
            .await
            .map_err(internal)?
    }

    fn erase_volume(&self, id: &SnapshotId) -> Result<(), RunnerError> {
        self.snapshots
            .forget(id)
            .map_err(|error| internal(format!("remove the snapshot's record: {error}")))?;
        self.pool.delete(&volume_of(id)).map_err(from_pool)
    }

    /// What a crash may have left: processes of images that are gone, images of snapshots that are.
    pub(crate) async fn sweep_snapshots(self: &Arc<Self>) {
        for snapshot in self.snapshots.all() {
            let Some(image) = &snapshot.record.template_of else {
                continue;
            };
            if self.images.store.get(image).is_none()
                && let Err(error) = self.erase(&snapshot).await
            {
                tracing::warn!(snapshot = %snapshot.record.id, %error, "cannot remove a leftover");
            }
        }
        for image in self.images.store.list() {
            self.drop_unnamed_image(&image.id).await;
        }
    }

    /// Removes an image that came with an imported snapshot once nothing uses it any more: it never
    /// had a name, so nobody could ask for it.
    pub(crate) async fn drop_unnamed_image(self: &Arc<Self>, id: &ImageId) {
        let Some(image) = self.images.store.get(id) else {
            return;
        };
        if !image.names.is_empty() || image.source != cove_image::Source::Snapshot {
            return;
        }
        let inner = Arc::clone(self);
        let removed = self
            .images
            .store
            .remove(id, move |image| inner.user_of_image(&image.id))
            .await;
        match removed {
            Ok(()) => {
                if let Some(template) = self.snapshots.template_of(id)
                    && let Err(error) = self.erase(&template).await
                {
                    tracing::warn!(image = %id, %error, "cannot remove the saved processes of an image; the next sweep retries");
                }
            }
            Err(cove_image::ImageError::InUse { .. }) => {}
            Err(error) => {
                tracing::warn!(image = %id, %error, "cannot remove an unused image");
            }
        }
    }

    /// Who keeps an image from being removed.
    pub(crate) fn user_of_image(&self, image: &ImageId) -> Option<String> {
        let sandbox = self
            .all()
            .into_iter()
            .find(|sandbox| sandbox.record().image == *image)
            .map(|sandbox| format!("sandbox {}", sandbox.id));
        let snapshot = || {
            let used = self.snapshots.user_of(image);
            used.map(|snapshot| format!("snapshot {snapshot}"))
        };
        let aside = || {
            let sandbox = self.aside.user_of(image).map(|id| format!("sandbox {id}"));
            sandbox.or_else(|| {
                let snapshot = self.snapshots.aside.user_of(image)?;
                Some(format!("snapshot {snapshot}"))
            })
        };
        sandbox
            .or_else(snapshot)
            .or_else(|| Some(format!("{}, which is set aside", aside()?)))
    }
}
