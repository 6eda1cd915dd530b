//! The whole file system of a snapshot, its image and its changes made one. The tier knows where they lie,
//! the confined parser puts them together and packs them; here is only how long that is waited for.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use cove_image::Image;
use cove_isolation::Root;
use cove_runner_api::RunnerError;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

use crate::engine::Inner;
use crate::error::{from_isolation, from_pool};
use crate::snapshots::Snapshot;

/// How long packing may take until its next bytes: a directory is read whole before its first file is.
pub const PACK_STALL_MAX: Duration = Duration::from_secs(300);

impl Inner {
    /// The directories of which a snapshot's file system is made, the upper one first. Blocking.
    pub(crate) fn trees_of(
        &self,
        snapshot: &Snapshot,
        image: &Image,
    ) -> Result<Vec<PathBuf>, RunnerError> {
        let root = Root {
            image: self.images.store.root(image),
            disk: self.pool.disk(&snapshot.volume()),
        };
        // Also one that came from a host with a tier that this one lacks.
        if root.disk.is_blank().map_err(from_pool)? {
            return Ok(vec![root.image]);
        }
        let tier = self.tiers.named(&snapshot.record.spec.isolation);
        tier.and_then(|tier| tier.trees(&root))
            .map_err(from_isolation)
    }
}

/// A pipe that a task reads, given up when nothing comes for long.
pub struct FlowingTask<R> {
    pipe: R,
    patience: Duration,
    /// Set while nothing comes: whoever reads may take its time between two reads.
    until: Option<Pin<Box<Sleep>>>,
}

impl<R> FlowingTask<R> {
    pub fn new(pipe: R) -> Self {
        Self {
            pipe,
            patience: PACK_STALL_MAX,
            until: None,
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for FlowingTask<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Poll::Ready(read) = Pin::new(&mut this.pipe).poll_read(context, buffer) {
            this.until = None;
            return Poll::Ready(read);
        }
        let patience = this.patience;
        let until = this
            .until
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        until.as_mut().poll(context).map(|()| Err(stalled()))
    }
}

fn stalled() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "packing stalled")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_pipe_in_which_nothing_flows_is_given_up() {
        let (mut ours, theirs) = tokio::io::duplex(64);
        let mut flowing = FlowingTask {
            pipe: theirs,
            patience: SHORT,
            until: None,
        };
        let error = flowing.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        ours.write_u8(7).await.unwrap();
        assert_eq!(flowing.read_u8().await.unwrap(), 7);
    }
}
