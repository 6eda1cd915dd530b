//! Fair shares of what everybody uses.
//!
//! Whoever takes more gets at most half of what the others left free, so there is always something left
//! for the next one, and a small amount is promised to everybody. The rule is a pure function; the table
//! around it counts who holds how much and gives it back when it is dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// How one resource is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// What there is, all holders together.
    pub total: usize,
    /// What a holder may have in any case.
    pub promised: usize,
    /// What all holders together may have when the promises are added: a bound where holders are untrusted,
    /// `usize::MAX` where somebody decides how many there are.
    pub hard: usize,
}

impl Sharing {
    /// For holders that only the operator can add.
    pub const fn new(total: usize, promised: usize) -> Self {
        Self {
            total,
            promised,
            hard: usize::MAX,
        }
    }

    /// What one holder may have when all others together have `others`.
    pub const fn share(&self, others: usize) -> usize {
        let half = self.total.saturating_sub(others) / 2;
        let promised = if self.promised < self.hard.saturating_sub(others) {
            self.promised
        } else {
            self.hard.saturating_sub(others)
        };
        if half > promised { half } else { promised }
    }

    /// What the first one to come may have.
    pub const fn most(&self) -> usize {
        self.share(0)
    }
}

/// Who is behind an address: one customer of a provider holds a whole network of IPv6 addresses.
pub fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => {
            let [a, b, c, d, ..] = six.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        four => four,
    }
}

struct Table<K> {
    all: usize,
    held: HashMap<K, usize>,
}

/// Who holds how much of one resource.
pub struct Shares<K> {
    sharing: Sharing,
    table: Mutex<Table<K>>,
}

impl<K: Eq + Hash + Clone> Shares<K> {
    pub fn new(sharing: Sharing) -> Arc<Self> {
        Arc::new(Self {
            sharing,
            table: Mutex::new(Table {
                all: 0,
                held: HashMap::new(),
            }),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table<K>> {
        self.table.lock()
    }

    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// What all holders have together.
    pub fn held(&self) -> usize {
        self.table().all
    }

    /// How many hold something.
    pub fn holders(&self) -> usize {
        self.table().held.len()
    }

    pub fn held_by(&self, holder: &K) -> usize {
        self.table().held.get(holder).copied().unwrap_or_default()
    }

    /// So much for this holder, unless that is more than its share.
    pub fn take(self: &Arc<Self>, holder: K, amount: usize) -> Option<Portion<K>> {
        let mut share = Portion {
            of: Arc::clone(self),
            holder,
            amount: 0,
        };
        share.grow(amount).then_some(share)
    }

    fn add(&self, holder: &K, amount: usize, whatever: bool) -> bool {
        let mut table = self.table();
        let mine = table.held.get(holder).copied().unwrap_or_default();
        let wanted = mine.saturating_add(amount);
        if !whatever && wanted > self.sharing.share(table.all - mine) {
            return false;
        }
        if amount > 0 {
            table.held.insert(holder.clone(), wanted);
            table.all += amount;
        }
        true
    }

    fn give_back(&self, holder: &K, amount: usize) {
        if amount == 0 {
            return;
        }
        let mut table = self.table();
        table.all -= amount;
        if let Some(held) = table.held.get_mut(holder) {
            *held -= amount;
            if *held == 0 {
                table.held.remove(holder);
            }
        }
    }
}

/// What one holder has, until it is dropped.
pub struct Portion<K: Eq + Hash + Clone> {
    of: Arc<Shares<K>>,
    holder: K,
    amount: usize,
}

impl<K: Eq + Hash + Clone> Portion<K> {
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// More of it; `false`, and nothing changed, when that would be more than the holder's share.
    pub fn grow(&mut self, amount: usize) -> bool {
        let fits = self.of.add(&self.holder, amount, false);
        if fits {
            self.amount += amount;
        }
        fits
    }

    /// More of it, whatever the share: for what is there already and must be counted.
    pub fn force(&mut self, amount: usize) {
        self.of.add(&self.holder, amount, true);
        self.amount += amount;
    }

    /// Gives some of it back.
    pub fn shrink(&mut self, amount: usize) {
        let amount = amount.min(self.amount);
        self.of.give_back(&self.holder, amount);
        self.amount -= amount;
    }
}

impl<K: Eq + Hash + Clone> Drop for Portion<K> {
    fn drop(&mut self) {
        self.of.give_back(&self.holder, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_has_half_and_the_next_half_of_the_rest() {
        let shares = Shares::new(Sharing::new(100, 2));
        let one = shares.take("one", 50).expect("half");
        assert!(shares.take("one", 1).is_none(), "no more than half");
        let other = shares.take("other", 25).expect("half of what is left");
        assert!(shares.take("other", 1).is_none());
        drop(one);
        let more = shares.take("other", 25).expect("there is room again");
        assert_eq!((shares.held(), shares.held_by(&"other")), (50, 50));
        drop((other, more));
        assert_eq!(shares.held(), 0);
        assert!(shares.table().held.is_empty());
    }

    #[test]
    fn what_is_promised_is_had_however_full_it_is_up_to_the_hard_bound() {
        let shares = Shares::new(Sharing {
            total: 8,
            promised: 2,
            hard: 11,
        });
        let mut crowd = shares.take(0, 1).expect("a place");
        crowd.force(7);
        let _one = shares.take(1, 2).expect("promised");
        assert!(shares.take(1, 1).is_none());
        let _two = shares.take(2, 1).expect("one is left below the bound");
        assert!(shares.take(3, 1).is_none());
    }

    proptest! {
        #[test]
        fn a_greedy_holder_never_keeps_another_from_its_half(
            takes in prop::collection::vec((0u8..4, 1usize..40), 0..80),
        ) {
            let sharing = Sharing::new(1000, 0);
            let shares = Shares::new(sharing);
            let mut kept = Vec::new();
            for (who, amount) in takes {
                kept.extend(shares.take(who, amount));
            }
            let free = sharing.total - shares.held();
            prop_assert!(free > 0);
            prop_assert!(shares.take(99, free / 2).is_some());
        }
    }
}
