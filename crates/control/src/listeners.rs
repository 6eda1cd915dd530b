//! Who waits for events of which organisation.
//!
//! An event wakes those who follow its organisation and nobody else: each of them reads from the store, and
//! a tenant with many streams must not make every event of its neighbours cost that many reads.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cove_model::OrgId;
use tokio::sync::watch;

#[derive(Default)]
pub(crate) struct Listeners(Mutex<HashMap<OrgId, watch::Sender<u64>>>);

impl Listeners {
    fn table(&self) -> MutexGuard<'_, HashMap<OrgId, watch::Sender<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn listen(&self, org: &OrgId) -> watch::Receiver<u64> {
        let mut table = self.table();
        table.retain(|_, sender| sender.receiver_count() > 0);
        let sender = table
            .entry(org.clone())
            .or_insert_with(|| watch::Sender::new(0));
        sender.subscribe()
    }

    /// Something happened in this organisation, up to this sequence.
    pub(crate) fn wake(&self, org: &OrgId, sequence: u64) {
        if let Some(sender) = self.table().get(org) {
            sender.send_modify(|latest| *latest = sequence.max(*latest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_wakes_its_own_organisation_and_nobody_is_kept_who_left() {
        let listeners = Listeners::default();
        let (one, other) = (OrgId::random(), OrgId::random());
        let mut first = listeners.listen(&one);
        let second = listeners.listen(&other);
        listeners.wake(&one, 7);
        assert!(first.has_changed().expect("it is told") && *first.borrow_and_update() == 7);
        assert!(!second.has_changed().expect("it is told"), "not its event");
        drop(second);
        let _third = listeners.listen(&one);
        assert_eq!(listeners.table().len(), 1);
    }
}
