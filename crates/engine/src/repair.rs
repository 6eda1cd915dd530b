//! Getting a storage pool back that turned read-only. A filesystem stays so until nobody uses it, so every
//! sandbox is ended first; disks are kept, and memory that was not on disk is lost.

use async_recursion::async_recursion as boxed;
use std::path::Path;

use cove_model::{SandboxId, State};
use cove_runner_api::{RunnerApi, RunnerError};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use crate::engine::Engine;
use crate::error::{EngineError, internal};
use crate::files::{Durability, Files};

/// A sandbox whose processes were ended for a repair. It is written down until the sandbox runs again, so that
/// a repair that was cut short can be gone on with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupted {
    pub id: SandboxId,
    pub state: State,
}

/// Where that is written down, in the engine's data directory.
const INTERRUPTED: &str = "interrupted";

/// Whether a repair of this data directory was cut short.
pub fn is_unfinished(data_dir: &Path) -> bool {
    std::fs::read_dir(data_dir.join(INTERRUPTED)).is_ok_and(|mut files| files.next().is_some())
}

impl Engine {
    /// Whether the storage pool can be written to.
    pub fn check_pool(&self) -> Result<(), RunnerError> {
        self.inner
            .pool
            .check_writable()
            .map_err(crate::error::from_pool)
    }

    fn interruptions(&self) -> Result<Files, RunnerError> {
        let dir = self.inner.config.data_dir.join(INTERRUPTED);
        Files::open(dir).map_err(internal)
    }

    /// Ends the processes of every sandbox, whatever they do, and remembers which ran.
    #[boxed]
    pub async fn interrupt_all(&self) -> Result<(), RunnerError> {
        let files = self.interruptions()?;
        self.end_each(|interrupted| {
            files
                .write(interrupted.id.as_str(), interrupted, Durability::Flushed)
                .map_err(internal)
        })
        .await
    }

    /// Ends the processes of every sandbox, whatever they do. Disks stay.
    #[boxed]
    pub async fn end_all(&self) -> Result<(), RunnerError> {
        self.end_each(|_| Ok(())).await
    }

    async fn end_each(
        &self,
        before: impl Fn(&Interrupted) -> Result<(), RunnerError>,
    ) -> Result<(), RunnerError> {
        for sandbox in self.inner.all() {
            let _operation = sandbox.operation.lock().await;
            let state = sandbox.state();
            if sandbox.machine().is_none() {
                continue;
            }
            let id = sandbox.id.clone();
            before(&Interrupted { id, state })?;
            sandbox.end_machine().await?;
        }
        Ok(())
    }

    /// Those whose processes were ended by this repair, or by one before it that was cut short.
    pub fn interrupted(&self) -> Result<Vec<Interrupted>, RunnerError> {
        let found = self.interruptions()?.load().map_err(internal)?;
        Ok(found.intact.into_iter().map(|(_, it)| it).collect())
    }

    /// Lets go of the host and unmounts the pool. The next engine over the same data mounts it again.
    #[boxed]
    pub async fn detach(self) -> Result<(), EngineError> {
        self.cool_down().await;
        self.close().await;
        let pool = self.inner.pool.clone();
        drop(self);
        let closed = spawn_blocking(move || pool.close()).await;
        closed
            .map_err(|error| EngineError::Io {
                action: "close",
                path: Default::default(),
                source: std::io::Error::other(error),
            })?
            .map_err(EngineError::Pool)
    }

    /// Starts one again after a repair, and returns whether it did: one that was deleted or started meanwhile is
    /// left as it is.
    #[boxed]
    pub async fn start_again(&self, interrupted: &Interrupted) -> Result<bool, RunnerError> {
        let id = &interrupted.id;
        let stopped = match self.get(id).await {
            Ok(view) => view.state == State::Stopped,
            Err(RunnerError::NotFound { .. }) => false,
            Err(error) => return Err(error),
        };
        if stopped {
            self.start(id).await?;
        }
        let files = self.interruptions()?;
        files.remove(id.as_str()).map_err(internal)?;
        Ok(stopped)
    }
}
