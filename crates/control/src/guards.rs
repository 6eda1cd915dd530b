//! Every exclusion of the control plane, behind one interface.
//!
//! [`Guards`] says what may be done by one at a time and what is in use. [`InProcess`] keeps that in the memory
//! of this process: it is right as long as one control process works over a database, which `cove serve`
//! makes sure of with a lock on its data directory. Several processes need another implementation, with
//! leases in the database; nothing outside this file knows the difference.

use std::any::Any;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use async_trait::async_trait;
use cove_model::{HostId, SandboxId, SnapshotId, VolumeId};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::Control;
use crate::error::ControlError;
use crate::figures::TableSize;

/// Entries kept before those nobody holds are thrown out.
const TIDY_ABOVE: usize = 256;

/// What one has at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exclusive {
    /// The right to ask the host for a change of this sandbox, and to write its row.
    Sandbox(SandboxId),
    /// The right to have the host make or delete this volume, and to write its state.
    Volume(VolumeId),
    /// Taking this snapshot off its host, from the look whether somebody uses it until the host has deleted it.
    Eviction(SnapshotId),
    /// A run of code, or its input, in one context.
    Context(String),
    /// Decisions about who may use an image and whether it is still needed.
    Images,
    /// Taking over events of a host: two at once would keep the same events twice.
    Events(HostId),
}

/// Held until it is dropped.
pub(crate) struct Guard {
    _held: Box<dyn Any + Send + Sync>,
}

impl Guard {
    fn new(held: impl Any + Send + Sync) -> Self {
        Self {
            _held: Box::new(held),
        }
    }
}

#[async_trait]
pub(crate) trait Guards: Send + Sync + 'static {
    /// Waits for its turn, for as long as that takes; dropping the wait gives it up.
    async fn lock(&self, what: Exclusive) -> Result<Guard, ControlError>;

    /// Marks a snapshot as being worked on or begun from: nobody settles or collects it meanwhile. Several may
    /// hold the same one.
    async fn hold(&self, snapshot: &SnapshotId) -> Result<Guard, ControlError>;

    /// Whether anybody holds this snapshot.
    async fn is_held(&self, snapshot: &SnapshotId) -> Result<bool, ControlError>;

    fn sizes(&self) -> Vec<TableSize>;
}

/// Within this process only.
#[derive(Default)]
pub(crate) struct InProcess {
    sandboxes: Locks<SandboxId>,
    volumes: Locks<VolumeId>,
    evictions: Locks<SnapshotId>,
    contexts: Locks<String>,
    images: Arc<AsyncMutex<()>>,
    events: Locks<HostId>,
    snapshots: Holds,
}

#[async_trait]
impl Guards for InProcess {
    async fn lock(&self, what: Exclusive) -> Result<Guard, ControlError> {
        Ok(Guard::new(match what {
            Exclusive::Sandbox(id) => self.sandboxes.lock(&id).await,
            Exclusive::Volume(id) => self.volumes.lock(&id).await,
            Exclusive::Eviction(id) => self.evictions.lock(&id).await,
            Exclusive::Context(key) => self.contexts.lock(&key).await,
            Exclusive::Images => Arc::clone(&self.images).lock_owned().await,
            Exclusive::Events(host) => self.events.lock(&host).await,
        }))
    }

    async fn hold(&self, snapshot: &SnapshotId) -> Result<Guard, ControlError> {
        Ok(Guard::new(self.snapshots.enter(snapshot)))
    }

    async fn is_held(&self, snapshot: &SnapshotId) -> Result<bool, ControlError> {
        Ok(self.snapshots.table().contains_key(snapshot))
    }

    fn sizes(&self) -> Vec<TableSize> {
        vec![
            ("locks", self.sandboxes.len()),
            ("volume_locks", self.volumes.len()),
            ("eviction_locks", self.evictions.len()),
            ("context_locks", self.contexts.len()),
            ("snapshots_under_way", self.snapshots.table().len()),
        ]
    }
}

impl Control {
    pub(crate) async fn lock_volume(&self, id: &VolumeId) -> Result<Guard, ControlError> {
        self.0.guards.lock(Exclusive::Volume(id.clone())).await
    }

    pub(crate) async fn lock_eviction(&self, id: &SnapshotId) -> Result<Guard, ControlError> {
        self.0.guards.lock(Exclusive::Eviction(id.clone())).await
    }

    /// For as long as it takes; `take_turn` waits only so long.
    pub(crate) async fn lock_sandbox(&self, id: &SandboxId) -> Result<Guard, ControlError> {
        self.0.guards.lock(Exclusive::Sandbox(id.clone())).await
    }

    pub(crate) async fn lock_context(&self, key: String) -> Result<Guard, ControlError> {
        self.0.guards.lock(Exclusive::Context(key)).await
    }
}

/// A lock for each key.
struct Locks<K>(Mutex<Table<K>>);

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
    async fn lock(&self, id: &K) -> OwnedMutexGuard<()> {
        self.entry(id).lock_owned().await
    }

    fn len(&self) -> usize {
        let table = self.0.lock();
        table.held.len()
    }

    fn entry(&self, id: &K) -> Arc<AsyncMutex<()>> {
        let mut table = self.0.lock();
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

/// How many hold each snapshot.
#[derive(Default, Clone)]
struct Holds(Arc<Mutex<HashMap<SnapshotId, usize>>>);

impl Holds {
    fn enter(&self, id: &SnapshotId) -> Hold {
        *self.table().entry(id.clone()).or_default() += 1;
        Hold {
            table: self.clone(),
            id: id.clone(),
        }
    }

    fn table(&self) -> parking_lot::MutexGuard<'_, HashMap<SnapshotId, usize>> {
        self.0.lock()
    }
}

struct Hold {
    table: Holds,
    id: SnapshotId,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut table = self.table.table();
        if let Some(count) = table.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                table.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

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
        assert!(locks.0.lock().held.len() <= TIDY_ABOVE + 1);
    }

    #[tokio::test]
    async fn a_snapshot_is_held_until_the_last_who_works_on_it_is_done() {
        let (guards, id) = (InProcess::default(), SnapshotId::random());
        let first = guards.hold(&id).await.unwrap();
        let second = guards.hold(&id).await.unwrap();
        drop(first);
        assert!(guards.is_held(&id).await.unwrap());
        drop(second);
        assert!(!guards.is_held(&id).await.unwrap());
        assert!(guards.snapshots.table().is_empty());
    }

    #[tokio::test]
    async fn different_things_do_not_wait_for_each_other() {
        let guards = InProcess::default();
        let (one, two) = (HostId::random(), HostId::random());
        let _events = guards.lock(Exclusive::Events(one.clone())).await.unwrap();
        let _other = guards.lock(Exclusive::Events(two)).await.unwrap();
        let _images = guards.lock(Exclusive::Images).await.unwrap();
        let sandbox = Exclusive::Sandbox(SandboxId::random());
        let _sandbox = guards.lock(sandbox).await.unwrap();
        let again = guards.lock(Exclusive::Events(one));
        assert!(again.now_or_never().is_none(), "the same one waits");
    }
}
