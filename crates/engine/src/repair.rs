//! Getting a storage pool back that turned read-only. A filesystem stays so until nobody uses it, so every
//! sandbox is ended first; disks are kept, and memory that was not on disk is lost.

use cove_model::{SandboxId, State};
use cove_runner::{RunnerApi, RunnerError};
use tokio::task::spawn_blocking;

use crate::engine::Engine;
use crate::error::EngineError;

/// A sandbox whose processes were ended for a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interrupted {
    pub id: SandboxId,
    pub state: State,
}

impl Engine {
    /// Whether the storage pool can be written to.
    pub fn check_pool(&self) -> Result<(), RunnerError> {
        self.inner
            .pool
            .check_writable()
            .map_err(crate::error::from_pool)
    }

    /// Ends the processes of every sandbox, whatever they do. Tells whose memory is lost.
    pub async fn interrupt_all(&self) -> Result<Vec<Interrupted>, RunnerError> {
        let mut interrupted = Vec::new();
        for sandbox in self.inner.all() {
            let _operation = sandbox.operation.lock().await;
            let state = sandbox.state();
            if sandbox.machine().is_none() {
                continue;
            }
            sandbox.end_machine().await?;
            interrupted.push(Interrupted {
                id: sandbox.id.clone(),
                state,
            });
        }
        Ok(interrupted)
    }

    /// Lets go of the host and unmounts the pool. The next engine over the same data mounts it again.
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

    /// Starts one again after a repair.
    pub async fn start_again(&self, id: &SandboxId) -> Result<(), RunnerError> {
        self.start(id).await.map(drop)
    }
}
