//! One change at a time per sandbox (or whatever the key names), within this process.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cove_model::SandboxId;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Entries kept before those nobody holds are thrown out.
const TIDY_ABOVE: usize = 256;

pub struct Locks<K = SandboxId>(Mutex<Table<K>>);

struct Table<K> {
    held: HashMap<K, Weak<AsyncMutex<()>>>,
    tidy_at: usize,
}

impl<K> Default for Locks<K> {
    fn default() -> Self {
        Self(Mutex::new(Table {
            held: HashMap::new(),
            tidy_at: 0,
        }))
    }
}

impl<K: Eq + Hash + Clone> Locks<K> {
    /// Waits for its turn. Whoever holds the guard may ask the host and write the row.
    pub async fn lock(&self, id: &K) -> OwnedMutexGuard<()> {
        self.entry(id).lock_owned().await
    }

    pub fn len(&self) -> usize {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.held.len()
    }

    fn entry(&self, id: &K) -> Arc<AsyncMutex<()>> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = table.held.get(id).and_then(Weak::upgrade) {
            return lock;
        }
        if table.held.len() >= table.tidy_at.max(TIDY_ABOVE) {
            table.held.retain(|_, lock| lock.strong_count() > 0);
            table.tidy_at = table.held.len() * 2;
        }
        let lock = Arc::new(AsyncMutex::new(()));
        table.held.insert(id.clone(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_nothing_is_kept_for_ever() {
        let locks = Locks::default();
        let id = SandboxId::random();
        let guard = locks.lock(&id).await;
        assert!(locks.entry(&id).try_lock().is_err());
        drop(guard);
        assert!(locks.entry(&id).try_lock().is_ok());
        for _ in 0..10 * TIDY_ABOVE {
            drop(locks.lock(&SandboxId::random()).await);
        }
        assert!(locks.0.lock().unwrap().held.len() <= TIDY_ABOVE + 1);
    }
}
