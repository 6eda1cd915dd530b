//! A client's socket that can be cut off at any moment, that is not read while too much waits, and that gives a client up
//! which takes nothing.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::inbox::{HELD_UP_MAX, Store};

/// How long a client may leave bytes unread in its socket. Somebody who pages through output holds up the
/// windows of channels before that.
const WRITE_STALL: Duration = Duration::from_secs(60);

pub struct Guarded<S> {
    stream: S,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    token: CancellationToken,
    /// Runs while a write waits.
    stall: Option<Pin<Box<Sleep>>>,
    store: Store,
    /// Runs while a read waits for room in the store.
    held_up: Option<Pin<Box<Sleep>>>,
}

impl<S> Guarded<S> {
    pub fn new(stream: S, token: CancellationToken, store: Store) -> Self {
        Self {
            stream,
            cut: Box::pin(token.clone().cancelled_owned()),
            token,
            stall: None,
            store,
            held_up: None,
        }
    }

    fn writing<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stall = None;
            return outcome;
        }
        let stall = self
            .stall
            .get_or_insert_with(|| Box::pin(sleep(WRITE_STALL)));
        match stall.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn cut_off<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.token.is_cancelled() || this.cut.as_mut().poll(cx).is_ready() {
            return cut_off();
        }
        if this.store.poll_open(cx).is_pending() {
            let held_up = this
                .held_up
                .get_or_insert_with(|| Box::pin(sleep(HELD_UP_MAX)));
            return held_up
                .as_mut()
                .poll(cx)
                .map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        this.held_up = None;
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.token.is_cancelled() || this.cut.as_mut().poll(cx).is_ready() {
            return cut_off();
        }
        let outcome = Pin::new(&mut this.stream).poll_write(cx, data);
        this.writing(cx, outcome)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_flush(cx);
        this.writing(cx, outcome)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (ours, _theirs) = duplex(16);
        let mut guarded = Guarded::new(ours, CancellationToken::new(), Store::default());
        let error = guarded.write_all(&[0; 64]).await.err();
        assert_eq!(
            error.map(|error| error.kind()),
            Some(io::ErrorKind::TimedOut)
        );
    }

    #[tokio::test]
    async fn a_cut_ends_a_read_that_waits() {
        let (ours, _theirs) = duplex(16);
        let token = CancellationToken::new();
        let mut guarded = Guarded::new(ours, token.clone(), Store::default());
        let reading = tokio::spawn(async move { guarded.read_u8().await });
        token.cancel();
        let error = reading.await.expect("it does not panic").err();
        assert_eq!(
            error.map(|error| error.kind()),
            Some(io::ErrorKind::ConnectionAborted)
        );
    }
}
