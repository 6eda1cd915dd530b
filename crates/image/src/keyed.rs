//! One lock per name: whoever makes the same thing at the same time waits for the first and then
//! finds it made.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use tokio::sync::OwnedMutexGuard;

type Slot = tokio::sync::Mutex<()>;

#[derive(Default)]
pub(crate) struct Keyed {
    slots: Mutex<HashMap<String, Weak<Slot>>>,
}

impl Keyed {
    /// Holds `key` until the guard is dropped.
    pub async fn lock(&self, key: &str) -> OwnedMutexGuard<()> {
        let slot = {
            let mut slots = self.slots.lock();
            // Slots nobody holds or waits for go away here, so the map stays as small as the work.
            slots.retain(|_, slot| slot.strong_count() > 0);
            match slots.get(key).and_then(Weak::upgrade) {
                Some(slot) => slot,
                None => {
                    let slot = Arc::new(Slot::default());
                    slots.insert(key.to_owned(), Arc::downgrade(&slot));
                    slot
                }
            }
        };
        slot.lock_owned().await
    }
}
