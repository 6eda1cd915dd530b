//! What object storage has.

use std::sync::Arc;

use cove_model::{HostId, ObjectCopy, OrgId};
use cove_store::{
    ChunkClaimed, ChunkStored, ChunkWanted, ObjectOutcome, SnapshotChange, SnapshotRecord,
    SnapshotState, Store, StoreError, UploadKey,
};

use super::snapshots::snapshot;
use crate::rows::{at, org, sandbox, steady};

const QUOTA_MB: u64 = 1000;

async fn ready(store: &Arc<dyn Store>, org: &OrgId) -> SnapshotRecord {
    let row = snapshot(&sandbox(org, None), None);
    store.create_snapshot(&row, None).await.unwrap();
    let change = SnapshotChange {
        state: Some(SnapshotState::Ready),
        ..SnapshotChange::default()
    };
    store.change_snapshot(&row.id, &change).await.unwrap()
}

async fn gone(store: &Arc<dyn Store>, row: &SnapshotRecord) {
    let change = SnapshotChange {
        deleted_at: Some(at(50)),
        ..SnapshotChange::default()
    };
    store.change_snapshot(&row.id, &change).await.unwrap();
}

fn upload(of: &SnapshotRecord, token: &str) -> UploadKey {
    UploadKey {
        snapshot: of.id.clone(),
        org: of.org.clone(),
        token: token.into(),
    }
}

async fn begin(store: &Arc<dyn Store>, of: &SnapshotRecord, token: &str) -> UploadKey {
    store.keep_object_key(&of.org, "wrapped").await.unwrap();
    let upload = upload(of, token);
    store.begin_upload(&upload).await.unwrap();
    upload
}

fn chunk(digest: &str, suffix: &str) -> ChunkWanted {
    ChunkWanted {
        digest: digest.into(),
        suffix: suffix.into(),
        bytes: 1 << 20,
    }
}

async fn claim(
    store: &Arc<dyn Store>,
    upload: &UploadKey,
    digest: &str,
    suffix: &str,
) -> ChunkClaimed {
    let wanted = [chunk(digest, suffix)];
    let mut claimed = store.claim_chunks(upload, &wanted, QUOTA_MB).await.unwrap();
    claimed.remove(0)
}

async fn put(store: &Arc<dyn Store>, upload: &UploadKey, digest: &str, bytes: u64) {
    let stored = ChunkStored {
        digest: digest.into(),
        bytes,
    };
    store.chunks_stored(upload, &[stored]).await.unwrap();
}

async fn commit(store: &Arc<dyn Store>, upload: &UploadKey) -> Result<(), StoreError> {
    let outcome = ObjectOutcome {
        manifest: format!("manifest of {}", upload.snapshot),
        manifest_bytes: 7,
        bytes: 100,
        sent_bytes: 50,
    };
    store.commit_upload(upload, &outcome, at(30)).await
}

async fn collect(store: &Arc<dyn Store>) -> Vec<String> {
    while store.drop_objects(steady(100)).await.unwrap() {}
    store.condemned_objects(steady(101), 1000).await.unwrap()
}

pub async fn a_chunk_that_somebody_uses_is_never_condemned(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let (first, second) = (ready(&store, &ours).await, ready(&store, &ours).await);
    let one = begin(&store, &first, "1").await;
    assert!(!claim(&store, &one, "aa", "x").await.stored);
    put(&store, &one, "aa", 10).await;
    // Told twice, counted once.
    put(&store, &one, "aa", 10).await;
    claim(&store, &one, "bb", "x").await;
    put(&store, &one, "bb", 20).await;
    commit(&store, &one).await.unwrap();
    let found = store.any_snapshot(&first.id).await.unwrap().unwrap();
    assert_eq!(found.object_copy, ObjectCopy::Stored);
    assert_eq!(store.object_usage(&ours).await.unwrap(), 37);

    let two = begin(&store, &second, "2").await;
    let again = claim(&store, &two, "aa", "y").await;
    assert_eq!((again.stored, again.suffix.as_str()), (true, "x"));
    gone(&store, &first).await;
    let condemned = collect(&store).await;
    let bb = format!("{ours}/chunks/bb/bb-x");
    assert!(condemned.contains(&bb), "{condemned:?}");
    assert!(
        condemned.iter().all(|name| !name.contains("aa-x")),
        "{condemned:?}"
    );
    assert_eq!(condemned.len(), 2, "with the manifest: {condemned:?}");
    assert_eq!(store.object_usage(&ours).await.unwrap(), 10);
    // Nothing is deleted before its time.
    assert!(
        store
            .condemned_objects(steady(100), 10)
            .await
            .unwrap()
            .is_empty()
    );
    store.objects_deleted(&condemned).await.unwrap();
    assert!(collect(&store).await.is_empty());
    commit(&store, &two).await.unwrap();
    let away = store.evictable_snapshots(0, 10).await.unwrap();
    assert_eq!(
        away.iter().map(|row| &row.id).collect::<Vec<_>>(),
        [&second.id]
    );
    assert!(store.evictable_snapshots(1, 10).await.unwrap().is_empty());

    // Another host may fetch it. What is nowhere else stays where it is.
    let next = HostId::random();
    let elsewhere = |only_on: &HostId| SnapshotChange {
        only_on: Some(only_on.clone()),
        host: Some(next.clone()),
        ..SnapshotChange::default()
    };
    let held = SnapshotChange {
        held_disk_mb: Some(5),
        ..SnapshotChange::default()
    };
    store.change_snapshot(&second.id, &held).await.unwrap();
    let change = elsewhere(&second.host);
    let changed = store.change_snapshot(&second.id, &change).await.unwrap();
    assert_eq!(
        (&changed.host, changed.on_host, changed.held_disk_mb),
        (&next, false, 0)
    );
    let stale = store.change_snapshot(&second.id, &change).await;
    assert!(matches!(stale, Err(StoreError::Stale)));
    let third = ready(&store, &ours).await;
    let change = elsewhere(&third.host);
    let nowhere_else = store.change_snapshot(&third.id, &change).await;
    assert!(matches!(nowhere_else, Err(StoreError::Stale)));
    let totals = store.object_totals().await.unwrap();
    assert_eq!((totals.stored, totals.uploading, totals.bytes), (1, 0, 17));
}

pub async fn a_condemned_name_is_never_given_again(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let (first, second) = (ready(&store, &ours).await, ready(&store, &ours).await);
    let one = begin(&store, &first, "1").await;
    claim(&store, &one, "aa", "x").await;
    put(&store, &one, "aa", 10).await;
    gone(&store, &first).await;
    assert_eq!(collect(&store).await, [format!("{ours}/chunks/aa/aa-x")]);
    let two = begin(&store, &second, "2").await;
    let claimed = claim(&store, &two, "aa", "y").await;
    assert_eq!((claimed.stored, claimed.suffix.as_str()), (false, "y"));
}

pub async fn a_later_upload_takes_over_and_gone_snapshots_take_none(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let row = ready(&store, &ours).await;
    let one = begin(&store, &row, "1").await;
    let pending = store.pending_uploads(10, 10).await.unwrap();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].object_copy, ObjectCopy::Uploading);
    let two = begin(&store, &row, "2").await;
    let superseded = |outcome: Result<(), StoreError>| {
        assert!(
            matches!(outcome, Err(StoreError::NotFound { .. })),
            "{outcome:?}"
        );
    };
    superseded(store.renew_upload(&one).await);
    superseded(commit(&store, &one).await);
    superseded(
        store
            .claim_chunks(&one, &[chunk("aa", "x")], QUOTA_MB)
            .await
            .map(drop),
    );
    store.renew_upload(&two).await.unwrap();
    commit(&store, &two).await.unwrap();
    superseded(commit(&store, &two).await);
    superseded(store.begin_upload(&upload(&row, "3")).await);
    assert!(store.pending_uploads(10, 10).await.unwrap().is_empty());
    let other = ready(&store, &ours).await;
    let three = begin(&store, &other, "4").await;
    gone(&store, &other).await;
    collect(&store).await;
    superseded(commit(&store, &three).await);
    superseded(store.begin_upload(&upload(&other, "5")).await);
    assert!(store.object(&other.id).await.unwrap().is_none());
}

pub async fn pending_uploads_are_shared_between_organisations(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let mut rows = Vec::new();
    for count in 0..8 {
        let row = ready(&store, &ours).await;
        begin(&store, &row, &format!("o{count}")).await;
        rows.push(row);
    }
    let late = ready(&store, &theirs).await;
    begin(&store, &late, "t").await;
    for limit in [2, 4, 100] {
        let pending = store.pending_uploads(limit, 3).await.unwrap();
        assert!(pending.iter().any(|row| row.id == late.id), "{limit}");
        let of_ours = pending.iter().filter(|row| row.org == ours).count();
        assert_eq!(of_ours, 3.min(limit as usize - 1));
    }
    // One that is given up leaves nothing, and may begin again.
    let row = &rows[0];
    let again = upload(row, "o0");
    claim(&store, &again, "aa", "1").await;
    store.abandon_upload(&row.id, &ours).await.unwrap();
    let found = store.any_snapshot(&row.id).await.unwrap().unwrap();
    assert_eq!(found.object_copy, ObjectCopy::None);
    collect(&store).await;
    assert!(store.object(&row.id).await.unwrap().is_none());
    assert!(store.renew_upload(&again).await.is_err());
    let again = begin(&store, row, "again").await;
    collect(&store).await;
    claim(&store, &again, "aa", "2").await;
    commit(&store, &again).await.unwrap();
    // What is there already stays.
    store.abandon_upload(&row.id, &ours).await.unwrap();
    let found = store.any_snapshot(&row.id).await.unwrap().unwrap();
    assert_eq!(found.object_copy, ObjectCopy::Stored);
}

pub async fn an_organisation_has_its_quota_and_key(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    assert_eq!(store.object_key(&ours).await.unwrap(), None);
    assert_eq!(
        store.keep_object_key(&ours, "first").await.unwrap(),
        "first"
    );
    assert_eq!(
        store.keep_object_key(&ours, "second").await.unwrap(),
        "first"
    );
    let (here, there) = (ready(&store, &ours).await, ready(&store, &theirs).await);
    let (here, there) = (
        begin(&store, &here, "1").await,
        begin(&store, &there, "1").await,
    );
    let wanted = [chunk("aa", "x"), chunk("bb", "x")];
    let refused = store.claim_chunks(&here, &wanted, 1).await.unwrap_err();
    assert!(
        matches!(refused, StoreError::Quota { limit: 1, .. }),
        "{refused}"
    );
    store.claim_chunks(&here, &wanted, 2).await.unwrap();
    put(&store, &here, "aa", 2 << 20).await;
    assert!(
        store
            .claim_chunks(&here, &[chunk("cc", "x")], 2)
            .await
            .is_err()
    );
    // What is there already costs nothing, and the same content of another organisation is another chunk.
    assert!(
        store
            .claim_chunks(&here, &[chunk("aa", "y")], 2)
            .await
            .unwrap()[0]
            .stored
    );
    assert!(
        !store
            .claim_chunks(&there, &[chunk("aa", "y")], 2)
            .await
            .unwrap()[0]
            .stored
    );
}

pub async fn uploads_and_collection_at_once_lose_nothing(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    for round in 0..8 {
        let (old, new) = (ready(&store, &ours).await, ready(&store, &ours).await);
        let one = begin(&store, &old, "1").await;
        claim(&store, &one, "aa", &format!("old{round}")).await;
        put(&store, &one, "aa", 10).await;
        commit(&store, &one).await.unwrap();
        gone(&store, &old).await;
        let two = begin(&store, &new, "2").await;
        let suffix = format!("new{round}");
        let (claimed, condemned) = tokio::join!(claim(&store, &two, "aa", &suffix), async {
            while store.drop_objects(steady(100)).await.unwrap() {}
            store.condemned_objects(steady(101), 1000).await.unwrap()
        });
        let name = format!("aa-{}", claimed.suffix);
        assert!(
            condemned.iter().all(|other| !other.ends_with(&name)),
            "{condemned:?} {name}"
        );
        gone(&store, &new).await;
        let left = collect(&store).await;
        store.objects_deleted(&left).await.unwrap();
    }
}
