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
/// Entries of organisations after which those that nobody uses are removed.
const OWNERS_KEPT: usize = 256;

#[derive(Debug)]
pub struct Turns {
    all: Arc<Semaphore>,
    share: usize,
    of: Mutex<HashMap<String, Weak<Semaphore>>>,
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
        }
    }

    /// The owner's share first: whoever waits for it holds nothing that others wait for.
    pub async fn take(&self, owner: Option<&str>) -> Result<BootTurn, IsolationError> {
        let (all, own) = (Arc::clone(&self.all), self.share_of(owner.unwrap_or("")));
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
            _ => Err(IsolationError::Exhausted("boot turn")),
        }
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
}
