//! What a client sent on its channels and nobody inside has taken yet.
//!
//! russh lets a client send on as soon as a packet was read, whether or not anybody took it, and reads
//! nothing else while a packet waits. So every connection has one bounded store for all its channels, large
//! enough that the packets which would let a waiting process go on are read before it is full: with the
//! client's own window it exceeds what its socket and ours hold. A full store holds the connection up.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cove_control::{Account, Charge};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{sleep, timeout};

/// Bytes waiting on one connection.
pub const WAITING_MAX: usize = 12 * 1024 * 1024;
/// What a packet counts at least, so that empty ones are bounded too.
const PIECE_MIN: usize = 512;
/// How long a connection is held up by a process that does not read.
const HELD_UP_MAX: Duration = Duration::from_secs(60);
/// How often a connection whose organisation has no memory left looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// One connection's store.
#[derive(Clone)]
pub struct Store {
    room: Arc<Semaphore>,
    /// Who pays for it, from the login on.
    account: Arc<OnceLock<Account>>,
}

pub struct Piece {
    pub data: Bytes,
    _room: OwnedSemaphorePermit,
    _paid: Option<Charge>,
}

pub type Outlet = mpsc::UnboundedReceiver<Piece>;

/// Dropping it is the end of the input.
#[derive(Clone)]
pub struct Inlet {
    store: Store,
    pieces: mpsc::UnboundedSender<Piece>,
}

impl Store {
    pub fn new() -> Self {
        Self {
            room: Arc::new(Semaphore::new(WAITING_MAX)),
            account: Arc::default(),
        }
    }

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
        // Bounded by the room that each piece holds.
        let (pieces, outlet) = mpsc::unbounded_channel();
        let store = self.clone();
        (Inlet { store, pieces }, outlet)
    }
}

impl Inlet {
    /// Waits for room. `false` when there was none for too long; what nobody wants any more is let go.
    pub async fn put(&self, data: &[u8]) -> bool {
        let size = data.len().clamp(PIECE_MIN, WAITING_MAX);
        let permits = u32::try_from(size).unwrap_or(u32::MAX);
        let room = async {
            let room = Arc::clone(&self.store.room).acquire_many_owned(permits);
            let room = room.await.ok()?;
            Some((room, self.store.pay(size).await))
        };
        let room = tokio::select! {
            room = timeout(HELD_UP_MAX, room) => room,
            () = self.pieces.closed() => return true,
        };
        let Ok(Some((room, paid))) = room else {
            return false;
        };
        let piece = Piece {
            data: Bytes::copy_from_slice(data),
            _room: room,
            _paid: paid,
        };
        self.pieces.send(piece).ok();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_nobody_takes_is_bounded_over_all_channels() {
        let store = Store::new();
        let (one, mut taker) = store.channel();
        let (two, _kept) = store.channel();
        let half = vec![7; WAITING_MAX / 2];
        assert!(one.put(&half).await && two.put(&half).await);
        assert!(!one.put(b"x").await, "there is no room for one more");
        let piece = taker.recv().await.expect("it was put");
        assert_eq!(piece.data.len(), half.len());
        drop(piece);
        assert!(one.put(b"x").await);
        drop(taker);
        for _ in 0..8 {
            assert!(one.put(&half).await, "nobody wants it, so nothing is kept");
        }
    }
}
