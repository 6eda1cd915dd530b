//! Volumes: names, quota, and who mounts them.

use std::sync::Arc;

use cove_model::{OrgId, VolumeId, VolumeMount};
use cove_store::{
    IdempotencyKey, PageRequest, Period, Quota, SandboxChange, SandboxRecord, Store, StoreError,
    VolumeCreated, VolumeDoomed, VolumeRecord, VolumeRef, VolumeSample, VolumeState,
};

use crate::rows::{at, host, moment, org, org_with, sandbox, steady};

pub fn volume(org: &OrgId, name: &str) -> VolumeRecord {
    VolumeRecord {
        id: VolumeId::random(),
        org: org.clone(),
        host: host(),
        name: name.into(),
        state: VolumeState::Making,
        size_mb: 100,
        read_only: false,
        origin: None,
        used_bytes: 0,
        created_at: at(20),
        created_steady: steady(20),
        deleted_at: None,
    }
}

async fn ready(store: &Arc<dyn Store>, org: &OrgId, name: &str) -> VolumeRecord {
    let row = volume(org, name);
    store.create_volume(&row, None).await.unwrap();
    store.ready_volume(&row.id).await.unwrap()
}

fn mounting(org: &OrgId, volumes: &[&VolumeId]) -> SandboxRecord {
    let mut record = sandbox(org, None);
    record.host = host();
    record.spec.volumes = volumes
        .iter()
        .enumerate()
        .map(|(number, volume)| VolumeMount {
            volume: (*volume).clone(),
            path: format!("/v{number}"),
            read_only: false,
        })
        .collect();
    record
}

async fn disk_used(store: &Arc<dyn Store>, org: &OrgId) -> u64 {
    let org = store.organisation(org).await.unwrap().unwrap();
    org.used.disk_mb
}

pub async fn volumes_are_found_by_their_own_organisation_only(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let first = ready(&store, &ours, "data").await;
    let again = store.create_volume(&volume(&ours, "data"), None).await;
    assert!(matches!(again, Err(StoreError::Exists { .. })), "{again:?}");
    ready(&store, &theirs, "data").await;
    for which in [VolumeRef::Id(&first.id), VolumeRef::Name("data")] {
        assert_eq!(
            store.volume(&ours, which).await.unwrap().as_ref(),
            Some(&first)
        );
        assert_ne!(
            store.volume(&theirs, which).await.unwrap().as_ref(),
            Some(&first)
        );
    }
    let listed = store.volumes(&ours, &PageRequest::default()).await.unwrap();
    assert_eq!(listed.items, std::slice::from_ref(&first));
    let here = store.volumes_on(&host(), &PageRequest::default()).await;
    assert_eq!(here.unwrap().items.len(), 2);
    store.bury_volume(&first.id, at(50)).await.unwrap();
    assert_eq!(
        store.volume(&ours, VolumeRef::Id(&first.id)).await.unwrap(),
        None
    );
    let tombstone = store.any_volume(&first.id).await.unwrap().unwrap();
    assert_eq!(tombstone.deleted_at, Some(at(50)));
    ready(&store, &ours, "data").await;
}

pub async fn volumes_hold_their_size_and_give_it_back(store: Arc<dyn Store>) {
    let quota = Quota {
        disk_mb: 250,
        ..Quota::default()
    };
    let ours = org_with(&store, "ours", quota).await;
    let first = ready(&store, &ours, "a").await;
    let second = volume(&ours, "b");
    store.create_volume(&second, None).await.unwrap();
    let third = store.create_volume(&volume(&ours, "c"), None).await;
    assert!(matches!(third, Err(StoreError::Quota { .. })), "{third:?}");
    assert_eq!(disk_used(&store, &ours).await, 200);
    store.forget_volume(&first.id).await.unwrap();
    assert_eq!(
        disk_used(&store, &ours).await,
        200,
        "one that is there stays"
    );
    store.forget_volume(&second.id).await.unwrap();
    store.bury_volume(&first.id, at(50)).await.unwrap();
    store.bury_volume(&first.id, at(51)).await.unwrap();
    assert_eq!(disk_used(&store, &ours).await, 0);
    // One key makes one volume.
    let key = IdempotencyKey {
        key: "k".into(),
        request_hash: "h".into(),
    };
    let made = volume(&ours, "d");
    let created = store.create_volume(&made, Some(&key)).await.unwrap();
    assert_eq!(created, VolumeCreated::New);
    let repeated = store.create_volume(&volume(&ours, "d"), Some(&key)).await;
    assert_eq!(repeated.unwrap(), VolumeCreated::Replayed(made.id));
}

pub async fn states_of_a_volume_change_from_where_they_are_only(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let row = volume(&ours, "data");
    store.create_volume(&row, None).await.unwrap();
    let gone = |outcome| matches!(outcome, Err(StoreError::NotFound { .. }));
    assert!(gone(store.spare_volume(&row.id).await));
    store.abandon_volume(&row.id).await.unwrap();
    // Whoever was about to finish it comes too late.
    assert!(gone(store.ready_volume(&row.id).await));
    store.forget_volume(&row.id).await.unwrap();
    let kept = ready(&store, &ours, "data").await;
    assert!(gone(store.abandon_volume(&kept.id).await));
    store.doom_volume(&ours, &kept.id).await.unwrap();
    assert_eq!(store.spare_volume(&kept.id).await.unwrap(), kept);
}

pub async fn a_mounted_volume_is_not_doomed_and_a_doomed_one_not_mounted(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let data = ready(&store, &ours, "data").await;
    let other = ready(&store, &theirs, "other").await;
    let making = volume(&ours, "making");
    store.create_volume(&making, None).await.unwrap();
    for unusable in [&other.id, &making.id, &VolumeId::random()] {
        let refused = store
            .create_sandbox(&mounting(&ours, &[unusable]), None)
            .await;
        assert!(
            matches!(refused, Err(StoreError::NotFound { .. })),
            "{refused:?}"
        );
    }
    let user = mounting(&ours, &[&data.id, &data.id]);
    store.create_sandbox(&user, None).await.unwrap();
    let VolumeDoomed::InUse(users) = store.doom_volume(&ours, &data.id).await.unwrap() else {
        panic!("it is mounted");
    };
    assert_eq!(users.len(), 1);
    assert_eq!(users[0].id, user.id);
    let missing = store.doom_volume(&theirs, &data.id).await;
    assert!(
        matches!(missing, Err(StoreError::NotFound { .. })),
        "{missing:?}"
    );
    let gone = SandboxChange {
        deleted_at: Some(at(60)),
        ..SandboxChange::default()
    };
    store.change_sandbox(&user.id, &gone, at(60)).await.unwrap();
    assert!(store.volume_users(&data.id).await.unwrap().is_empty());
    let doomed = store.doom_volume(&ours, &data.id).await.unwrap();
    assert!(matches!(doomed, VolumeDoomed::Marked(_)), "{doomed:?}");
    let late = store
        .create_sandbox(&mounting(&ours, &[&data.id]), None)
        .await;
    assert!(matches!(late, Err(StoreError::NotFound { .. })), "{late:?}");
}

/// Either the sandbox is there and the volume stays, or the volume goes and the sandbox is refused.
pub async fn mounting_and_deleting_at_once_have_one_winner(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    for round in 0..20 {
        let data = ready(&store, &ours, &format!("data-{round}")).await;
        let record = mounting(&ours, &[&data.id]);
        let (created, doomed) = tokio::join!(
            store.create_sandbox(&record, None),
            store.doom_volume(&ours, &data.id)
        );
        let is_doomed = matches!(doomed.unwrap(), VolumeDoomed::Marked(_));
        assert_ne!(created.is_ok(), is_doomed, "round {round}");
    }
}

pub async fn what_volumes_hold_is_charged_to_their_organisation(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let data = ready(&store, &ours, "data").await;
    let sample = |s: i64, disk_bytes: Option<u64>| VolumeSample {
        volume: data.id.clone(),
        org: ours.clone(),
        at: moment(s),
        exact_since: steady(0),
        disk_bytes,
    };
    store
        .apply_volume_samples(&[sample(100, Some(10 << 20))])
        .await
        .unwrap();
    store
        .apply_volume_samples(&[sample(110, None)])
        .await
        .unwrap();
    store.bury_volume(&data.id, at(110)).await.unwrap();
    // Figures that come late count for nothing.
    store
        .apply_volume_samples(&[sample(120, Some(10 << 20))])
        .await
        .unwrap();
    let period = Period {
        from: at(0),
        to: at(100_000),
    };
    let usage = store.usage(&ours, period).await.unwrap();
    assert_eq!(usage.disk_mib_ms, 10 * 10_000);
}
