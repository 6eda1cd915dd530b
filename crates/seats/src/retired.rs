//! Roots of machines that are deleted, kept mounted a little past their end.
//!
//! Whoever lets go of an overlay last waits while the kernel puts everything on disk that anybody
//! has written to the filesystem below it. For a disk that nobody wants any more that is wasted, and
//! it makes a delete as slow as the busiest neighbour. So these roots are held here until their
//! volumes are gone, and then let go of together: those that wait at the same time share one commit.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// How long roots are gathered; each is held between once and twice as long.
const GATHER: Duration = Duration::from_millis(200);
/// How many are gathered at once; beyond that a root goes with its machine.
const GATHERED_MAX: usize = 256;
/// How many are let go of at the same time.
const AT_ONCE: usize = 16;

#[derive(Debug, Default)]
pub struct Retired {
    gathered: Mutex<Gathered>,
    /// Held while roots are let go of.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct Gathered {
    fresh: Vec<OwnedFd>,
    /// Those that have been here for a while.
    older: Vec<OwnedFd>,
    /// Whether a thread is there that will come for them.
    awaited: bool,
}

impl Retired {
    /// Keeps a root for a moment longer than its machine.
    pub fn hold(self: &Arc<Self>, root: OwnedFd) {
        let mut gathered = self.gathered();
        if gathered.fresh.len() + gathered.older.len() >= GATHERED_MAX {
            return;
        }
        if !gathered.awaited {
            let retired = Arc::clone(self);
            let thread = std::thread::Builder::new().name("cove-roots".into());
            // Without a thread it goes with its machine.
            if thread.spawn(move || retired.come_for_them()).is_err() {
                return;
            }
            gathered.awaited = true;
        }
        gathered.fresh.push(root);
    }

    /// Lets go of all of them now; returns when they are gone.
    pub fn flush(&self) {
        let _turn = self.turn();
        let mut gathered = self.gathered();
        let mut all = std::mem::take(&mut gathered.older);
        all.append(&mut gathered.fresh);
        drop(gathered);
        let_go(all);
    }

    fn come_for_them(&self) {
        loop {
            std::thread::sleep(GATHER);
            let _turn = self.turn();
            let mut gathered = self.gathered();
            let fresh = std::mem::take(&mut gathered.fresh);
            let due = std::mem::replace(&mut gathered.older, fresh);
            if due.is_empty() && gathered.older.is_empty() {
                gathered.awaited = false;
                return;
            }
            drop(gathered);
            let_go(due);
        }
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock()
    }
}

/// Each waits for the commit that is under way or for the next one, so together they wait for few.
fn let_go(roots: Vec<OwnedFd>) {
    let share = roots.len().div_ceil(AT_ONCE).max(1);
    let mut roots = roots.into_iter();
    std::thread::scope(|scope| {
        loop {
            let part: Vec<OwnedFd> = roots.by_ref().take(share).collect();
            if part.is_empty() {
                return;
            }
            // Without a thread for them they go here, one after the other.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || drop(part));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Something to hold, and an end that tells when it is let go of.
    fn pipes(count: usize, retired: &Arc<Retired>) -> Vec<std::io::PipeReader> {
        let make = |_| {
            let (reader, writer) = std::io::pipe().unwrap();
            retired.hold(writer.into());
            reader
        };
        (0..count).map(make).collect()
    }

    fn all_end(readers: Vec<std::io::PipeReader>) {
        for mut reader in readers {
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
    }

    #[test]
    fn what_is_held_goes_by_itself_and_at_once_when_asked() {
        let retired = Arc::new(Retired::default());
        let readers = pipes(40, &retired);
        retired.flush();
        all_end(readers);
        // Nobody flushes now: reading ends when somebody comes for them.
        all_end(pipes(40, &retired));
    }

    #[test]
    fn no_more_are_held_than_a_process_may_have_open() {
        let retired = Arc::new(Retired::default());
        let _readers = pipes(GATHERED_MAX + 10, &retired);
        let gathered = retired.gathered();
        assert!(gathered.fresh.len() + gathered.older.len() <= GATHERED_MAX);
    }
}
