//! Who is to be charged for bytes that several snapshots share.
//!
//! What only one snapshot holds is its own, and what a sandbox holds is covered by its disk limit. But
//! bytes that two snapshots share and no sandbox has any more would be nobody's, and a tenant could keep
//! any amount that way: write, take two snapshots, delete the sandbox, begin anew. The kernel knows: it
//! goes on charging the volume that wrote them, gone or not. So each snapshot remembers the accounts of all
//! volumes its state was ever in, and what is owed on the account of a volume that is gone
//!
//! ```text
//!   less what sandboxes that inherited from it are charged for within their limits
//!   less what is exclusive to snapshots of it, and counted as such
//! ```
//!
//! counts with the oldest snapshot of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cove_model::SnapshotId;
use cove_pool::{Account, PoolError, VolumeId};

use crate::engine::Inner;
use crate::record::Record;

use super::Snapshot;

impl Inner {
    /// What each snapshot is charged beyond what is exclusive to it. Blocking.
    pub(crate) fn charges(&self, snapshots: &[Arc<Snapshot>]) -> HashMap<SnapshotId, u64> {
        let mut owed = BTreeMap::new();
        for account in snapshots.iter().flat_map(|one| &one.record.accounts) {
            owed.entry(*account)
                .or_insert_with(|| self.owed_on(*account).unwrap_or(0));
        }
        let sandboxes = self.all().into_iter().map(|sandbox| {
            let record = sandbox.record();
            (record.inherited_bytes, record.accounts)
        });
        let exclusive = snapshots.iter().map(|one| {
            let sizes = *one.sizes.lock();
            let bytes = sizes.map_or(0, |sizes| sizes.exclusive_bytes);
            (bytes, one.record.accounts.clone())
        });
        let paid: Vec<_> = sandboxes.chain(exclusive).collect();
        let holders = snapshots
            .iter()
            .map(|one| (one.record.id.clone(), one.record.accounts.as_slice()));
        divide(owed, &paid, holders)
    }

    fn owed_on(&self, account: u64) -> Option<u64> {
        self.pool.owed(Account(account)).unwrap_or_else(|error| {
            tracing::warn!(%error, account, "cannot read the usage of a deleted volume");
            None
        })
    }

    /// Drops the accounts on which nothing is owed any more from those of a new state, so that only those
    /// stay that stand for bytes. Blocking.
    pub(crate) fn forget_settled(&self, accounts: &mut Vec<u64>) {
        accounts.sort_unstable();
        accounts.dedup();
        accounts.retain(|account| self.owed_on(*account) != Some(0));
    }

    /// Another volume is about to take the place of a sandbox's: what was written there is inherited.
    pub(crate) fn hand_account_down(
        &self,
        volume: &VolumeId,
        record: &mut Record,
    ) -> Result<(), PoolError> {
        record
            .accounts
            .extend(self.pool.account(volume)?.map(|account| account.0));
        self.forget_settled(&mut record.accounts);
        Ok(())
    }
}

/// Takes what was paid off what is owed, each payment once, and gives the rest to the first holder of
/// each account.
fn divide<'a>(
    mut owed: BTreeMap<u64, u64>,
    paid: &[(u64, Vec<u64>)],
    holders: impl Iterator<Item = (SnapshotId, &'a [u64])>,
) -> HashMap<SnapshotId, u64> {
    for (bytes, accounts) in paid {
        let mut left = *bytes;
        for account in accounts {
            if let Some(owed) = owed.get_mut(account) {
                let part = left.min(*owed);
                *owed -= part;
                left -= part;
            }
        }
    }
    let mut charges = HashMap::new();
    for (id, accounts) in holders {
        let bytes: u64 = accounts
            .iter()
            .filter_map(|account| owed.remove(account))
            .sum();
        if bytes > 0 {
            charges.insert(id, bytes);
        }
    }
    charges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charged(owed: &[(u64, u64)], paid: &[(u64, &[u64])], held: &[&[u64]]) -> Vec<u64> {
        let ids: Vec<_> = held.iter().map(|_| SnapshotId::random()).collect();
        let paid: Vec<_> = paid
            .iter()
            .map(|(bytes, accounts)| (*bytes, accounts.to_vec()))
            .collect();
        let holders = ids.iter().cloned().zip(held.iter().copied());
        let charges = divide(owed.iter().copied().collect(), &paid, holders);
        ids.iter()
            .map(|id| charges.get(id).copied().unwrap_or(0))
            .collect()
    }

    #[test]
    fn what_snapshots_share_counts_once_with_the_oldest() {
        assert_eq!(charged(&[(1, 50)], &[], &[&[1], &[1]]), [50, 0]);
        assert_eq!(charged(&[(1, 50), (2, 7)], &[], &[&[1], &[1, 2]]), [50, 7]);
        assert_eq!(charged(&[], &[], &[&[1]]), [0], "its writer is still there");
    }

    #[test]
    fn what_is_paid_otherwise_is_not_charged_again() {
        // Exclusive to one of them, or inherited by a sandbox that lives.
        assert_eq!(charged(&[(1, 50)], &[(50, &[1])], &[&[1]]), [0]);
        assert_eq!(
            charged(&[(1, 50)], &[(20, &[1]), (10, &[1])], &[&[1]]),
            [20]
        );
        // No payment counts twice.
        assert_eq!(
            charged(&[(1, 50), (2, 50)], &[(60, &[1, 2])], &[&[1], &[2]]),
            [0, 40]
        );
    }
}
