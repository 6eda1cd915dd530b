//! Keeps the process alive, and what it knows of the host current.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cove_model::Backoff;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{CALL, Fresh, Inner, expect_done};
use crate::control::{self, Call, Request};

/// How often resolvers and age are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Between tries to start one that does not start.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Ends by itself when the last handle is dropped.
pub(super) fn begin(inner: &Arc<Inner>) {
    let weak = Arc::downgrade(inner);
    tokio::spawn(async move {
        // Without it a process that dies stays dead.
        while let Err(error) = tokio::spawn(run(weak.clone())).await {
            if error.is_cancelled() {
                return;
            }
            tracing::error!(%error, "the supervision of the egress gateway panicked; restarting it");
            tokio::time::sleep(RETRY_MAX).await;
        }
    });
}

async fn run(weak: Weak<Inner>) {
    let mut retry = Backoff::new(RETRY_FIRST, RETRY_MAX);
    let mut stream = None;
    loop {
        let Some(inner) = weak.upgrade() else {
            return;
        };
        if inner.life.lock().await.stopped {
            return;
        }
        let watched = match stream.take() {
            Some(stream) => Ok(stream),
            None => attach(&inner).await,
        };
        match watched {
            Ok(watched) => {
                retry.reset();
                look(&inner).await;
                drop(inner);
                stream = until_end_or_tick(watched).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the egress gateway has ended; restarting it");
                if let Err(error) = inner.ensure(Fresh::Policies).await {
                    tracing::error!(%error, source = ?std::error::Error::source(&error), "the egress gateway does not start; sandboxes reach nothing until it does");
                    drop(inner);
                    tokio::time::sleep(retry.pause()).await;
                }
            }
        }
    }
}

async fn attach(inner: &Inner) -> io::Result<UnixStream> {
    let mut stream = inner.connect().await?;
    let request = Request::new(&inner.config.instance, Call::Watch);
    control::write(&mut stream, &request).await?;
    let reply = timeout(CALL, control::read_reply(&mut stream)).await??;
    expect_done(reply).map_err(io::Error::other)?;
    Ok(stream)
}

/// The stream, unless the process has ended.
async fn until_end_or_tick(mut stream: UnixStream) -> Option<UnixStream> {
    // It says nothing more: what comes is its end.
    match timeout(LOOK_EVERY, stream.read_u8()).await {
        Err(_) => Some(stream),
        Ok(_) => None,
    }
}

async fn look(inner: &Inner) {
    let upstreams = inner.upstreams();
    let mut life = inner.life.lock().await;
    if life.upstreams != upstreams {
        let told = inner.call(Call::Upstreams(upstreams.clone()), CALL).await;
        if told.and_then(expect_done).is_ok() {
            life.upstreams = upstreams;
        }
    }
    drop(life);
    let outdated = inner
        .hello()
        .await
        .is_ok_and(|hello| inner.is_outdated(&hello));
    if outdated && let Err(error) = inner.ensure(Fresh::Nothing).await {
        tracing::error!(%error, "cannot replace the egress gateway by a newer one");
    }
}
