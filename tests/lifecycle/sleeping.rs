//! Sandboxes that stand still, in memory or on disk, and go on as if nothing had happened; snapshots
//! with processes in them, and what grows from those.

use std::fs;

use cove_model::{EventKind, SandboxId, SnapshotId, State};
use cove_protocol::message::WriteFile;
use cove_runner_api::{
    CreateRequest, FromSnapshot, ImageOwner, JobState, RollbackRequest, RunnerApi, RunnerError,
    SnapshotRequest, SnapshotView,
};
use cove_tests::engine_host::{World, eventually, output, shell, small_spec};

use crate::PROGRAM;

/// Longer than a capture waits for transfers to end.
const TRANSFER_LIMIT: std::time::Duration = std::time::Duration::from_secs(600);

/// Counts in memory, and appends every count to a file.
const COUNTER: &str = "n=0; while :; do n=$((n+1)); echo $n >> /root/log; sleep 0.01; done";
const CYCLES: u32 = 20;

/// Nothing where memory cannot be captured and the tests opted out of it.
async fn world() -> Option<World> {
    let world = World::start(PROGRAM).await;
    let tiers = world.client().host().await.unwrap().tiers;
    let captures = tiers[0].capabilities.contains(&"memory".to_owned());
    if cove_tests::needs::has("criu", captures) {
        return Some(world);
    }
    world.finish();
    None
}

async fn counting(world: &World) -> SandboxId {
    let id = world.create().await.id;
    world.guest(&id).start(shell(COUNTER)).await.unwrap();
    grows(world, &id).await;
    id
}

async fn count(world: &World, id: &SandboxId) -> u64 {
    let text = output(
        &world.guest(id),
        "tail -n 1 /root/log 2>/dev/null || echo 0",
    )
    .await;
    text.trim().parse().unwrap_or(0)
}

/// Waits until the counter has moved.
async fn grows(world: &World, id: &SandboxId) {
    let before = count(world, id).await;
    eventually("the counter goes on", || async {
        (count(world, id).await > before).then_some(())
    })
    .await;
}

/// Every number once, in order.
async fn is_gapless(world: &World, id: &SandboxId) -> u64 {
    let text = output(&world.guest(id), "cat /root/log").await;
    let numbers: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
    for (at, number) in numbers.iter().enumerate() {
        assert_eq!(*number, at as u64 + 1, "a count was lost or repeated");
    }
    numbers.len() as u64
}

async fn full(world: &World, id: &SandboxId) -> SnapshotView {
    let request = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: id.clone(),
        memory: true,
        unless_unchanged: false,
    };
    world.client().snapshot(request).await.unwrap()
}

async fn fork(world: &World, snapshot: &SnapshotId, memory: bool) -> SandboxId {
    let id = SandboxId::random();
    let request = CreateRequest {
        owner: None,
        id: id.clone(),
        spec: small_spec(),
        from: Some(FromSnapshot {
            snapshot: snapshot.clone(),
            memory,
        }),
    };
    world.client().create(request).await.unwrap();
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn pausing_and_resuming_never_loses_or_repeats_a_count() {
    let Some(world) = world().await else { return };
    let client = world.client();
    let id = counting(&world).await;
    for _ in 0..CYCLES {
        let paused = client.pause(&id).await.unwrap();
        assert_eq!(paused.state, State::Paused);
        let traces = world.traces();
        assert!(
            traces.groups.is_empty() && traces.processes.is_empty(),
            "{traces:#?}"
        );
        let host = client.host().await.unwrap();
        assert_eq!((host.running, host.promised_memory_bytes), (0, 0));
        assert!(!client.sample(&id).await.unwrap().running);
        let resumed = client.resume(&id).await.unwrap();
        assert_eq!(resumed.state, State::Running);
        grows(&world, &id).await;
    }
    assert!(is_gapless(&world, &id).await > u64::from(CYCLES));
    assert!(world.traces().unfinished.is_empty());
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_one_stands_still_through_a_new_engine_and_thaws_for_any_number_of_callers() {
    let Some(mut world) = world().await else {
        return;
    };
    let client = world.client();
    let id = counting(&world).await;
    client.freeze(&id).await.unwrap();
    client.freeze(&id).await.expect("done already");
    assert!(matches!(
        client.connect(&id).await,
        Err(RunnerError::Conflict {
            state: State::Frozen,
            ..
        })
    ));
    world.restart();
    assert_eq!(client.get(&id).await.unwrap().state, State::Frozen);
    assert!(client.sample(&id).await.unwrap().memory_bytes > 0);
    let wakers = (0..20).map(|_| {
        let (client, id) = (client.clone(), id.clone());
        tokio::spawn(async move { client.resume(&id).await.unwrap().state })
    });
    for waker in wakers.collect::<Vec<_>>() {
        assert_eq!(waker.await.unwrap(), State::Running);
    }
    grows(&world, &id).await;
    is_gapless(&world, &id).await;
    // What is frozen can be stopped and deleted like what runs.
    client.freeze(&id).await.unwrap();
    client.stop(&id, 0).await.unwrap();
    client.start(&id).await.unwrap();
    client.freeze(&id).await.unwrap();
    client.delete(&id).await.unwrap();
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_one_outlives_the_engine_and_the_host() {
    let Some(mut world) = world().await else {
        return;
    };
    let client = world.client();
    let id = counting(&world).await;
    client.pause(&id).await.unwrap();
    world.restart();
    assert_eq!(client.get(&id).await.unwrap().state, State::Paused);
    // A reboot, as far as a record can tell.
    world.kill();
    let path = world.setup.data_dir().join(format!("records/{id}.json"));
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["host_boot"] = "another".into();
    fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
    world.launch();
    assert_eq!(client.get(&id).await.unwrap().state, State::Paused);
    let wakers = (0..20).map(|_| {
        let (client, id) = (client.clone(), id.clone());
        tokio::spawn(async move { client.resume(&id).await.unwrap().state })
    });
    for waker in wakers.collect::<Vec<_>>() {
        assert_eq!(waker.await.unwrap(), State::Running);
    }
    grows(&world, &id).await;
    is_gapless(&world, &id).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_does_not_come_back_is_kept_and_the_disk_offered() {
    let Some(world) = world().await else { return };
    let client = world.client();
    let id = counting(&world).await;
    client.pause(&id).await.unwrap();
    let memory = world
        .setup
        .data_dir()
        .join(format!("pool/sandboxes/{id}/mem"));
    let inventory = memory.join("inventory.img");
    let whole = fs::read(&inventory).unwrap();
    fs::write(&inventory, b"nonsense").unwrap();
    client.resume(&id).await.unwrap_err();
    let view = client.get(&id).await.unwrap();
    assert_eq!(view.state, State::Paused);
    assert!(view.reason.unwrap().contains("cannot resume it"));
    let host = client.host().await.unwrap();
    assert_eq!((host.running, host.promised_memory_bytes), (0, 0));
    assert!(world.traces().groups.is_empty());
    // The image is the same as before the failure, and comes back once it is whole.
    fs::write(&inventory, whole).unwrap();
    client.resume(&id).await.unwrap();
    grows(&world, &id).await;
    is_gapless(&world, &id).await;
    client.pause(&id).await.unwrap();
    let stopped = client.stop(&id, 0).await.unwrap();
    assert_eq!(stopped.state, State::Stopped);
    assert!(!memory.exists());
    client.start(&id).await.unwrap();
    is_gapless(&world, &id).await;
    client.pause(&id).await.unwrap();
    client.delete(&id).await.unwrap();
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_are_forked_rolled_back_and_made_part_of_images() {
    let Some(world) = world().await else { return };
    let client = world.client();
    let parent = counting(&world).await;
    let taken = full(&world, &parent).await;
    assert!(taken.memory && taken.memory_bytes > 0 && taken.stopped_us > 0);
    assert_eq!(taken.unfit, None);
    grows(&world, &parent).await;
    let children = [
        fork(&world, &taken.id, true).await,
        fork(&world, &taken.id, true).await,
    ];
    for child in &children {
        grows(&world, child).await;
        is_gapless(&world, child).await;
    }
    let booted = fork(&world, &taken.id, false).await;
    let at_rest = count(&world, &booted).await;
    assert_eq!(
        count(&world, &booted).await,
        at_rest,
        "without memory nothing runs"
    );

    let keep = SnapshotId::random();
    let request = RollbackRequest {
        sandbox: parent.clone(),
        to: taken.id.clone(),
        keep: keep.clone(),
        memory: true,
    };
    let before = count(&world, &parent).await;
    let rolled = client.rollback(request).await.unwrap();
    assert_eq!(rolled.sandbox.state, State::Running);
    assert!(rolled.kept.memory, "what ran is kept with its processes");
    grows(&world, &parent).await;
    is_gapless(&world, &parent).await;
    let undo = RollbackRequest {
        sandbox: parent.clone(),
        to: keep,
        keep: SnapshotId::random(),
        memory: true,
    };
    client.rollback(undo).await.unwrap();
    grows(&world, &parent).await;
    assert!(is_gapless(&world, &parent).await > before);

    let job = client
        .image_from_snapshot(&taken.id, "counting", ImageOwner::Operator)
        .await
        .unwrap();
    let job = world.job_end(&job.id).await;
    assert_eq!(job.state, JobState::Done, "{job:?}");
    for id in children.iter().chain([&booted, &parent]) {
        client.delete(id).await.unwrap();
    }
    client.delete_snapshot(&taken.id).await.unwrap();
    let warm = world
        .create_with(|spec| spec.image = "counting".into())
        .await
        .id;
    grows(&world, &warm).await;
    is_gapless(&world, &warm).await;
    client.delete(&warm).await.unwrap();
    client.remove_image("counting").await.unwrap();
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_a_paused_one_has_its_processes_for_nothing() {
    let Some(world) = world().await else { return };
    let client = world.client();
    let id = counting(&world).await;
    client.pause(&id).await.unwrap();
    let request = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: id.clone(),
        memory: false,
        unless_unchanged: false,
    };
    let taken = client.snapshot(request).await.unwrap();
    assert!(taken.memory);
    assert_eq!(taken.stopped_us, 0);
    let child = fork(&world, &taken.id, true).await;
    grows(&world, &child).await;
    is_gapless(&world, &child).await;
    client.resume(&id).await.unwrap();
    grows(&world, &id).await;
    is_gapless(&world, &id).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_captured_goes_on_and_says_so() {
    let Some(world) = world().await else { return };
    let client = world.client();
    let id = counting(&world).await;
    // A file on its way in, whose other end is beyond what can be captured.
    let file = WriteFile {
        path: "/root/coming".into(),
        ..WriteFile::default()
    };
    let patient = world.guest(&id).within(TRANSFER_LIMIT);
    let mut upload = patient.write_file(file).await.unwrap();
    upload.write("half, ".into()).await.unwrap();
    let cursor = world.cursor().await;
    let refused = client.pause(&id).await.unwrap_err();
    assert!(
        matches!(refused, RunnerError::Uncapturable { .. }),
        "{refused:?}"
    );
    assert_eq!(client.get(&id).await.unwrap().state, State::Running);
    world
        .event(cursor, "the capture failed", |event| {
            matches!(event.kind, EventKind::CaptureFailed { .. })
        })
        .await;
    grows(&world, &id).await;
    is_gapless(&world, &id).await;
    upload.write("and the rest".into()).await.unwrap();
    upload.finish().await.unwrap();
    assert_eq!(
        output(&world.guest(&id), "cat /root/coming").await,
        "half, and the rest"
    );
    client.pause(&id).await.unwrap();
    world.finish();
}
