//! Builds, and the states after their steps.

use std::sync::Arc;

use cove_model::{BuildId, BuildState, OrgId};
use cove_store::{BuildRecord, SnapshotChange, SnapshotState, Store};

use super::templates::ready_snapshot;
use crate::rows::{at, org};

pub fn build(org: &OrgId, second: i64) -> BuildRecord {
    BuildRecord {
        id: BuildId::random(),
        org: org.clone(),
        name: "made".into(),
        state: BuildState::Running,
        error: None,
        template: None,
        steps: 1,
        cached: 0,
        created_at: at(second),
        finished_at: None,
    }
}

pub async fn a_build_that_is_over_stays_as_it_is_and_old_ones_go(store: Arc<dyn Store>) {
    let (org, other) = (org(&store, "a").await, org(&store, "b").await);
    let first = build(&org, 1);
    store.put_build(&first, 3).await.unwrap();
    let unfinished = store.unfinished_builds().await.unwrap();
    assert_eq!(unfinished, std::slice::from_ref(&first));
    let over = BuildRecord {
        state: BuildState::Failed,
        error: Some("why".into()),
        steps: 7,
        finished_at: Some(at(2)),
        ..first.clone()
    };
    store.put_build(&over, 3).await.unwrap();
    store.put_build(&first, 3).await.unwrap();
    assert_eq!(store.build(&org, &first.id).await.unwrap(), Some(over));
    assert_eq!(store.build(&other, &first.id).await.unwrap(), None);
    assert!(store.unfinished_builds().await.unwrap().is_empty());
    let running = build(&org, 0);
    store.put_build(&running, 3).await.unwrap();
    for second in 10..20 {
        let next = BuildRecord {
            state: BuildState::Done,
            finished_at: Some(at(second)),
            ..build(&org, second)
        };
        store.put_build(&next, 3).await.unwrap();
    }
    // One that is under way is never forgotten.
    let left = store.builds(&org, 100).await.unwrap();
    let left: Vec<_> = left.iter().map(|build| build.created_at).collect();
    assert_eq!(left, [at(19), at(18), at(17), at(0)]);
    assert!(store.builds(&other, 100).await.unwrap().is_empty());
}

pub async fn steps_belong_to_an_organisation_and_those_used_longest_ago_go(store: Arc<dyn Store>) {
    let (org, other) = (org(&store, "a").await, org(&store, "b").await);
    let one = ready_snapshot(&store, &org).await;
    let two = ready_snapshot(&store, &org).await;
    store.keep_step(&org, "k1", &one, at(1), 2).await.unwrap();
    assert_eq!(
        store.cached_step(&org, "k1").await.unwrap(),
        Some(one.clone())
    );
    assert_eq!(store.cached_step(&other, "k1").await.unwrap(), None);
    // A row of one organisation cannot show another's snapshot.
    store.keep_step(&other, "k1", &one, at(1), 2).await.unwrap();
    assert_eq!(store.cached_step(&other, "k1").await.unwrap(), None);
    assert_eq!(store.clear_steps(&other).await.unwrap(), 1);
    store.keep_step(&org, "k2", &two, at(2), 2).await.unwrap();
    store
        .touch_steps(&org, &["k1".into(), "none".into()], at(3))
        .await
        .unwrap();
    store.keep_step(&org, "k3", &two, at(4), 2).await.unwrap();
    assert_eq!(store.cached_step(&org, "k2").await.unwrap(), None);
    assert_eq!(
        store.cached_step(&org, "k3").await.unwrap(),
        Some(two.clone())
    );
    assert!(store.is_cached(&one).await.unwrap());
    // One whose snapshot is being deleted is not there.
    let gone = SnapshotChange {
        state: Some(SnapshotState::Deleting),
        ..SnapshotChange::default()
    };
    store.change_snapshot(&one, &gone).await.unwrap();
    assert_eq!(store.cached_step(&org, "k1").await.unwrap(), None);
    assert_eq!(store.clear_steps(&org).await.unwrap(), 2);
    assert!(!store.is_cached(&two).await.unwrap());
}
