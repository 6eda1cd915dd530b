//! What the control plane itself holds: how much was asked of its database, and how many entries its
//! tables have. Shown as metrics, and compared with nothing at all by tests that made and deleted much.

use cove_store::Operations;

use crate::Control;

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
        vec![
            ("locks", inner.locks.len()),
            ("context_locks", inner.contexts.len()),
            ("activity", inner.activity.len()),
            ("idleness", inner.idleness.len()),
            ("wakes", inner.wakes.len()),
            ("snapshots_under_way", inner.snapshots_under_way.len()),
            ("checkpoints", inner.checkpoints.len()),
            ("stale", inner.stale.len()),
            ("listeners", inner.listeners.len()),
            ("changes", inner.changes.len()),
            ("audit", inner.audit.waiting()),
            ("accounts", inner.budget.accounts()),
        ]
    }

    /// Tables that remember keys, tokens and refusals for a while, whatever became of their sandboxes. Each
    /// is bounded by a number of its own.
    pub fn cache_sizes(&self) -> Vec<TableSize> {
        let inner = &self.0;
        vec![
            ("keys", inner.keyring.len()),
            ("searches", inner.searches.len()),
            ("refusals", inner.audit.refusals().len()),
        ]
    }
}
