//! What one request holds in memory while it is read and worked on, on the account of who asks.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use cove_control::{Account, Charge, ControlError, ErrorCode};

use crate::streams::Slot;

/// In every request, put there by the server. Cheap to clone; given back with the last copy.
#[derive(Clone, Default)]
pub struct Tab(Arc<Mutex<Option<Known>>>);

/// What is held once the caller is known.
struct Known {
    charge: Charge,
    /// A place among the requests of the caller's organisation.
    _slot: Slot,
}

impl Tab {
    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.0.lock()
    }

    /// Says who pays, who must have a place for one more request. The first answer stands: a request has
    /// one caller.
    pub fn open(
        &self,
        account: &Account,
        enter: impl FnOnce() -> Result<Slot, ControlError>,
    ) -> Result<(), ControlError> {
        let mut known = self.known();
        if known.is_none() {
            *known = Some(Known {
                charge: account.charge(),
                _slot: enter()?,
            });
        }
        Ok(())
    }

    /// So many bytes more. Unknown senders have no account, and nothing of theirs is held.
    pub fn take(&self, bytes: usize) -> Result<(), ControlError> {
        match &mut *self.known() {
            Some(known) => known.charge.take(bytes),
            None => Err(ControlError::new(
                ErrorCode::Unauthenticated,
                "nothing is read from a caller who is not known",
            )),
        }
    }
}
