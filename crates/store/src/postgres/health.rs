//! Whether the database answers and takes writes.
//!
//! Once an operation or a connect showed that it does not, everybody is refused at once, and one task
//! connects again and again until it does. So a database that is down costs its callers no wait, and one
//! that hangs costs a wait only those that were under way when it began to hang.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{Inner, OPERATION_TIMEOUT};
use crate::StoreError;

/// Between two tries to connect to a database that is down.
const PROBE_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    Unreachable(String),
    ReadOnly,
}

impl From<Trouble> for StoreError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Unreachable(why) => Self::Unavailable(why.into()),
            Trouble::ReadOnly => Self::ReadOnly,
        }
    }
}

impl Trouble {
    /// What a failure to connect says about the whole database.
    fn of(error: &StoreError) -> Self {
        match error {
            StoreError::ReadOnly => Self::ReadOnly,
            other => Self::Unreachable(super::full_text(other)),
        }
    }
}

/// Absent while the database answers and takes writes.
pub struct Health(watch::Sender<Option<Trouble>>);

impl Health {
    pub fn up() -> Self {
        Self(watch::Sender::new(None))
    }

    pub fn check(&self) -> Result<(), StoreError> {
        match &*self.0.borrow() {
            None => Ok(()),
            Some(trouble) => Err(trouble.clone().into()),
        }
    }

    /// Returns when the database is known to be down.
    pub async fn down(&self) -> StoreError {
        let mut state = self.0.subscribe();
        let found = state.wait_for(Option::is_some).await;
        match found.ok().and_then(|trouble| trouble.clone()) {
            Some(trouble) => trouble.into(),
            None => StoreError::Unavailable("the store is closed".into()),
        }
    }
}

impl Inner {
    /// Notes that the database is down, and looks for its return.
    pub fn note_down(self: &Arc<Self>, trouble: Trouble) {
        let mut first = false;
        self.health.0.send_if_modified(|state| {
            first = state.is_none();
            let changed = state.as_ref() != Some(&trouble);
            *state = Some(trouble.clone());
            changed
        });
        self.close_idle();
        if first {
            tracing::warn!(
                ?trouble,
                "the database is down; requests are refused until it is back"
            );
            tokio::spawn(probe(Arc::downgrade(self)));
        }
    }

    pub fn note_failed_connect(self: &Arc<Self>, error: &StoreError) {
        self.note_down(Trouble::of(error));
    }

    pub fn close_idle(&self) {
        let mut idle = self.idle.lock();
        idle.clear();
    }
}

/// Ends with the store.
async fn probe(store: std::sync::Weak<Inner>) {
    loop {
        let Some(inner) = store.upgrade() else { return };
        let trouble = match timeout(OPERATION_TIMEOUT, inner.connect()).await {
            Ok(Ok(connection)) => {
                inner.give_back(connection);
                inner.health.0.send_replace(None);
                tracing::info!("database connection restored");
                return;
            }
            Ok(Err(error)) => Trouble::of(&error),
            Err(_) => Trouble::Unreachable("it does not answer".into()),
        };
        inner.health.0.send_replace(Some(trouble));
        drop(inner);
        sleep(PROBE_PAUSE).await;
    }
}
