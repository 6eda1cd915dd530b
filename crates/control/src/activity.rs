//! Who is using which sandbox now, and when each was used last.
//!
//! Every request and attached client holds a [`Presence`]; the lifecycle ticker asks for what it saw
//! and writes it down coarsely, so that idleness survives a restart.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use cove_model::SandboxId;
use cove_store::Moment;

use crate::clocks::Clocks;

#[derive(Default, Clone)]
pub struct Activity(Arc<Mutex<HashMap<SandboxId, Use>>>);

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Use {
    /// Requests and clients attached now.
    pub present: usize,
    pub last: Moment,
}

impl Activity {
    /// Somebody starts to use it, until the presence is dropped.
    pub fn enter(&self, id: &SandboxId, clocks: Arc<Clocks>) -> Presence {
        self.change(id, clocks.moment(), 1);
        Presence {
            activity: self.clone(),
            id: id.clone(),
            clocks,
        }
    }

    /// It was used at that moment.
    pub fn note(&self, id: &SandboxId, at: Moment) {
        self.change(id, at, 0);
    }

    pub fn of(&self, id: &SandboxId) -> Option<Use> {
        self.table().get(id).copied()
    }

    /// Everything seen since the last call. What nobody uses any more is forgotten: its last moment
    /// is now the caller's to keep.
    pub fn take_seen(&self, now: Moment) -> Vec<(SandboxId, Moment)> {
        let mut table = self.table();
        let seen = table
            .iter()
            .map(|(id, one)| (id.clone(), if one.present > 0 { now } else { one.last }))
            .collect();
        table.retain(|_, one| one.present > 0);
        seen
    }

    pub fn len(&self) -> usize {
        self.table().len()
    }

    fn change(&self, id: &SandboxId, at: Moment, enter: usize) {
        let mut table = self.table();
        let one = table.entry(id.clone()).or_insert(Use {
            present: 0,
            last: at,
        });
        one.present += enter;
        if at.steady > one.last.steady {
            one.last = at;
        }
    }

    fn leave(&self, id: &SandboxId, at: Moment) {
        let mut table = self.table();
        if let Some(one) = table.get_mut(id) {
            one.present = one.present.saturating_sub(1);
            if at.steady > one.last.steady {
                one.last = at;
            }
        }
    }

    fn table(&self) -> parking_lot::MutexGuard<'_, HashMap<SandboxId, Use>> {
        self.0.lock()
    }
}

/// Keeps a sandbox from being idle while it lives.
pub struct Presence {
    activity: Activity,
    id: SandboxId,
    clocks: Arc<Clocks>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.activity.leave(&self.id, self.clocks.moment());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemClock;

    #[test]
    fn present_until_the_last_one_leaves() {
        let activity = Activity::default();
        let id = SandboxId::random();
        let clocks = Arc::new(Clocks::new(Arc::new(SystemClock)));
        let one = activity.enter(&id, Arc::clone(&clocks));
        let two = activity.enter(&id, Arc::clone(&clocks));
        drop(one);
        assert_eq!(activity.of(&id).unwrap().present, 1);
        drop(two);
        assert_eq!(activity.of(&id).unwrap().present, 0);
        assert_eq!(activity.take_seen(clocks.moment()).len(), 1);
        assert!(activity.of(&id).is_none());
    }
}
