//! What only one control process should do at a time, where several use one database: uploads and builds.
//!
//! A process that begins writes its name down and counts up while it lives. Another one takes the work over only after
//! it has itself seen the counter unchanged for a while, by its own clock. What a process of the same data directory
//! left is taken over at once: a directory has one process.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cove_store::StoreError;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::Control;
use crate::error::ControlError;

/// Beats that another process must miss, and looks that must see none, before its work is taken over. One look alone
/// could fall before a time without a database.
const MISSED_MAX: u32 = 6;
/// Times after which other processes' work that nobody asks about is forgotten, each long enough to take it over.
const FORGET_AFTER: u32 = 60;

/// Work of other processes, as this one last saw it.
#[derive(Default)]
pub(crate) struct OthersWork(Mutex<HashMap<String, Seen>>);

struct Seen {
    token: String,
    beats: u64,
    since: Instant,
    looked: Instant,
    looks: u32,
}

/// Work of this process. Its counter goes up until this is dropped.
pub(crate) struct OwnWork {
    control: Control,
    id: String,
    token: String,
    _beating: AbortOnDropHandle<()>,
}

impl OwnWork {
    /// It is over: nobody needs to watch it.
    pub async fn end(self) {
        let ended = self.control.store().end_work(&self.id, &self.token).await;
        if let Err(error) = ended {
            tracing::debug!(%error, work = self.id, "cannot delete the row of finished work");
        }
    }
}

impl OthersWork {
    /// Whether a process that lives may be at it.
    fn lives(&self, id: &str, token: String, beats: u64, silent_max: Duration) -> bool {
        let mut all = self.0.lock();
        let now = Instant::now();
        // Work that ended is not asked about again.
        all.retain(|_, seen| now.duration_since(seen.looked) < silent_max * FORGET_AFTER);
        match all.get_mut(id) {
            Some(seen) if seen.token == token && seen.beats == beats => {
                seen.looks += 1;
                seen.looked = now;
                seen.looks < MISSED_MAX || now.duration_since(seen.since) < silent_max
            }
            _ => {
                let seen = Seen {
                    token,
                    beats,
                    since: now,
                    looked: now,
                    looks: 0,
                };
                all.insert(id.to_owned(), seen);
                true
            }
        }
    }

    fn forget(&self, id: &str) {
        self.0.lock().remove(id);
    }
}

impl Control {
    /// Whoever did this before, now this process does. `lost` is cancelled when another one takes it over.
    pub(crate) async fn take_work(
        &self,
        id: &str,
        lost: CancellationToken,
    ) -> Result<OwnWork, ControlError> {
        let token = hex::encode(rand::random::<[u8; 16]>());
        let owner = self.0.audit.installation();
        self.store().take_work(id, &owner, &token).await?;
        self.0.others_work.forget(id);
        let beating = {
            let (store, every) = (Arc::clone(&self.0.store), self.config().work_beat_every);
            let (id, token) = (id.to_owned(), token.clone());
            tokio::spawn(async move {
                loop {
                    sleep(every).await;
                    match store.beat_work(&id, &token).await {
                        Ok(()) => {}
                        Err(StoreError::Stale) => {
                            tracing::warn!(
                                work = id,
                                "another control process has taken this work over"
                            );
                            return lost.cancel();
                        }
                        Err(error) => {
                            tracing::debug!(%error, work = id, "cannot show that work goes on");
                        }
                    }
                }
            })
        };
        Ok(OwnWork {
            control: self.clone(),
            id: id.to_owned(),
            token,
            _beating: AbortOnDropHandle::new(beating),
        })
    }

    /// Whether this installation does it, or nobody is written down.
    pub(crate) async fn is_own_work(&self, id: &str) -> Result<bool, ControlError> {
        let found = self.store().work(id).await?;
        Ok(found.is_none_or(|work| work.owner == self.0.audit.installation()))
    }

    /// Whether another process is at it, as far as this one has seen. Ask again and again.
    pub(crate) async fn is_others_work(&self, id: &str) -> Result<bool, ControlError> {
        let others = &self.0.others_work;
        let found = self
            .store()
            .work(id)
            .await
            .inspect_err(|_| others.forget(id))?;
        match found {
            Some(work) if work.owner != self.0.audit.installation() => {
                let silent_max = self.config().work_beat_every * MISSED_MAX;
                Ok(others.lives(id, work.token, work.beats, silent_max))
            }
            _ => {
                others.forget(id);
                Ok(false)
            }
        }
    }
}
