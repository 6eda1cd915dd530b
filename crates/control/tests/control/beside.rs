//! Several control processes on one database: none undoes or repeats what another one that lives is doing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cove_control::{
    BuildRecord, Control, CreateBuild, ErrorCode, ObjectCopy, Principal, TakeSnapshot,
};
use cove_model::{BuildId, BuildState, EventKind, State};
use tempfile::TempDir;

use crate::durable;
use crate::support::{Plane, quick, wait};

/// Work of a process that is silent for six of these is taken over. Long enough for a disk that hangs between two
/// beats of the other process.
const BEAT: Duration = Duration::from_secs(2);
/// How often the other process beats, and how often it does so: longer than it may be silent.
const BEATS_EVERY: Duration = Duration::from_millis(200);
const BEATS: u32 = 75;

async fn plane(folder: &TempDir) -> Plane {
    let mut config = quick();
    config.objects = Some(durable::place(folder.path()));
    config.work_beat_every = BEAT;
    Plane::with(config).await
}

/// Another process at `id`, for so many beats; `holds` is looked at after each.
async fn beat(plane: &Plane, id: &str, holds: impl AsyncFn()) {
    for _ in 0..BEATS {
        plane.store.beat_work(id, "theirs").await.unwrap();
        tokio::time::sleep(BEATS_EVERY).await;
        holds().await;
    }
}

#[tokio::test]
async fn an_upload_of_another_process_is_left_alone_until_it_is_silent() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut plane = plane(&folder).await;
    let root = plane.root.clone();
    plane.sandbox("agent").await;
    let (bucket, away) = (folder.path().join("bucket"), folder.path().join("away"));
    std::fs::rename(&bucket, &away).unwrap();
    std::fs::write(&bucket, "not a directory").unwrap();
    let asked = TakeSnapshot {
        name: Some("kept".into()),
        durable: true,
        idempotency_key: Some("once".into()),
        ..TakeSnapshot::default()
    };
    let refused = plane
        .control
        .take_snapshot(&root, "agent", asked.clone())
        .await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::Unavailable);
    std::fs::remove_file(&bucket).unwrap();
    std::fs::rename(&away, &bucket).unwrap();
    let id = plane.control.get_snapshot(&root, "kept").await.unwrap().id;
    plane
        .store
        .take_work(id.as_str(), "another", "theirs")
        .await
        .unwrap();
    plane.crash().await;
    plane.go();
    let copy = async |control: &Control, root: &Principal| {
        control
            .get_snapshot(root, "kept")
            .await
            .unwrap()
            .object_copy
    };
    let root = plane.root.clone();
    beat(&plane, id.as_str(), async || {
        assert_eq!(copy(&plane.control, &root).await, ObjectCopy::Uploading);
    })
    .await;
    // Neither does a caller here who waits for it begin a second upload; it gets the one that there will be.
    let (control, principal) = (plane.control.clone(), root.clone());
    let waits =
        tokio::spawn(async move { control.take_snapshot(&principal, "agent", asked).await });
    beat(&plane, id.as_str(), async || {
        assert!(!waits.is_finished());
        assert_eq!(copy(&plane.control, &root).await, ObjectCopy::Uploading);
    })
    .await;
    // It is silent from here on.
    let taken = waits.await.unwrap().unwrap();
    assert!(taken.replayed && taken.snapshot.object_copy == ObjectCopy::Stored);
    assert_eq!(plane.store.work(id.as_str()).await.unwrap(), None);
    plane.halt().await;
}

fn request() -> CreateBuild {
    CreateBuild {
        name: "tools".into(),
        tags: Vec::new(),
        dockerfile: "FROM scratch\n".into(),
        ignore: String::new(),
        args: BTreeMap::new(),
        target: None,
        network: cove_model::NetworkPolicy::default(),
        no_cache: false,
        pull: false,
        start: None,
        over: Arc::new(Ok),
    }
}

#[tokio::test]
async fn a_build_of_another_process_goes_on_until_it_is_silent() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut plane = plane(&folder).await;
    let root = plane.root.clone();
    let record = BuildRecord {
        id: BuildId::random(),
        org: root.org.clone(),
        name: "tools".into(),
        state: BuildState::Running,
        error: None,
        template: None,
        steps: 0,
        cached: 0,
        created_at: time::OffsetDateTime::now_utc(),
        finished_at: None,
    };
    let id = record.id.to_string();
    plane
        .store
        .take_work(&id, "another", "theirs")
        .await
        .unwrap();
    plane.store.put_build(&record, 10).await.unwrap();
    // This process starts while the other one builds.
    plane.go();
    let state = async || plane.control.get_build(&root, &id).await.unwrap().state;
    beat(&plane, &id, async || {
        assert_eq!(state().await, BuildState::Running)
    })
    .await;
    wait(|| async { (state().await == BuildState::Failed).then_some(()) }).await;
    // Its row goes after the end is written.
    wait(|| async { plane.store.work(&id).await.unwrap().is_none().then_some(()) }).await;
    plane.halt().await;
}

#[tokio::test]
async fn a_process_that_was_hung_gives_up_a_build_that_another_one_has_ended() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let plane = plane(&folder).await;
    let root = plane.root.clone();
    let build = plane.control.create_build(&root, request()).await.unwrap();
    let id = build.id.to_string();
    plane
        .store
        .take_work(&id, "another", "theirs")
        .await
        .unwrap();
    wait(|| async {
        let build = plane.control.get_build(&root, &id).await.unwrap();
        (build.state == BuildState::Cancelled).then_some(())
    })
    .await;
    let left = plane.store.work(&id).await.unwrap();
    assert_eq!(left.unwrap().owner, "another", "what is another's stays");
}

#[tokio::test]
async fn two_processes_that_read_one_host_keep_each_event_once() {
    let plane = Plane::new().await;
    let other = plane.beside().await;
    let root = plane.root.clone();
    for round in 1..=20_usize {
        let name = format!("agent-{round}");
        plane.sandbox(&name).await;
        let (one, two) = tokio::join!(
            plane.control.list_events(&root, None, 0, 1000),
            other.list_events(&root, None, 0, 1000),
        );
        one.unwrap();
        two.unwrap();
        let all = plane
            .control
            .list_events(&root, None, 0, 1000)
            .await
            .unwrap();
        let count = |wanted: State| {
            let is_wanted = |kind: &EventKind| matches!(kind, EventKind::State { state, .. } if *state == wanted);
            all.iter().filter(|event| is_wanted(&event.kind)).count()
        };
        assert_eq!(
            (count(State::Creating), count(State::Running)),
            (round, round)
        );
        let mut numbers: Vec<_> = all.iter().map(|event| event.sequence).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), all.len());
    }
}
