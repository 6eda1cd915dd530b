//! Snapshots: names, quota, lineage.

use std::sync::Arc;

use cove_model::{OrgId, SandboxSpec, SnapshotId};
use cove_store::{
    IdempotencyKey, ObjectCopy, PageRequest, Period, Quota, Retention, SandboxChange,
    SandboxRecord, SnapshotChange, SnapshotCreated, SnapshotFacts, SnapshotFilter, SnapshotKind,
    SnapshotRecord, SnapshotRef, SnapshotSample, SnapshotState, Store, StoreError,
};

use crate::rows::{at, host, moment, org, org_with, sandbox, steady};

pub fn snapshot(of: &SandboxRecord, name: Option<&str>) -> SnapshotRecord {
    SnapshotRecord {
        id: SnapshotId::random(),
        org: of.org.clone(),
        host: of.host.clone(),
        name: name.map(Into::into),
        sandbox: Some(of.id.clone()),
        parent: None,
        kind: SnapshotKind::Manual,
        state: SnapshotState::Making,
        memory: false,
        spec: SandboxSpec::default(),
        rolled_back_to: None,
        object_copy: ObjectCopy::None,
        on_host: true,
        facts: SnapshotFacts::default(),
        held_disk_mb: 1,
        created_at: at(20),
        created_steady: steady(20),
        deleted_at: None,
    }
}

fn gone() -> SnapshotChange {
    SnapshotChange {
        deleted_at: Some(at(50)),
        ..SnapshotChange::default()
    }
}

async fn disk_used(store: &Arc<dyn Store>, org: &OrgId) -> u64 {
    let org = store.organisation(org).await.unwrap().unwrap();
    org.used.disk_mb
}

pub async fn snapshot_names_are_unique_among_the_living_of_one_organisation(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let (here, there) = (sandbox(&ours, None), sandbox(&theirs, None));
    let first = snapshot(&here, Some("clean"));
    store.create_snapshot(&first, None).await.unwrap();
    let again = store
        .create_snapshot(&snapshot(&here, Some("clean")), None)
        .await
        .unwrap_err();
    assert!(matches!(again, StoreError::Exists { .. }), "{again}");
    store
        .create_snapshot(&snapshot(&there, Some("clean")), None)
        .await
        .unwrap();
    let by_name = store.snapshot(&ours, SnapshotRef::Name("clean")).await;
    assert_eq!(by_name.unwrap().unwrap(), first);
    let foreign = store.snapshot(&theirs, SnapshotRef::Id(&first.id)).await;
    assert!(foreign.unwrap().is_none());
    store.change_snapshot(&first.id, &gone()).await.unwrap();
    let by_name = store.snapshot(&ours, SnapshotRef::Name("clean")).await;
    assert!(by_name.unwrap().is_none());
    store
        .create_snapshot(&snapshot(&here, Some("clean")), None)
        .await
        .unwrap();
    let late = store.change_snapshot(&first.id, &gone()).await.unwrap_err();
    assert!(matches!(late, StoreError::NotFound { .. }), "{late}");
}

pub async fn snapshots_hold_disk_and_give_it_back(store: Arc<dyn Store>) {
    let quota = Quota {
        disk_mb: 2,
        ..Quota::default()
    };
    let ours = org_with(&store, "ours", quota).await;
    let of = sandbox(&ours, None);
    let (one, two) = (snapshot(&of, None), snapshot(&of, None));
    store.create_snapshot(&one, None).await.unwrap();
    store.create_snapshot(&two, None).await.unwrap();
    let refused = store
        .create_snapshot(&snapshot(&of, None), None)
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, StoreError::Quota { resource, .. } if resource.contains("disk")),
        "{refused}"
    );
    // What was found on the disk is held also above the quota.
    let facts = SnapshotFacts {
        exclusive_bytes: 9 << 20,
        ..SnapshotFacts::default()
    };
    let measured = SnapshotChange {
        state: Some(SnapshotState::Ready),
        facts: Some(facts.clone()),
        held_disk_mb: Some(9),
        memory: Some(true),
        ..SnapshotChange::default()
    };
    let changed = store.change_snapshot(&one.id, &measured).await.unwrap();
    let expected = SnapshotRecord {
        state: SnapshotState::Ready,
        memory: true,
        held_disk_mb: 9,
        facts,
        ..one.clone()
    };
    assert_eq!(changed, expected);
    assert_eq!(disk_used(&store, &ours).await, 10);
    store.change_snapshot(&one.id, &gone()).await.unwrap();
    assert_eq!(disk_used(&store, &ours).await, 1);
    store.forget_snapshot(&two.id).await.unwrap();
    store.forget_snapshot(&two.id).await.unwrap();
    assert_eq!(disk_used(&store, &ours).await, 0);
    assert!(store.any_snapshot(&two.id).await.unwrap().is_none());
    let dead = store.any_snapshot(&one.id).await.unwrap().unwrap();
    assert_eq!(dead.deleted_at, Some(at(50)));
}

pub async fn snapshots_are_listed_newest_first_by_sandbox_and_kind(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let (one, two) = (sandbox(&ours, None), sandbox(&ours, None));
    let mut ids = Vec::new();
    for age in 0..5 {
        let record = SnapshotRecord {
            created_at: at(age),
            kind: [SnapshotKind::Auto, SnapshotKind::Manual][age as usize % 2],
            ..snapshot(if age < 4 { &one } else { &two }, None)
        };
        store.create_snapshot(&record, None).await.unwrap();
        ids.push(record.id);
    }
    store.change_snapshot(&ids[1], &gone()).await.unwrap();
    let list = async |filter: SnapshotFilter| {
        let mut found = Vec::new();
        let mut page = PageRequest {
            limit: 2,
            cursor: None,
        };
        loop {
            let part = store.snapshots(&ours, &filter, &page).await.unwrap();
            assert!(part.items.len() <= 2);
            found.extend(part.items.into_iter().map(|record| record.id));
            match part.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => return found,
            }
        }
    };
    let pick = |which: &[usize]| which.iter().map(|i| ids[*i].clone()).collect::<Vec<_>>();
    assert_eq!(list(SnapshotFilter::default()).await, pick(&[4, 3, 2, 0]));
    let of_one = SnapshotFilter {
        sandbox: Some(one.id.clone()),
        ..SnapshotFilter::default()
    };
    assert_eq!(list(of_one.clone()).await, pick(&[3, 2, 0]));
    let auto = SnapshotFilter {
        kinds: vec![SnapshotKind::Auto, SnapshotKind::Fork],
        ..of_one.clone()
    };
    assert_eq!(list(auto).await, pick(&[2, 0]));
    let all = SnapshotFilter {
        gone_too: true,
        ..of_one
    };
    assert_eq!(list(all).await, pick(&[3, 2, 1, 0]));
    let page = PageRequest::default();
    let everybody = store.snapshots_on(&host(), &page).await.unwrap();
    assert_eq!(everybody.items.len(), 4);
}

pub async fn sandboxes_remember_what_they_grew_from(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let parent = sandbox(&ours, None);
    store.create_sandbox(&parent, None).await.unwrap();
    let taken = snapshot(&parent, None);
    store.create_snapshot(&taken, None).await.unwrap();
    let child = SandboxRecord {
        origin: Some(taken.id.clone()),
        head: Some(taken.id.clone()),
        ..sandbox(&ours, None)
    };
    store.create_sandbox(&child, None).await.unwrap();
    assert_eq!(
        store.forks(&parent.id, 10).await.unwrap(),
        std::slice::from_ref(&child.id)
    );
    assert!(store.forks(&child.id, 10).await.unwrap().is_empty());
    let later = SnapshotId::random();
    let moved = SandboxChange {
        head: Some(Some(later.clone())),
        ..SandboxChange::default()
    };
    let changed = store.change_sandbox(&child.id, &moved, at(30)).await;
    let changed = changed.unwrap();
    assert_eq!(changed.head, Some(later));
    assert_eq!(changed.origin, Some(taken.id.clone()));
    // A snapshot that is gone still tells where its children came from.
    store.change_snapshot(&taken.id, &gone()).await.unwrap();
    assert_eq!(store.forks(&parent.id, 10).await.unwrap(), [child.id]);
    let retention = Retention {
        idempotency_before: steady(0),
        jobs_before: at(0),
        events_before: at(0),
        events_max: 1000,
        audit_before: at(0),
        audit_max: 1000,
        tombstones_before: at(60),
        tombstones_max: 1000,
    };
    assert_eq!(store.sweep(&retention).await.unwrap(), 1);
    assert!(store.any_snapshot(&taken.id).await.unwrap().is_none());
    assert!(store.forks(&parent.id, 10).await.unwrap().is_empty());
}

pub async fn one_key_takes_one_snapshot_and_never_stands_for_a_sandbox(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let of = sandbox(&ours, None);
    let key = |hash: &str| IdempotencyKey {
        key: "k".into(),
        request_hash: hash.into(),
    };
    let attempts: Vec<_> = (0..8)
        .map(|_| {
            let (store, record, key) = (Arc::clone(&store), snapshot(&of, None), key("h"));
            tokio::spawn(async move {
                let outcome = store.create_snapshot(&record, Some(&key)).await.unwrap();
                (record.id, outcome)
            })
        })
        .collect();
    let (mut new, mut replayed) = (Vec::new(), Vec::new());
    for attempt in attempts {
        match attempt.await.unwrap() {
            (id, SnapshotCreated::New) => new.push(id),
            (_, SnapshotCreated::Replayed(id)) => replayed.push(id),
            (_, SnapshotCreated::KeyReused) => panic!("the same request was refused"),
        }
    }
    assert_eq!(new.len(), 1);
    assert!(replayed.iter().all(|id| *id == new[0]));
    assert_eq!(disk_used(&store, &ours).await, 1);
    let other = store
        .create_sandbox(&sandbox(&ours, None), Some(&key("other")))
        .await
        .unwrap();
    assert_eq!(other, cove_store::Created::KeyReused);
    // What never came to be lets its request be tried again.
    store.forget_snapshot(&new[0]).await.unwrap();
    let again = snapshot(&of, None);
    let outcome = store.create_snapshot(&again, Some(&key("h"))).await;
    assert_eq!(outcome.unwrap(), SnapshotCreated::New);
}

pub async fn their_disk_is_charged_from_beginning_to_end(store: Arc<dyn Store>) {
    const MIB: u64 = 1 << 20;
    let ours = org(&store, "ours").await;
    let of = sandbox(&ours, None);
    let one = snapshot(&of, None);
    store.create_snapshot(&one, None).await.unwrap();
    let sample = |second: i64, disk_bytes: Option<u64>| SnapshotSample {
        snapshot: one.id.clone(),
        org: ours.clone(),
        at: moment(second),
        exact_since: steady(-1_000_000),
        disk_bytes,
    };
    let used = async || {
        let ever = Period {
            from: at(-1_000_000),
            to: at(100_000_000),
        };
        store.usage(&ours, ever).await.unwrap()
    };
    let before = used().await;
    let told = [
        sample(100, Some(10 * MIB)),
        sample(110, Some(3 * MIB)),
        sample(110, Some(3 * MIB)),
        sample(105, Some(1000 * MIB)),
    ];
    store.apply_snapshot_samples(&told).await.unwrap();
    assert_eq!(used().await.disk_mib_ms - before.disk_mib_ms, 10 * 10_000);
    store.change_snapshot(&one.id, &gone()).await.unwrap();
    store
        .apply_snapshot_samples(&[sample(120, None)])
        .await
        .unwrap();
    let charged = 10 * 10_000 + 3 * 10_000;
    assert_eq!(used().await.disk_mib_ms - before.disk_mib_ms, charged);
    // Whoever looked before it went is late, and telling of its end again changes nothing.
    let late = [sample(130, Some(50 * MIB)), sample(140, None)];
    store.apply_snapshot_samples(&late).await.unwrap();
    assert_eq!(used().await.disk_mib_ms - before.disk_mib_ms, charged);
    assert_eq!(used().await.memory_mib_ms, before.memory_mib_ms);
    assert_eq!(store.usage_of(&of.id).await.unwrap().disk_mib_ms, 0);
    let page = PageRequest {
        limit: 100,
        cursor: None,
    };
    let ever = Period {
        from: at(-1_000_000),
        to: at(100_000_000),
    };
    let listed = store.usage_by_sandbox(&ours, ever, &page).await.unwrap();
    assert!(listed.items.is_empty(), "{listed:?}");
}
