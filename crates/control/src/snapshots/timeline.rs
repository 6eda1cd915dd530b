//! The tree a sandbox is part of: its snapshots, what they grew from, what grew from them, and where
//! it is now.

use async_recursion::async_recursion as boxed;
use std::collections::HashSet;

use cove_model::{SandboxId, SnapshotId, State};
use cove_store::{PAGE_MAX, PageRequest, Scope, SnapshotFilter, SnapshotRecord, SnapshotState};
use time::OffsetDateTime;

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;

/// The newest snapshots of the sandbox that are shown.
const SNAPSHOTS_SHOWN: u32 = PAGE_MAX;
/// How far back it goes beyond the sandbox's own beginning.
const ANCESTORS_SHOWN: usize = 100;
/// Forks that are shown.
const FORKS_SHOWN: u32 = 1000;

#[derive(Debug, Clone)]
pub struct Timeline {
    pub sandbox: SandboxId,
    pub name: Option<String>,
    pub state: State,
    pub created_at: OffsetDateTime,
    /// The snapshot it began from, when it did not begin from an image.
    pub origin: Option<SnapshotId>,
    /// The snapshot its present state grew from.
    pub head: Option<SnapshotId>,
    /// Its own and those it grew from, oldest first; also those that are gone, as far as they are
    /// remembered.
    pub snapshots: Vec<SnapshotRecord>,
    /// Sandboxes that began from one of its snapshots, oldest first.
    pub forks: Vec<TimelineFork>,
    /// There are more snapshots than these.
    pub truncated: bool,
}

#[derive(Debug, Clone)]
pub struct TimelineFork {
    pub sandbox: SandboxId,
    pub name: Option<String>,
    pub state: State,
    pub from: SnapshotId,
    pub created_at: OffsetDateTime,
}

impl Control {
    /// Needs `read`.
    #[boxed]
    pub async fn timeline(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Timeline, ControlError> {
        principal.require(Scope::Read)?;
        let record = self.find(principal, which).await?;
        let filter = SnapshotFilter {
            sandbox: Some(record.id.clone()),
            kinds: Vec::new(),
            gone_too: true,
        };
        let page = PageRequest {
            limit: SNAPSHOTS_SHOWN,
            cursor: None,
        };
        let own = self.store().snapshots(&record.org, &filter, &page).await?;
        let truncated = own.next_cursor.is_some();
        let mut snapshots = own.items;
        snapshots.retain(|row| row.state != SnapshotState::Making);
        let mut seen: HashSet<_> = snapshots.iter().map(|row| row.id.clone()).collect();
        let mut next = record.origin.clone();
        for _ in 0..ANCESTORS_SHOWN {
            let Some(id) = next.take().filter(|id| seen.insert(id.clone())) else {
                break;
            };
            let found = self.store().any_snapshot(&id).await?;
            let Some(row) = found.filter(|row| row.org == record.org) else {
                break;
            };
            next = row.parent.clone();
            snapshots.push(row);
        }
        snapshots.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        let mut forks = Vec::new();
        for id in self.store().forks(&record.id, FORKS_SHOWN).await? {
            let found = self.store().any_sandbox(&id).await?;
            let Some(child) = found.filter(|child| child.org == record.org) else {
                continue;
            };
            if let Some(from) = child.origin {
                forks.push(TimelineFork {
                    sandbox: child.id,
                    name: child.spec.name,
                    state: child.state,
                    from,
                    created_at: child.created_at,
                });
            }
        }
        Ok(Timeline {
            sandbox: record.id,
            name: record.spec.name,
            state: record.state,
            created_at: record.created_at,
            origin: record.origin,
            head: record.head,
            snapshots,
            forks,
            truncated,
        })
    }
}
