//! What happened, kept and told live.

use cove_store::StoredEvent;

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;

#[derive(Debug, Clone, PartialEq)]
pub enum EventItem {
    Event(StoredEvent),
    /// Events before this sequence are no longer kept; look at the current state again.
    Lost {
        before: u64,
    },
}

/// Events of one organisation, from a point in time on. Ends when the control plane shuts down.
pub struct EventSubscription {
    _control: Control,
}

impl EventSubscription {
    /// The next one, waiting for it; `None` at shutdown.
    pub async fn next(&mut self) -> Result<Option<EventItem>, ControlError> {
        todo!()
    }
}

impl Control {
    /// Needs `read`. `after` is the sequence last seen; absent: from now on.
    pub async fn events(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        after: Option<u64>,
    ) -> Result<EventSubscription, ControlError> {
        let _ = (principal, sandbox, after);
        todo!()
    }

    /// Needs `read`. Those kept, oldest first, without waiting.
    pub async fn list_events(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, ControlError> {
        let _ = (principal, sandbox, after, limit);
        todo!()
    }
}
