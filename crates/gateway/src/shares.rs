//! A bounded number of something that all sandboxes use, shared so that nobody takes all of it.
//!
//! An organisation may hold as much as is free at the moment, and one sandbox a little less. One
//! organisation alone so gets half of the whole, two get a third each, and whoever comes next always
//! finds something free. Sandboxes of whom nobody says whose they are count each for itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use cove_model::SandboxId;

/// Refusals are reported to the operator together, this often at most.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// What one sandbox may hold of what its organisation may: the rest is its siblings'.
const SANDBOX_PART: (usize, usize) = (3, 4);

#[derive(Debug)]
pub struct Shares {
    what: &'static str,
    total: usize,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    held: usize,
    owners: HashMap<Arc<str>, OwnerShare>,
    refused: u64,
    told: Option<Instant>,
}

#[derive(Debug, Default)]
struct OwnerShare {
    all: usize,
    sandboxes: HashMap<SandboxId, usize>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    owner: Arc<str>,
    sandbox: SandboxId,
}

impl Shares {
    pub fn new(what: &'static str, total: usize) -> Arc<Self> {
        Arc::new(Self {
            what,
            total,
            book: Mutex::default(),
        })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock()
    }

    pub fn held(&self) -> usize {
        self.book().held
    }

    /// One more for this sandbox, unless that would be more than its share or its owner's.
    pub fn take(self: &Arc<Self>, owner: &Arc<str>, sandbox: &SandboxId) -> Option<Share> {
        let mut book = self.book();
        let free = self.total.saturating_sub(book.held);
        let (by_owner, by_sandbox) = match book.owners.get(owner) {
            Some(held) => (
                held.all,
                held.sandboxes.get(sandbox).copied().unwrap_or_default(),
            ),
            None => (0, 0),
        };
        if by_owner >= free || by_sandbox >= (free * SANDBOX_PART.0).div_ceil(SANDBOX_PART.1) {
            self.refuse(&mut book, owner);
            return None;
        }
        book.held += 1;
        let held = book.owners.entry(owner.clone()).or_default();
        held.all += 1;
        *held.sandboxes.entry(sandbox.clone()).or_default() += 1;
        Some(Share {
            shares: self.clone(),
            owner: owner.clone(),
            sandbox: sandbox.clone(),
        })
    }

    fn refuse(&self, book: &mut Book, owner: &str) {
        book.refused += 1;
        if book.told.is_some_and(|told| told.elapsed() < TOLD_EVERY) {
            return;
        }
        eprintln!(
            "cove-gateway: {}: {} refused since the last such line, the last to {owner}: its share is used up ({} of {} taken)",
            self.what, book.refused, book.held, self.total
        );
        book.refused = 0;
        book.told = Some(Instant::now());
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut book = self.shares.book();
        book.held -= 1;
        let Some(held) = book.owners.get_mut(&self.owner) else {
            return;
        };
        held.all -= 1;
        if let Some(count) = held.sandboxes.get_mut(&self.sandbox) {
            *count -= 1;
            if *count == 0 {
                held.sandboxes.remove(&self.sandbox);
            }
        }
        if held.all == 0 {
            book.owners.remove(&self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(shares: &Arc<Shares>, owner: &str, sandboxes: &[SandboxId]) -> Vec<Share> {
        let owner: Arc<str> = owner.into();
        let mut taken = Vec::new();
        loop {
            let before = taken.len();
            for sandbox in sandboxes {
                taken.extend(shares.take(&owner, sandbox));
            }
            if taken.len() == before {
                return taken;
            }
        }
    }

    #[test]
    fn every_organisation_that_comes_finds_something_free() {
        let shares = Shares::new("test", 1200);
        let mut all = Vec::new();
        let mut before = usize::MAX;
        for number in 0..20 {
            let sandboxes: Vec<SandboxId> = (0..8).map(|_| SandboxId::random()).collect();
            let taken = take_all(&shares, &format!("org_{number}"), &sandboxes);
            assert!(!taken.is_empty(), "nothing was left for number {number}");
            assert!(taken.len() <= before && taken.len() <= 600);
            before = taken.len();
            if number > 8 {
                break;
            }
            all.push(taken);
        }
        all.clear();
        assert_eq!(shares.held(), 0);
        assert!(shares.book().owners.is_empty());
    }

    #[test]
    fn one_sandbox_leaves_its_siblings_theirs() {
        let shares = Shares::new("test", 300);
        let greedy = take_all(&shares, "org", &[SandboxId::random()]);
        assert!((120..=130).contains(&greedy.len()), "{}", greedy.len());
        let sibling = take_all(&shares, "org", &[SandboxId::random()]);
        assert!(sibling.len() >= 20, "{}", sibling.len());
        let other = take_all(&shares, "other", &[SandboxId::random()]);
        assert!(other.len() >= 40, "{}", other.len());
    }
}
