//! How much of a snapshot only it holds. The filesystem must be asked extent by extent, so answers
//! are kept for a while and a listing spends a bounded time on them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_image::Source;
use cove_model::SnapshotId;
use cove_runner_api::{RunnerError, SnapshotView};
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner};
use crate::error::{chain, internal};

use super::{Snapshot, SnapshotRecord};

/// How long figures are good for in a list: what others share changes with every write of theirs.
const FRESH_IN_LIST: Duration = Duration::from_secs(30);
/// The same for one that is asked for by itself.
const FRESH_ALONE: Duration = Duration::from_secs(1);
/// What one look at a snapshot may take; beyond it the figure is a lower bound.
const WALK_MAX: Duration = Duration::from_secs(5);
/// What a listing may spend on all of them together; the rest are shown as they were last known.
const LIST_WALK_MAX: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub exclusive_bytes: u64,
    pub shared_bytes: u64,
    pub at: Instant,
}

impl Engine {
    pub(crate) async fn list_snapshots(&self) -> Result<Vec<SnapshotView>, RunnerError> {
        let inner = Arc::clone(&self.inner);
        spawn_blocking(move || {
            let deadline = Some(Instant::now() + LIST_WALK_MAX);
            let all = inner.listed_snapshots();
            let mut views: Vec<_> = all
                .iter()
                .map(|snapshot| inner.snapshot_view(snapshot, deadline))
                .collect();
            // Only now is known what is exclusive to each.
            let charges = inner.charges(&all);
            for view in &mut views {
                view.counted_bytes = charges.get(&view.id).copied().unwrap_or(0);
            }
            let aside = inner.snapshots.aside.all();
            views.extend(aside.iter().map(|(id, entry)| entry.snapshot(id)));
            views
        })
        .await
        .map_err(internal)
    }

    pub(crate) async fn show_snapshot(&self, id: &SnapshotId) -> Result<SnapshotView, RunnerError> {
        if let Some(entry) = self.inner.snapshots.aside.get(id) {
            return Ok(entry.snapshot(id));
        }
        let snapshot = self.inner.snapshots.find_made(id)?;
        let inner = Arc::clone(&self.inner);
        spawn_blocking(move || {
            let mut view = inner.snapshot_view(&snapshot, None);
            let charges = inner.charges(&inner.listed_snapshots());
            view.counted_bytes = charges.get(&view.id).copied().unwrap_or(0);
            view
        })
        .await
        .map_err(internal)
    }
}

impl Inner {
    fn listed_snapshots(&self) -> Vec<Arc<Snapshot>> {
        let mut all = self.snapshots.all();
        all.retain(|snapshot| snapshot.record.template_of.is_none());
        all
    }

    /// A snapshot as callers see it. Blocks while its sizes are found out, at most until `deadline`.
    pub(crate) fn snapshot_view(
        &self,
        snapshot: &Arc<Snapshot>,
        deadline: Option<Instant>,
    ) -> SnapshotView {
        let sizes = self.sizes(snapshot, deadline);
        let record = &snapshot.record;
        let unfit = record.memory.as_ref().and_then(|memory| {
            self.tiers
                .fits(&memory.needs)
                .err()
                .map(|error| chain(&error))
        });
        let memory_bytes = record.memory.as_ref().map_or(0, |memory| memory.bytes);
        let image_bytes = self.own_image_bytes(record);
        SnapshotView {
            id: record.id.clone(),
            sandbox: record.sandbox.clone(),
            parent: record.parent.clone(),
            memory: record.memory.is_some(),
            image: record.image.clone(),
            spec: record.spec.clone(),
            created_at: record.created_at,
            exclusive_bytes: sizes
                .map_or(memory_bytes, |sizes| sizes.exclusive_bytes)
                .saturating_add(image_bytes),
            shared_bytes: sizes.map_or(0, |sizes| sizes.shared_bytes),
            counted_bytes: 0,
            memory_bytes,
            stopped_us: record.stopped_us,
            unfit,
            set_aside: None,
        }
    }

    /// What came in with an imported snapshot lies in an image that nobody can name, and counts with the
    /// oldest snapshot on it.
    fn own_image_bytes(&self, record: &SnapshotRecord) -> u64 {
        let image = self.images.store.get(&record.image);
        image
            .filter(|image| image.names.is_empty() && image.source == Source::Snapshot)
            .filter(|image| self.snapshots.first_on(&image.id).as_ref() == Some(&record.id))
            .map_or(0, |image| image.size_bytes)
    }

    fn sizes(&self, snapshot: &Snapshot, deadline: Option<Instant>) -> Option<Sizes> {
        let known = *snapshot.sizes.lock();
        let now = Instant::now();
        let age_max = match deadline {
            Some(_) => FRESH_IN_LIST,
            None => FRESH_ALONE,
        };
        let fresh = known.is_some_and(|known| now.duration_since(known.at) < age_max);
        let until = deadline.unwrap_or(now + WALK_MAX).min(now + WALK_MAX);
        if fresh || now >= until {
            return known;
        }
        if deadline.is_none() {
            // Wakes the kernel's cleaner, so that what was just deleted counts as gone.
            let _ = self.pool.sync(&snapshot.volume());
        }
        match self.pool.shares(&snapshot.volume(), until) {
            Ok(shares) => {
                let sizes = Sizes {
                    exclusive_bytes: shares.exclusive_bytes,
                    shared_bytes: shares.shared_bytes,
                    at: now,
                };
                if !shares.complete && known.is_some() && deadline.is_some() {
                    // Cut short by its siblings; what is known is better than half of it.
                    return known;
                }
                *snapshot.sizes.lock() = Some(sizes);
                Some(sizes)
            }
            Err(error) => {
                tracing::warn!(snapshot = %snapshot.record.id, error = chain(&error), "cannot measure a snapshot");
                known
            }
        }
    }
}
