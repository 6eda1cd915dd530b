//! Short-lived threads for work that may block. Each ends with its work, so what it does to its
//! own rights never reaches another call.

use cove_protocol::message::ErrorCode;
use tokio::sync::oneshot;

use crate::failure::{Failure, Result};

/// Stack of a worker: its buffers are on the heap.
const STACK: usize = 256 * 1024;

pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || {
            // A caller that is gone needs no answer.
            let _ = sender.send(work());
        })
        .map_err(|error| {
            Failure::new(
                ErrorCode::Limit,
                format!("the sandbox has no room for another thread: {error}"),
            )
        })?;
    receiver
        .await
        .map_err(|_| Failure::new(ErrorCode::Internal, "a worker of the guest failed"))
}
