//! What the control plane itself holds: how much was asked of its database, and how many entries its
//! tables have. Shown as metrics, and compared with nothing at all by tests that made and deleted much.

use cove_store::Operations;

use crate::Control;
use crate::hosts::Host;

/// A table and how many entries it has.
pub type TableSize = (&'static str, usize);

impl Control {
    /// What the database was asked for since the start.
    pub fn store_operations(&self) -> Operations {
        self.store().operations()
    }

    /// Tables that grow with sandboxes, snapshots, processes or calls. What is gone leaves nothing in them,
    /// but for locks, which are thrown out above a number, and for uses, which are written down now and then.
    pub fn table_sizes(&self) -> Vec<TableSize> {
        let inner = &self.0;
        let of_hosts =
            |count: fn(&Host) -> usize| self.hosts().iter().map(|host| count(host)).sum();
        let mut sizes = inner.guards.sizes();
        sizes.extend([
            ("activity", inner.in_use.activity.len()),
            ("idleness", of_hosts(|host| host.idleness.len())),
            ("leases", of_hosts(|host| host.leases.len())),
            ("wakes", inner.in_use.wakes.len()),
            ("checkpoints", of_hosts(|host| host.checkpoints.len())),
            ("furnished", of_hosts(|host| host.furnished.len())),
            ("trusting", of_hosts(|host| host.trusting.len())),
            ("stale", of_hosts(|host| host.stale.len())),
            ("relayed", of_hosts(|host| host.relayed.holders())),
            ("listeners", inner.listeners.len()),
            ("changes", inner.tasks.changes.len()),
            ("audit", inner.audit.waiting()),
            ("accounts", inner.callers.budget.accounts()),
            (
                "transfers",
                inner.objects.as_ref().map_or(0, |o| o.transfers()),
            ),
        ]);
        sizes
    }

    /// Tables that remember keys, tokens and refusals for a while, whatever became of their sandboxes. Each
    /// is bounded by a number of its own.
    pub fn cache_sizes(&self) -> Vec<TableSize> {
        let inner = &self.0;
        vec![
            ("keys", inner.callers.keyring.len()),
            ("searches", inner.callers.searches.len()),
            ("refusals", inner.audit.refusals().len()),
        ]
    }
}
