//! Seats made ahead of need.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;

use tokio::task::spawn_blocking;

use crate::seat::Seat;
use crate::seats::Seats;

/// How long a used seat waits to be replaced.
const REFILL_PAUSE: Duration = Duration::from_millis(20);

impl Seats {
    pub(crate) fn warm(&self) -> MutexGuard<'_, VecDeque<Seat>> {
        self.warm.lock()
    }

    /// A seat whose child still waits, when there is one.
    pub(crate) fn take_ready(&self) -> Option<Seat> {
        loop {
            let seat = self.warm().pop_front()?;
            if seat.is_alive() {
                return Some(seat);
            }
            tracing::warn!("a prepared process was killed; removing its seat");
            // Removing its group may take a moment.
            spawn_blocking(move || drop(seat));
        }
    }

    pub(crate) fn refill(&self, _turn: MutexGuard<'_, ()>) {
        let wanted = || !self.closed.load(Ordering::Acquire) && !self.cool.load(Ordering::Acquire);
        while wanted() && self.warm().len() < self.wanted {
            let made = self
                .maker
                .make()
                .and_then(|mut seat| seat.wait_parked().map(|()| seat));
            match made {
                Ok(seat) => self.warm().push_back(seat),
                Err(error) => {
                    // Boots make their own seats and report the reason; the next one tries again.
                    tracing::warn!(%error, "cannot prepare a seat ahead of use");
                    return;
                }
            }
        }
    }

    pub(crate) fn refill_in_background(self: &Arc<Self>) {
        if self.wanted == 0 || self.cool.load(Ordering::Acquire) {
            return;
        }
        let seats = Arc::clone(self);
        tokio::spawn(async move {
            // The sandbox just booted is about to run its first command; making the next seat would
            // take the CPU away from it.
            tokio::time::sleep(REFILL_PAUSE).await;
            let _ = spawn_blocking(move || {
                if let Some(turn) = seats.refill.try_lock() {
                    seats.refill(turn);
                }
            })
            .await;
        });
    }

    /// Drops what waits, and the roots of deleted machines with it.
    pub(crate) fn let_go_of_seats(&self) {
        // A seat under way comes to its end first; it would be missed otherwise.
        let _turn = self.refill.lock();
        let seats: Vec<Seat> = self.warm().drain(..).collect();
        drop(seats);
        self.retired.flush();
    }
}
