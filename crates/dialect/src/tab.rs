//! What one request holds in memory while it is read and worked on, on the account of who asks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cove_control::{Account, Charge, ControlError, ErrorCode};

/// In every request, put there by the server. Cheap to clone; given back with the last copy.
#[derive(Clone, Default)]
pub struct Tab(Arc<Mutex<Option<Charge>>>);

impl Tab {
    fn charge(&self) -> MutexGuard<'_, Option<Charge>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says who pays. The first answer stands: a request has one caller.
    pub fn open(&self, account: &Account) {
        self.charge().get_or_insert_with(|| account.charge());
    }

    /// So many bytes more. Strangers have no account, and nothing of theirs is held.
    pub fn take(&self, bytes: usize) -> Result<(), ControlError> {
        match &mut *self.charge() {
            Some(charge) => charge.take(bytes),
            None => Err(ControlError::new(
                ErrorCode::Unauthenticated,
                "nothing is read from a caller who is not known",
            )),
        }
    }
}
