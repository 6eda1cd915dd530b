//! Snapshots and timelines.

use cove_api::Timestamp;
use cove_api::snapshot::{Snapshot, Timeline, TimelineFork};
use cove_control as control;

pub fn snapshot(row: control::SnapshotRecord) -> Snapshot {
    Snapshot {
        id: row.id.into(),
        name: row.name,
        sandbox: row.sandbox.map(Into::into),
        parent: row.parent.map(Into::into),
        kind: row.kind,
        memory: row.memory,
        image_id: row.facts.image.map(Into::into),
        created_at: row.created_at.into(),
        exclusive_bytes: row.facts.exclusive_bytes,
        shared_bytes: row.facts.shared_bytes,
        memory_bytes: row.facts.memory_bytes,
        stopped_us: row.facts.stopped_us,
        unfit: row.facts.unfit,
        rolled_back_to: row.rolled_back_to.map(Into::into),
        deleted_at: row.deleted_at.map(Timestamp),
        volumes_not_included: row.spec.volumes.into_iter().map(Into::into).collect(),
        object_storage: Some(row.object_copy),
        on_host: Some(row.on_host),
    }
}

pub fn timeline(tree: control::Timeline) -> Timeline {
    let forks = tree.forks.into_iter().map(|fork| TimelineFork {
        sandbox: fork.sandbox.into(),
        name: fork.name,
        state: fork.state,
        from_snapshot: fork.from.into(),
        created_at: fork.created_at.into(),
    });
    Timeline {
        sandbox: tree.sandbox.into(),
        name: tree.name,
        state: tree.state,
        created_at: tree.created_at.into(),
        from_snapshot: tree.origin.map(Into::into),
        head: tree.head.map(Into::into),
        snapshots: tree.snapshots.into_iter().map(snapshot).collect(),
        forks: forks.collect(),
        truncated: tree.truncated,
    }
}
