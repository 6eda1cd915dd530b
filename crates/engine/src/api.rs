//! The engine as a runner.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cove_model::{ImageId, ResourcesPatch, SandboxId};
use cove_runner::{
    CreateRequest, EventBatch, GuestStream, HostReport, ImageJob, ImageSource, ImageView,
    RunnerApi, RunnerError, Sample, SandboxView,
};
use tokio::task::spawn_blocking;

use crate::engine::Engine;
use crate::error::{chain, internal};
use crate::{doctor, images};

/// The longest a caller may wait for events in one call.
const EVENTS_WAIT_MAX: Duration = Duration::from_secs(60);

#[async_trait]
impl RunnerApi for Engine {
    async fn create(&self, request: CreateRequest) -> Result<SandboxView, RunnerError> {
        self.create_sandbox(request).await
    }

    async fn get(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        Ok(self.inner.find(id)?.view())
    }

    async fn list(&self) -> Result<Vec<SandboxView>, RunnerError> {
        Ok(self
            .inner
            .all()
            .iter()
            .map(|sandbox| sandbox.view())
            .collect())
    }

    async fn start(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.start_sandbox(id).await
    }

    async fn stop(&self, id: &SandboxId, grace_ms: u64) -> Result<SandboxView, RunnerError> {
        self.stop_sandbox(id, grace_ms).await
    }

    async fn delete(&self, id: &SandboxId) -> Result<(), RunnerError> {
        self.delete_sandbox(id).await
    }

    async fn resize(
        &self,
        id: &SandboxId,
        patch: ResourcesPatch,
    ) -> Result<SandboxView, RunnerError> {
        self.resize_sandbox(id, patch).await
    }

    async fn sample(&self, id: &SandboxId) -> Result<Sample, RunnerError> {
        self.sample_sandbox(self.inner.find(id)?).await
    }

    async fn samples(&self) -> Result<Vec<(SandboxId, Sample)>, RunnerError> {
        let inner = Arc::clone(&self.inner);
        spawn_blocking(move || {
            // One that is being deleted meanwhile has no figures any more.
            inner
                .all()
                .iter()
                .filter_map(|sandbox| Some((sandbox.id.clone(), inner.sample(sandbox).ok()?)))
                .collect()
        })
        .await
        .map_err(internal)
    }

    async fn connect(&self, id: &SandboxId) -> Result<GuestStream, RunnerError> {
        let sandbox = self.inner.find(id)?;
        let machine = sandbox.machine().ok_or_else(|| RunnerError::Conflict {
            request: "connect to".into(),
            state: sandbox.state(),
        })?;
        let stream = machine
            .connect()
            .await
            .map_err(|error| RunnerError::GuestUnreachable {
                message: error.to_string(),
            })?;
        Ok(stream.into())
    }

    async fn events(&self, after: u64, wait_ms: u64) -> Result<EventBatch, RunnerError> {
        let wait = Duration::from_millis(wait_ms).min(EVENTS_WAIT_MAX);
        Ok(self.inner.events.after(after, wait).await)
    }

    async fn images(&self) -> Result<Vec<ImageView>, RunnerError> {
        let sandboxes = self.inner.all();
        let users = |id: &ImageId| {
            sandboxes
                .iter()
                .filter(|sandbox| sandbox.record().image == *id)
                .count() as u64
        };
        Ok(self
            .inner
            .images
            .store
            .list()
            .iter()
            .map(|image| images::view(image, users(&image.id)))
            .collect())
    }

    async fn add_image(&self, source: ImageSource) -> Result<ImageJob, RunnerError> {
        self.inner.images.add(source)
    }

    async fn image_job(&self, id: &str) -> Result<ImageJob, RunnerError> {
        self.inner.images.job(id)
    }

    async fn remove_image(&self, id: &str) -> Result<(), RunnerError> {
        let store = &self.inner.images.store;
        let image = store.resolve(id).ok_or_else(|| RunnerError::NotFound {
            what: "image".into(),
            id: id.to_owned(),
        })?;
        let inner = Arc::clone(&self.inner);
        let in_use = move |image: &cove_image::Image| {
            let user = inner
                .all()
                .into_iter()
                .find(|sandbox| sandbox.record().image == image.id)?;
            Some(format!("sandbox {}", user.id))
        };
        store
            .remove(&image.id, in_use)
            .await
            .map_err(|error| match error {
                error @ cove_image::ImageError::InUse { .. } => RunnerError::InUse {
                    message: error.to_string(),
                },
                error => internal(chain(&error)),
            })
    }

    async fn host(&self) -> Result<HostReport, RunnerError> {
        let inner = Arc::clone(&self.inner);
        spawn_blocking(move || doctor::report(&inner))
            .await
            .map_err(internal)?
    }
}
