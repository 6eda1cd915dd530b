//! What a connection that left HTTP behind has read and nobody has taken yet, on somebody's account.
//!
//! A message of a WebSocket is put together out of sight of its handler, so its bytes are counted where
//! they come off the socket. The handler says who pays, and when it is done with a message.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use cove_control::{Account, Charge};

/// What may be left in a connection's buffers when a message was taken.
pub const READ_BUFFER: usize = 128 * 1024;
/// What must be free before more is read.
const ROOM: usize = 16 * 1024;

/// One per connection, put into every request by the server. Cheap to clone.
#[derive(Clone, Default)]
pub struct Wire(Arc<Mutex<Option<Charge>>>);

impl Wire {
    fn charge(&self) -> MutexGuard<'_, Option<Charge>> {
        self.0.lock()
    }

    /// From now on what is read is on this account, until the connection ends.
    pub fn pay(&self, account: &Account) {
        *self.charge() = Some(account.charge());
    }

    /// Whether more may be read. Always, where nobody pays: HTTP counts its own bodies.
    pub fn has_room(&self) -> bool {
        let charge = self.charge();
        charge
            .as_ref()
            .is_none_or(|charge| charge.account().fits(ROOM))
    }

    /// So many bytes came off the socket.
    pub fn read(&self, bytes: usize) {
        if let Some(charge) = &mut *self.charge() {
            charge.force(bytes);
        }
    }

    /// A message of so many bytes is done with.
    pub fn taken(&self, bytes: usize) {
        if let Some(charge) = &mut *self.charge() {
            let left = charge.bytes().saturating_sub(bytes).min(READ_BUFFER);
            charge.shrink(charge.bytes() - left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::account;

    #[test]
    fn what_is_read_is_held_until_its_message_was_taken() {
        let (budget, account) = account(16 * 1024 * 1024);
        let wire = Wire::default();
        wire.read(1_000_000);
        assert!(
            wire.has_room() && budget.held() == 0,
            "nobody pays for HTTP"
        );
        wire.pay(&account);
        wire.read(1_000_014);
        assert_eq!(budget.held(), 1_000_014);
        wire.taken(1_000_000);
        assert_eq!(budget.held(), 14, "the next message may have begun");
        wire.read(5_000_000);
        assert!(!wire.has_room(), "a key has a quarter of it all");
        wire.taken(10);
        assert_eq!(budget.held(), READ_BUFFER);
        assert!(wire.has_room());
        drop(wire);
        assert_eq!(budget.held(), 0);
    }
}
