//! Who is using which sandbox now, and when each was used last.
//!
//! Every request and attached client holds a [`Presence`]; the lifecycle ticker asks for what it saw
//! and writes it down coarsely, so that idleness survives a restart.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cove_model::SandboxId;
use time::OffsetDateTime;

use crate::Clock;

#[derive(Default, Clone)]
pub struct Activity(Arc<Mutex<HashMap<SandboxId, Use>>>);

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Use {
    /// Requests and clients attached now.
    pub present: usize,
    pub last: OffsetDateTime,
}

impl Activity {
    /// Somebody starts to use it, until the presence is dropped.
    pub fn enter(&self, id: &SandboxId, clock: Arc<dyn Clock>) -> Presence {
        self.change(id, clock.now(), 1);
        Presence {
            activity: self.clone(),
            id: id.clone(),
            clock,
        }
    }

    /// It was used at that moment.
    pub fn note(&self, id: &SandboxId, at: OffsetDateTime) {
        self.change(id, at, 0);
    }

    pub fn of(&self, id: &SandboxId) -> Option<Use> {
        self.table().get(id).copied()
    }

    /// Everything seen since the last call. What nobody uses any more is forgotten: its last moment
    /// is now the caller's to keep.
    pub fn take_seen(&self, now: OffsetDateTime) -> Vec<(SandboxId, OffsetDateTime)> {
        let mut table = self.table();
        let seen = table
            .iter()
            .map(|(id, one)| (id.clone(), if one.present > 0 { now } else { one.last }))
            .collect();
        table.retain(|_, one| one.present > 0);
        seen
    }

    fn change(&self, id: &SandboxId, at: OffsetDateTime, enter: usize) {
        let mut table = self.table();
        let one = table.entry(id.clone()).or_insert(Use {
            present: 0,
            last: at,
        });
        one.present += enter;
        one.last = one.last.max(at);
    }

    fn leave(&self, id: &SandboxId, at: OffsetDateTime) {
        let mut table = self.table();
        if let Some(one) = table.get_mut(id) {
            one.present = one.present.saturating_sub(1);
            one.last = one.last.max(at);
        }
    }

    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxId, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a sandbox from being idle while it lives.
pub struct Presence {
    activity: Activity,
    id: SandboxId,
    clock: Arc<dyn Clock>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.activity.leave(&self.id, self.clock.now());
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
        let one = activity.enter(&id, Arc::new(SystemClock));
        let two = activity.enter(&id, Arc::new(SystemClock));
        drop(one);
        assert_eq!(activity.of(&id).unwrap().present, 1);
        drop(two);
        assert_eq!(activity.of(&id).unwrap().present, 0);
        assert_eq!(activity.take_seen(OffsetDateTime::now_utc()).len(), 1);
        assert!(activity.of(&id).is_none());
    }
}
