//! A connection that gives up on a peer that no longer reads, or never says anything.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cove_dialect::Wire;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::config::ServerConfig;
use crate::pulse::Pulse;
use crate::room::Room;

/// So many bytes tell which HTTP a peer speaks; until then no other timer watches it.
const OPENING: usize = 24;
/// How HTTP/2 begins; no method of HTTP/1 does.
const SECOND: &[u8] = b"PRI * HTTP/2";

/// Writes that make no progress for `limit` fail, as do reads when the opening takes too long; the
/// connection's task then ends.
pub struct Stalling<S> {
    inner: S,
    limit: Duration,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
    /// Runs until the opening was read.
    opening: Option<Pin<Box<Sleep>>>,
    read: usize,
    pulse: Arc<Pulse>,
    wire: Wire,
    room: Room,
}

impl<S> Stalling<S> {
    /// Must be called in a runtime: the time for the opening begins now.
    pub fn new(inner: S, config: &ServerConfig, pulse: Arc<Pulse>, wire: Wire) -> Self {
        Self {
            inner,
            limit: config.write_stall,
            timer: None,
            opening: Some(Box::pin(sleep(config.header_timeout))),
            read: 0,
            pulse,
            wire,
            room: Room::default(),
        }
    }

    fn judge<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.timer = None;
            return poll;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        if timer.as_mut().poll(cx).is_ready() {
            timer.as_mut().reset(Instant::now() + limit);
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        // Whoever pays for what is read here has no room for more: the peer waits, for a while.
        match this.room.poll(cx, this.limit, || this.wire.has_room()) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
            Poll::Pending => return Poll::Pending,
        }
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.inner).poll_read(cx, buf);
        let new = &buf.filled()[before..];
        if !new.is_empty() {
            self.wire.read(new.len());
            if self.read == 0 && new.starts_with(&SECOND[..SECOND.len().min(new.len())]) {
                self.pulse.speaks_second();
            }
            self.pulse.heard();
        }
        self.read = self.read.saturating_add(new.len());
        if self.read >= OPENING {
            self.opening = None;
        }
        if poll.is_pending()
            && let Some(timer) = &mut self.opening
            && timer.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.judge(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write_vectored(cx, parts);
        self.judge(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(cx);
        self.judge(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.judge(cx, poll)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn stalling<S>(inner: S) -> Stalling<S> {
        let config = ServerConfig {
            write_stall: Duration::from_secs(60),
            header_timeout: Duration::from_secs(5),
            ..ServerConfig::default()
        };
        Stalling::new(inner, &config, Pulse::new(), Wire::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_reads_is_given_up() {
        let (here, _there) = tokio::io::duplex(16);
        let mut stalling = stalling(here);
        let error = stalling.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_says_too_little_is_given_up_and_one_that_said_enough_is_not() {
        use tokio::io::AsyncReadExt;
        for (said, given_up) in [(0, true), (OPENING - 1, true), (OPENING, false)] {
            let (here, mut there) = tokio::io::duplex(64);
            let mut stalling = stalling(here);
            there.write_all(&vec![b'x'; said]).await.unwrap();
            let read = async {
                let mut all = [0; 64];
                let mut count = 0;
                loop {
                    match stalling.read(&mut all[count..]).await {
                        Ok(more) => count += more,
                        Err(error) => return error.kind(),
                    }
                }
            };
            let ended = tokio::time::timeout(Duration::from_secs(50), read).await;
            assert_eq!(ended.is_ok(), given_up, "after {said} bytes");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_served_as_long_as_it_reads() {
        use tokio::io::AsyncReadExt;
        let (here, mut there) = tokio::io::duplex(16);
        let mut stalling = stalling(here);
        let reader = tokio::spawn(async move {
            let mut all = Vec::new();
            let mut byte = [0; 8];
            while let Ok(count @ 1..) = there.read(&mut byte).await {
                all.extend_from_slice(&byte[..count]);
                // The clock is the test's own: nothing really waits here.
                tokio::time::sleep(Duration::from_secs(50)).await;
            }
            all.len()
        });
        stalling.write_all(&[0; 64]).await.unwrap();
        stalling.shutdown().await.unwrap();
        drop(stalling);
        assert_eq!(reader.await.unwrap(), 64);
    }
}
