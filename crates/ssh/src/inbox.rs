//! What a client sent on its channels and nobody inside has taken yet.
//!
//! russh lets a client send on as soon as a packet was read, whether or not anybody took it. So every connection has
//! one bounded store for all its channels, and its socket is not read while that is full enough. Output goes on
//! meanwhile. It may come to wait for the client, whose packets that let it go on are behind input in the socket:
//! then reading goes on, up to the store's end. While much waits, clients get small windows, so that little input is
//! in front of such packets.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use cove_control::{Account, Charge};
use futures_util::task::AtomicWaker;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Bytes waiting on one connection.
pub const WAITING_MAX: usize = 12 * 1024 * 1024;
/// Beyond this the socket is read only while output waits for the client.
const READ_MAX: usize = 6 * 1024 * 1024;
/// Beyond this clients get small windows.
const CROWDED: usize = 1024 * 1024;
/// What a client may send on a channel before it waits, and how much that is on a crowded connection.
pub const WINDOW: u32 = 2 * 1024 * 1024;
const SMALL_WINDOW: u32 = 128 * 1024;
/// What a packet counts at least, so that empty ones are bounded too.
const PIECE_MIN: usize = 512;
/// How long a connection is held up by a process that does not read.
pub const HELD_UP_MAX: Duration = Duration::from_secs(60);
/// How often a connection whose organisation has no memory left looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Level {
    waiting: AtomicUsize,
    /// Outputs that wait for the client.
    stalled: AtomicUsize,
    reader: AtomicWaker,
}

/// One connection's store.
#[derive(Clone, Default)]
pub struct Store {
    level: Arc<Level>,
    /// Who pays for it, from the login on.
    account: Arc<OnceLock<Account>>,
}

/// Takes up room until it is dropped.
struct Room {
    level: Arc<Level>,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.level.waiting.fetch_sub(self.bytes, SeqCst);
        self.level.reader.wake();
    }
}

struct Stalled(Arc<Level>);

impl Drop for Stalled {
    fn drop(&mut self) {
        self.0.stalled.fetch_sub(1, SeqCst);
    }
}

pub struct Piece {
    pub data: Bytes,
    _room: Room,
    _paid: Option<Charge>,
}

/// Where a channel's input comes out.
pub struct Outlet {
    pieces: mpsc::UnboundedReceiver<Piece>,
    store: Store,
}

/// Dropping it is the end of the input.
#[derive(Clone)]
pub struct Inlet {
    store: Store,
    pieces: mpsc::UnboundedSender<Piece>,
}

impl Store {
    /// There is one login on a connection.
    pub fn paid_by(&self, account: Account) {
        self.account.get_or_init(|| account);
    }

    /// Waits until the organisation can pay for so many bytes.
    async fn pay(&self, bytes: usize) -> Option<Charge> {
        let mut charge = self.account.get()?.charge();
        while !charge.grow(bytes) {
            sleep(LOOK_AGAIN).await;
        }
        Some(charge)
    }

    pub fn channel(&self) -> (Inlet, Outlet) {
        // Bounded by what is read.
        let (pieces, outlet) = mpsc::unbounded_channel();
        let inlet = Inlet {
            store: self.clone(),
            pieces,
        };
        let outlet = Outlet {
            pieces: outlet,
            store: self.clone(),
        };
        (inlet, outlet)
    }

    /// Whether the socket may be read.
    pub fn poll_open(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_open() {
            return Poll::Ready(());
        }
        self.level.reader.register(cx.waker());
        // It may have changed before the waker was there.
        match self.is_open() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn is_open(&self) -> bool {
        let waiting = self.level.waiting.load(SeqCst);
        let stalled = self.level.stalled.load(SeqCst) > 0;
        waiting < if stalled { WAITING_MAX } else { READ_MAX }
    }

    /// The window that a channel gets next.
    pub fn window(&self) -> u32 {
        match self.level.waiting.load(SeqCst) > CROWDED {
            true => SMALL_WINDOW,
            false => WINDOW,
        }
    }

    /// Waits for what sends output to the client.
    pub async fn sending<T>(&self, send: impl Future<Output = T>) -> T {
        let mut send = pin!(send);
        if let Poll::Ready(sent) = futures_util::poll!(send.as_mut()) {
            return sent;
        }
        self.level.stalled.fetch_add(1, SeqCst);
        let _stalled = Stalled(Arc::clone(&self.level));
        self.level.reader.wake();
        send.await
    }
}

impl Inlet {
    /// `false` when nobody could pay for it for too long; what nobody wants any more is let go.
    pub async fn put(&self, data: &[u8]) -> bool {
        let bytes = data.len().max(PIECE_MIN);
        let paid = tokio::select! {
            paid = timeout(HELD_UP_MAX, self.store.pay(bytes)) => paid,
            () = self.pieces.closed() => return true,
        };
        let Ok(paid) = paid else {
            return false;
        };
        let level = Arc::clone(&self.store.level);
        level.waiting.fetch_add(bytes, SeqCst);
        let piece = Piece {
            data: Bytes::copy_from_slice(data),
            _room: Room { level, bytes },
            _paid: paid,
        };
        self.pieces.send(piece).ok();
        true
    }
}

impl Outlet {
    pub async fn recv(&mut self) -> Option<Piece> {
        self.pieces.recv().await
    }

    /// Lets go of what waits and of what still comes.
    pub fn close(&mut self) {
        self.pieces.close();
        while self.pieces.try_recv().is_ok() {}
    }

    pub fn store(&self) -> Store {
        self.store.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::poll_fn;

    async fn is_open(store: &Store) -> bool {
        poll_fn(|cx| Poll::Ready(store.poll_open(cx).is_ready())).await
    }

    #[tokio::test]
    async fn what_nobody_takes_holds_the_socket_up_over_all_channels() {
        let store = Store::default();
        let (one, mut taker) = store.channel();
        let (two, mut other) = store.channel();
        let half = vec![7; READ_MAX / 2];
        assert!(one.put(&half).await && is_open(&store).await);
        assert_eq!(store.window(), SMALL_WINDOW);
        assert!(two.put(&half).await && !is_open(&store).await);
        let piece = taker.recv().await.expect("it was put");
        assert_eq!(piece.data.len(), half.len());
        assert!(!is_open(&store).await, "whoever has it has not taken it");
        let waiting = {
            let store = store.clone();
            tokio::spawn(async move { poll_fn(|cx| store.poll_open(cx)).await })
        };
        tokio::task::yield_now().await;
        drop(piece);
        waiting.await.expect("it is woken");
        other.close();
        assert_eq!(store.window(), WINDOW);
        for _ in 0..8 {
            assert!(two.put(&half).await, "nobody wants it, so nothing is kept");
        }
        assert!(is_open(&store).await);
    }

    #[tokio::test]
    async fn reading_goes_on_while_output_waits_for_the_client() {
        let store = Store::default();
        let (inlet, _kept) = store.channel();
        assert!(inlet.put(&vec![7; READ_MAX]).await);
        assert!(!is_open(&store).await);
        let waiting = {
            let store = store.clone();
            tokio::spawn(async move { poll_fn(|cx| store.poll_open(cx)).await })
        };
        tokio::task::yield_now().await;
        let stall = {
            let store = store.clone();
            tokio::spawn(async move { store.sending(std::future::pending::<()>()).await })
        };
        waiting.await.expect("it is woken");
        assert!(inlet.put(&vec![7; WAITING_MAX - READ_MAX]).await);
        assert!(!is_open(&store).await, "that has an end too");
        stall.abort();
        stall.await.ok();
        assert_eq!(store.sending(async { 3 }).await, 3);
        assert_eq!(store.level.stalled.load(SeqCst), 0);
    }
}
