//! Snapshots that outlive their host's copy, over a directory that stands for a bucket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cove_control::{
    Bucket, BucketConfig, CreateSandbox, ErrorCode, FromSnapshot, HostKeys, ObjectCopy,
    ObjectsConfig, Principal, SnapshotRecord, TakeSnapshot,
};
use cove_model::SandboxSpec;
use tempfile::TempDir;

use crate::support::{Plane, quick};

pub fn place(folder: &Path) -> ObjectsConfig {
    let bucket = folder.join("bucket");
    std::fs::create_dir_all(&bucket).unwrap();
    let config = BucketConfig::new(format!("file://{}", bucket.display()));
    let bucket = Bucket::open(&config).unwrap();
    let key = HostKeys::load_or_make(&folder.join("fleet.key")).unwrap();
    ObjectsConfig {
        every: Duration::from_millis(50),
        ..ObjectsConfig::new(bucket, std::sync::Arc::new(key))
    }
}

async fn plane(folder: &TempDir, change: impl FnOnce(&mut ObjectsConfig)) -> Plane {
    let mut objects = place(folder.path());
    change(&mut objects);
    let mut config = quick();
    config.objects = Some(objects);
    Plane::with(config).await
}

fn durable(name: &str) -> TakeSnapshot {
    TakeSnapshot {
        name: Some(name.into()),
        durable: true,
        ..TakeSnapshot::default()
    }
}

async fn sandbox(plane: &Plane, whose: &Principal) -> String {
    let request = CreateSandbox {
        spec: SandboxSpec::default(),
        from: None,
        idempotency_key: None,
        asked: None,
    };
    let created = plane.control.create_sandbox(whose, request).await.unwrap();
    created.sandbox.id.to_string()
}

async fn take(plane: &Plane, whose: &Principal, of: &str, name: &str) -> SnapshotRecord {
    let taken = plane.control.take_snapshot(whose, of, durable(name)).await;
    taken.unwrap().snapshot
}

async fn begin_from(
    plane: &Plane,
    whose: &Principal,
    snapshot: &SnapshotRecord,
) -> Result<(), cove_control::ControlError> {
    let request = CreateSandbox {
        spec: SandboxSpec::default(),
        from: Some(FromSnapshot {
            snapshot: snapshot.id.clone(),
            memory: false,
        }),
        idempotency_key: None,
        asked: None,
    };
    plane.control.create_sandbox(whose, request).await.map(drop)
}

/// Every file of the bucket.
fn objects(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![folder.join("bucket")];
    while let Some(directory) = next.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => next.push(path),
                false => found.push(path),
            }
        }
    }
    found.sort();
    found
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + crate::support::DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_durable_snapshot_outlives_the_copy_of_its_host() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut plane = plane(&folder, |_| ()).await;
    let of = sandbox(&plane, &plane.root.clone()).await;
    let root = plane.root.clone();
    let taken = take(&plane, &root, &of, "kept").await;
    assert_eq!(taken.object_copy, ObjectCopy::Stored);
    assert!(!objects(folder.path()).is_empty());
    let plain = plane
        .control
        .take_snapshot(&root, &of, TakeSnapshot::default());
    let plain = plain.await.unwrap().snapshot;
    assert_eq!(plain.object_copy, ObjectCopy::None);
    plane.runner.lose_snapshot(&taken.id);
    plane.runner.lose_snapshot(&plain.id);
    plane.go();
    until("the host's loss is noticed", async || {
        let row = plane.store.any_snapshot(&taken.id).await.unwrap().unwrap();
        (!row.on_host).then_some(())
    })
    .await;
    // One that is nowhere else is gone, as before.
    until("the other one is buried", async || {
        let row = plane.store.any_snapshot(&plain.id).await.unwrap().unwrap();
        row.deleted_at
    })
    .await;
    begin_from(&plane, &root, &taken).await.unwrap();
    let row = plane.store.any_snapshot(&taken.id).await.unwrap().unwrap();
    assert!(row.on_host);
    assert!(plane.runner.snapshot_ids().contains(&taken.id));
    plane.halt().await;
}

#[tokio::test]
async fn copies_beyond_the_room_of_hosts_are_evicted_and_come_back_when_used() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut plane = plane(&folder, |objects| objects.local_mb = Some(0)).await;
    let root = plane.root.clone();
    let of = sandbox(&plane, &root).await;
    let taken = take(&plane, &root, &of, "kept").await;
    plane.go();
    until("it is evicted", async || {
        (!plane.runner.snapshot_ids().contains(&taken.id)).then_some(())
    })
    .await;
    begin_from(&plane, &root, &taken).await.unwrap();
    plane.halt().await;
}

#[tokio::test]
async fn a_slow_reader_of_an_export_keeps_the_copy_and_holds_up_nobody_else() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut plane = plane(&folder, |objects| objects.local_mb = Some(0)).await;
    let root = plane.root.clone();
    let of = sandbox(&plane, &root).await;
    let slow = take(&plane, &root, &of, "slow").await;
    let other = take(&plane, &root, &of, "other").await;
    let reading = plane.control.export_snapshot(&root, "slow").await.unwrap();
    plane.go();
    until("the other one is evicted and costs nothing", async || {
        let row = plane.store.any_snapshot(&other.id).await.unwrap().unwrap();
        (!row.on_host && row.held_disk_mb == 0).then_some(())
    })
    .await;
    assert!(!plane.runner.snapshot_ids().contains(&other.id));
    assert!(plane.runner.snapshot_ids().contains(&slow.id));
    begin_from(&plane, &root, &other).await.unwrap();
    drop(reading);
    until("it goes with its last reader", async || {
        (!plane.runner.snapshot_ids().contains(&slow.id)).then_some(())
    })
    .await;
    plane.halt().await;
}

#[tokio::test]
async fn what_nobody_uses_is_deleted_from_the_bucket_after_its_wait() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut plane = plane(&folder, |objects| {
        objects.condemned_wait = Duration::from_secs(600);
    })
    .await;
    let root = plane.root.clone();
    let of = sandbox(&plane, &root).await;
    let taken = take(&plane, &root, &of, "kept").await;
    let before = objects(folder.path());
    plane.go();
    plane
        .control
        .delete_snapshot(&root, taken.id.as_str())
        .await
        .unwrap();
    until("it is condemned", async || {
        let totals = plane.store.object_totals().await.unwrap();
        (totals.condemned as usize == before.len()).then_some(())
    })
    .await;
    assert_eq!(objects(folder.path()), before);
    plane.clock.advance(Duration::from_secs(700));
    until("the bucket is empty", async || {
        objects(folder.path()).is_empty().then_some(())
    })
    .await;
    // Their rows go a moment after them.
    until("nothing is condemned", async || {
        let totals = plane.store.object_totals().await.unwrap();
        (totals.condemned == 0).then_some(())
    })
    .await;
    plane.halt().await;
}

#[tokio::test]
async fn an_upload_that_a_crash_cut_off_is_resumed() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut plane = plane(&folder, |_| ()).await;
    let root = plane.root.clone();
    let of = sandbox(&plane, &root).await;
    let bucket = folder.path().join("bucket");
    let away = folder.path().join("away");
    std::fs::rename(&bucket, &away).unwrap();
    std::fs::write(&bucket, "not a directory").unwrap();
    // With a key it stays, and is what a repeat asks for.
    let keyed = TakeSnapshot {
        idempotency_key: Some("once".into()),
        ..durable("kept")
    };
    let refused = plane.control.take_snapshot(&root, &of, keyed.clone()).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::Unavailable);
    std::fs::remove_file(&bucket).unwrap();
    std::fs::rename(&away, &bucket).unwrap();
    plane.crash().await;
    plane.go();
    let root = plane.root.clone();
    until("it is uploaded", async || {
        let row = plane.control.get_snapshot(&root, "kept").await.unwrap();
        (row.object_copy == ObjectCopy::Stored).then_some(())
    })
    .await;
    let again = plane
        .control
        .take_snapshot(&root, &of, keyed)
        .await
        .unwrap();
    assert!(again.replayed && again.snapshot.object_copy == ObjectCopy::Stored);
    plane.halt().await;
}

#[tokio::test]
async fn without_its_place_a_durable_snapshot_is_refused_and_nothing_stays() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let none = Plane::new().await;
    let of = sandbox(&none, &none.root).await;
    let refused = none
        .control
        .take_snapshot(&none.root, &of, durable("a"))
        .await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::Unsupported);
    assert!(none.runner.snapshot_ids().is_empty());

    let plane = plane(&folder, |_| ()).await;
    let of = sandbox(&plane, &plane.root).await;
    std::fs::remove_dir_all(folder.path().join("bucket")).unwrap();
    std::fs::write(folder.path().join("bucket"), "not a directory").unwrap();
    let refused = plane
        .control
        .take_snapshot(&plane.root, &of, durable("a"))
        .await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable);
    assert!(
        refused.message.starts_with("no snapshot was taken"),
        "{refused}"
    );
    assert!(plane.runner.snapshot_ids().is_empty());
    let found = plane.control.get_snapshot(&plane.root, "a").await;
    assert_eq!(found.unwrap_err().code, ErrorCode::NotFound);
    let checked = plane.control.check_objects().await.unwrap();
    assert!(checked.is_err());
}

#[tokio::test]
async fn organisations_share_nothing_and_have_their_quota() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let plane = plane(&folder, |objects| objects.quota_mb = 1).await;
    let (ours, theirs) = (
        plane.tenant("ours", None).await,
        plane.tenant("theirs", None).await,
    );
    for whose in [&ours, &theirs] {
        let of = sandbox(&plane, whose).await;
        let taken = take(&plane, whose, &of, "kept").await;
        plane.runner.lose_snapshot(&taken.id);
    }
    let mine = plane.control.get_snapshot(&ours, "kept").await.unwrap();
    let other = plane.control.get_snapshot(&theirs, mine.id.as_str()).await;
    assert_eq!(other.unwrap_err().code, ErrorCode::NotFound);
    // What the bucket's owner puts in another one's place is refused, and changes nothing.
    let reconciled = plane.store.any_snapshot(&mine.id).await.unwrap().unwrap();
    assert!(reconciled.on_host);
    plane.control.prepare().await.unwrap();
    let of = |org: &str, kind: &str| -> Vec<PathBuf> {
        let all = objects(folder.path()).into_iter();
        all.filter(|path| {
            let text = path.display().to_string();
            text.contains(org) && text.contains(kind)
        })
        .collect()
    };
    let (here, there) = (
        of(ours.org.as_str(), "chunks"),
        of(theirs.org.as_str(), "chunks"),
    );
    let kept = std::fs::read(&here[0]).unwrap();
    std::fs::copy(&there[0], &here[0]).unwrap();
    let refused = begin_from(&plane, &ours, &mine).await.unwrap_err();
    assert!(refused.message.contains("damaged"), "{refused}");
    assert!(!plane.runner.snapshot_ids().contains(&mine.id));
    std::fs::write(&here[0], &kept[..kept.len() / 2]).unwrap();
    begin_from(&plane, &ours, &mine).await.unwrap_err();
    std::fs::remove_file(&here[0]).unwrap();
    begin_from(&plane, &ours, &mine).await.unwrap_err();
    std::fs::write(&here[0], &kept).unwrap();
    begin_from(&plane, &ours, &mine).await.unwrap();
}

#[tokio::test]
async fn another_fleet_key_opens_nothing_and_says_so() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut plane = plane(&folder, |_| ()).await;
    let root = plane.root.clone();
    let of = sandbox(&plane, &root).await;
    let taken = take(&plane, &root, &of, "kept").await;
    plane.runner.lose_snapshot(&taken.id);
    let other = HostKeys::load_or_make(&folder.path().join("other.key")).unwrap();
    let mut objects = place(folder.path());
    objects.fleet_key = std::sync::Arc::new(other);
    plane
        .crash_with(|config| config.objects = Some(objects))
        .await;
    let root = plane.root.clone();
    let refused = begin_from(&plane, &root, &taken).await.unwrap_err();
    assert!(refused.message.contains("host key"), "{refused}");
    let objects = place(folder.path());
    plane
        .crash_with(|config| config.objects = Some(objects))
        .await;
    let root = plane.root.clone();
    begin_from(&plane, &root, &taken).await.unwrap();
}

/// With a key the snapshot stays; the server does not go on trying what cannot succeed, and a repeat tries it again.
#[tokio::test]
async fn what_the_quota_refuses_is_not_tried_for_ever() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut plane = plane(&folder, |objects| objects.quota_mb = 0).await;
    let root = plane.root.clone();
    let of = sandbox(&plane, &root).await;
    let keyed = TakeSnapshot {
        idempotency_key: Some("once".into()),
        ..durable("kept")
    };
    for _ in 0..2 {
        let refused = plane.control.take_snapshot(&root, &of, keyed.clone()).await;
        assert_eq!(refused.unwrap_err().code, ErrorCode::QuotaExceeded);
        let row = plane.control.get_snapshot(&root, "kept").await.unwrap();
        assert_eq!(row.object_copy, ObjectCopy::None);
    }
    let objects = place(folder.path());
    plane
        .crash_with(|config| config.objects = Some(objects))
        .await;
    let root = plane.root.clone();
    let again = plane.control.take_snapshot(&root, &of, keyed).await;
    let again = again.unwrap();
    assert!(again.replayed && again.snapshot.object_copy == ObjectCopy::Stored);
}

#[tokio::test]
async fn deleting_a_snapshot_ends_its_upload() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    // So slow that no upload ends.
    let plane = plane(&folder, |objects| objects.upload_bytes_per_second = 1).await;
    let root = plane.root.clone();
    let of = sandbox(&plane, &root).await;
    let taking = tokio::spawn({
        let (control, root, of) = (plane.control.clone(), root.clone(), of.clone());
        async move { control.take_snapshot(&root, &of, durable("slow")).await }
    });
    until("it is being uploaded", async || {
        let totals = plane.store.object_totals().await.unwrap();
        (totals.uploading == 1).then_some(())
    })
    .await;
    let deleted = plane.control.delete_snapshot(&root, "slow").await;
    match taking.await.unwrap() {
        Err(refused) => assert_eq!(refused.code, ErrorCode::Conflict),
        Ok(_) => panic!("it was uploaded"),
    }
    deleted.unwrap();
    assert!(plane.runner.snapshot_ids().is_empty());
}
