//! Places among things that wait for each other: so many at once, and so many of one organisation, so that the others
//! find some. Whoever finds none waits.

use std::collections::HashMap;
use std::sync::Arc;

use cove_model::OrgId;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ControlError;

pub(crate) struct Slots {
    all: Arc<Semaphore>,
    per_org: usize,
    of: Mutex<HashMap<OrgId, Arc<Semaphore>>>,
}

/// A place, until it is dropped.
pub(crate) struct Slot {
    _own: (Arc<Semaphore>, OwnedSemaphorePermit),
    _all: OwnedSemaphorePermit,
}

impl Slots {
    pub fn new(all: usize, per_org: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            per_org,
            of: Mutex::default(),
        }
    }

    /// First among those of its organisation, then among all: whoever waits for the first holds none of the others.
    pub async fn take(&self, org: &OrgId) -> Result<Slot, ControlError> {
        let closed = |_| ControlError::internal("the server is shutting down");
        let own = {
            let mut table = self.of.lock();
            table.retain(|_, own| Arc::strong_count(own) > 1);
            let new = || Arc::new(Semaphore::new(self.per_org));
            Arc::clone(table.entry(org.clone()).or_insert_with(new))
        };
        let first = Arc::clone(&own).acquire_owned().await.map_err(closed)?;
        let all = Arc::clone(&self.all);
        Ok(Slot {
            _own: (own, first),
            _all: all.acquire_owned().await.map_err(closed)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn an_organisation_whose_work_stalls_leaves_places_to_others() {
        let slots = Arc::new(Slots::new(4, 2));
        let take = |org: &OrgId| {
            let (slots, org) = (Arc::clone(&slots), org.clone());
            tokio::spawn(async move {
                let _place = slots.take(&org).await.expect("the server runs");
                std::future::pending::<()>().await
            })
        };
        let (greedy, other) = (OrgId::random(), OrgId::random());
        let stalled: Vec<_> = (0..100).map(|_| take(&greedy)).collect();
        while slots.all.available_permits() > 2 {
            tokio::task::yield_now().await;
        }
        // The clock of this test goes on by itself while nothing else can.
        let wait = Duration::from_secs(3600);
        let beyond = tokio::time::timeout(wait, slots.take(&greedy)).await;
        assert!(beyond.is_err(), "more than its share");
        let begun = tokio::time::Instant::now();
        let place = slots.take(&other).await.expect("the server runs");
        assert_eq!(begun.elapsed(), Duration::ZERO, "it waits for nobody");
        drop(place);
        stalled.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
