//! Turns to boot, for tiers whose boots take long: so many at once, and at most half of them one organisation's.
//!
//! A boot keeps two threads that may wait until it is over. Without a bound, boots of one tier would take all such
//! threads of the process, and other calls would wait for them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cove_isolation::{BootTurn, IsolationError};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long a boot waits for its turn before it is refused.
const TURN_WAIT: Duration = Duration::from_secs(60);
/// Boots that wait, of all organisations: each holds a call of the host that others need as well.
const WAITING_MAX: usize = 1024;
/// Entries of organisations after which those that nobody uses are removed.
const OWNERS_KEPT: usize = 256;

#[derive(Debug)]
pub struct Turns {
    all: Arc<Semaphore>,
    share: usize,
    of: Mutex<HashMap<String, Weak<Semaphore>>>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    all: usize,
    of: HashMap<String, usize>,
}

/// A place in the line for a turn.
struct Place<'a> {
    turns: &'a Turns,
    owner: &'a str,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.turns.waiting.lock();
        waiting.all -= 1;
        if let Some(own) = waiting.of.get_mut(self.owner) {
            *own -= 1;
            if *own == 0 {
                waiting.of.remove(self.owner);
            }
        }
    }
}

/// Held until the boot is over.
struct Held {
    _all: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
}

impl Turns {
    pub fn new(at_once: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(at_once)),
            share: at_once.div_ceil(2),
            of: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// The owner's share first: whoever waits for it holds no turn that others wait for. One that may not even wait
    /// is refused at once.
    pub async fn take(&self, owner: Option<&str>) -> Result<BootTurn, IsolationError> {
        let owner = owner.unwrap_or("");
        let none = || IsolationError::Exhausted("boot turn");
        let _place = self.wait(owner).ok_or_else(none)?;
        let (all, own) = (Arc::clone(&self.all), self.share_of(owner));
        let both = async {
            let own = own.acquire_owned().await.ok()?;
            let all = all.acquire_owned().await.ok()?;
            Some(BootTurn::new(Held {
                _all: all,
                _own: own,
            }))
        };
        match timeout(TURN_WAIT, both).await {
            Ok(Some(turn)) => Ok(turn),
            _ => Err(none()),
        }
    }

    /// At most half of what the others left free.
    fn wait<'a>(&'a self, owner: &'a str) -> Option<Place<'a>> {
        let mut waiting = self.waiting.lock();
        let own = waiting.of.get(owner).copied().unwrap_or_default();
        let others = waiting.all - own;
        if own >= WAITING_MAX.saturating_sub(others) / 2 {
            return None;
        }
        waiting.all += 1;
        waiting.of.insert(owner.to_owned(), own + 1);
        Some(Place { turns: self, owner })
    }

    fn share_of(&self, owner: &str) -> Arc<Semaphore> {
        let mut of = self.of.lock();
        if let Some(share) = of.get(owner).and_then(Weak::upgrade) {
            return share;
        }
        if of.len() >= OWNERS_KEPT {
            of.retain(|_, share| share.strong_count() > 0);
        }
        let share = Arc::new(Semaphore::new(self.share));
        of.insert(owner.to_owned(), Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_owner_gets_half_of_the_turns_and_others_the_rest() {
        let turns = Turns::new(4);
        let mut held = Vec::new();
        for _ in 0..2 {
            held.push(turns.take(Some("a")).await.expect("a turn"));
        }
        // The clock of this test goes on by itself while nothing else can.
        let refused = turns.take(Some("a")).await;
        assert!(
            matches!(refused, Err(IsolationError::Exhausted("boot turn"))),
            "{refused:?}"
        );
        for owner in [Some("b"), None] {
            held.push(turns.take(owner).await.expect("a turn"));
        }
        assert!(turns.take(Some("c")).await.is_err());
        held.remove(0);
        turns.take(Some("a")).await.expect("a turn");
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_that_waits_much_leaves_others_a_place_in_the_line() {
        let turns = Arc::new(Turns::new(4));
        let mut held = Vec::new();
        for owner in ["a", "a", "b"] {
            held.push(turns.take(Some(owner)).await.expect("a turn"));
        }
        let waits = |owner: &'static str| {
            let turns = Arc::clone(&turns);
            tokio::spawn(async move { turns.take(Some(owner)).await })
        };
        let line: Vec<_> = (0..2 * WAITING_MAX).map(|_| waits("a")).collect();
        while turns.waiting.lock().all < WAITING_MAX / 2 {
            tokio::task::yield_now().await;
        }
        let begun = tokio::time::Instant::now();
        let refused = turns.take(Some("a")).await;
        assert!(refused.is_err(), "there is no place left for it");
        assert_eq!(begun.elapsed(), Duration::ZERO, "it was not left to wait");
        // Another one neither waits behind them nor is refused.
        held.push(turns.take(Some("b")).await.expect("a turn"));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        for waiting in line {
            assert!(waiting.await.expect("no panic").is_err());
        }
        let left = turns.waiting.lock();
        assert!(left.all == 0 && left.of.is_empty(), "{left:?}");
    }
}
