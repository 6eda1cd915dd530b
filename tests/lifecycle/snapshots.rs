//! Snapshots of disks: what is in them, what grows from them, what keeps them.

use cove_model::{EventKind, ResourcesPatch, SandboxId, SnapshotId, State};
use cove_runner_api::{
    CreateRequest, FromSnapshot, RollbackRequest, RunnerApi, RunnerError, SandboxView,
    SnapshotRequest, SnapshotView,
};
use cove_tests::engine_host::{World, output, small_spec, succeed};

use crate::PROGRAM;

async fn snapshot(world: &World, sandbox: &SandboxId) -> SnapshotView {
    try_snapshot(world, sandbox, false).await.unwrap()
}

async fn try_snapshot(
    world: &World,
    sandbox: &SandboxId,
    unless_unchanged: bool,
) -> Result<SnapshotView, RunnerError> {
    let request = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: sandbox.clone(),
        memory: false,
        unless_unchanged,
    };
    world.client().snapshot(request).await
}

async fn fork(world: &World, snapshot: &SnapshotId) -> SandboxView {
    let request = CreateRequest {
        owner: None,
        id: SandboxId::random(),
        spec: small_spec(),
        from: Some(FromSnapshot {
            snapshot: snapshot.clone(),
            memory: false,
        }),
    };
    world.client().create(request).await.unwrap()
}

fn back_to(sandbox: &SandboxId, to: &SnapshotId) -> RollbackRequest {
    RollbackRequest {
        sandbox: sandbox.clone(),
        to: to.clone(),
        keep: SnapshotId::random(),
        memory: false,
    }
}

async fn read(world: &World, id: &SandboxId) -> String {
    output(&world.guest(id), "cat /root/file").await
}

async fn write(world: &World, id: &SandboxId, text: &str) {
    succeed(&world.guest(id), &format!("echo {text} > /root/file")).await;
}

/// The whole story of disk snapshots on one pool.
async fn travel(world: &World) {
    let client = world.client();
    let parent = world.create().await.id;
    write(world, &parent, "one").await;
    succeed(&world.guest(&parent), "rm /bin/true; mkdir /root/d").await;
    let first = snapshot(world, &parent).await;
    assert_eq!((first.parent.as_ref(), first.memory), (None, false));
    write(world, &parent, "two").await;
    let second = snapshot(world, &parent).await;
    assert_eq!(second.parent.as_ref(), Some(&first.id));
    write(world, &parent, "three").await;

    let child = fork(world, &first.id).await;
    assert_eq!(child.state, State::Running);
    assert_eq!(read(world, &child.id).await, "one");
    succeed(
        &world.guest(&child.id),
        "test ! -e /bin/true && test -d /root/d",
    )
    .await;
    write(world, &child.id, "child").await;
    assert_eq!(read(world, &parent).await, "three");

    let undo = back_to(&parent, &first.id);
    let rolled = client.rollback(undo.clone()).await.unwrap();
    assert_eq!(rolled.sandbox.state, State::Running);
    assert_eq!(rolled.sandbox.id, parent);
    assert_eq!(rolled.kept.id, undo.keep);
    assert_eq!(rolled.kept.parent.as_ref(), Some(&second.id));
    assert_eq!(read(world, &parent).await, "one");
    write(world, &parent, "four").await;
    client.rollback(back_to(&parent, &undo.keep)).await.unwrap();
    assert_eq!(
        read(world, &parent).await,
        "three",
        "a rollback can be undone"
    );

    // What grew from a snapshot lives on without it, and so does what it grew from.
    client.delete_snapshot(&first.id).await.unwrap();
    client.delete_snapshot(&first.id).await.unwrap();
    assert!(matches!(
        client.get_snapshot(&first.id).await,
        Err(RunnerError::NotFound { .. })
    ));
    assert_eq!(read(world, &child.id).await, "child");
    client.delete(&parent).await.unwrap();
    let orphan = fork(world, &second.id).await;
    assert_eq!(read(world, &orphan.id).await, "two");
    client.delete(&orphan.id).await.unwrap();
    client.delete(&child.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn states_are_kept_forked_and_gone_back_to() {
    let world = World::start(PROGRAM).await;
    travel(&world).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_holds_for_copies_on_plain_directories() {
    let world = World::with(PROGRAM, |setup| setup.directory_backend = true).await;
    travel(&world).await;
    world.finish();
}

async fn unchanged(world: &World) {
    let id = world.create().await.id;
    write(world, &id, "x").await;
    let first = try_snapshot(world, &id, true).await.unwrap();
    for _ in 0..2 {
        let again = try_snapshot(world, &id, true).await;
        assert!(matches!(again, Err(RunnerError::Unchanged)), "{again:?}");
    }
    // Reading is no change, writing is, however little.
    read(world, &id).await;
    let again = try_snapshot(world, &id, true).await;
    assert!(matches!(again, Err(RunnerError::Unchanged)), "{again:?}");
    succeed(&world.guest(&id), "touch /root/empty").await;
    let second = try_snapshot(world, &id, true).await.unwrap();
    assert_eq!(second.parent, Some(first.id));
    // Without the snapshot there is nothing that it would be the same as.
    world.client().delete_snapshot(&second.id).await.unwrap();
    let third = try_snapshot(world, &id, true).await.unwrap();
    // A stop keeps the output of commands.
    world.client().stop(&id, 0).await.unwrap();
    let kept = try_snapshot(world, &id, true).await.unwrap();
    assert_eq!(kept.parent, Some(third.id));
    let again = try_snapshot(world, &id, true).await;
    assert!(matches!(again, Err(RunnerError::Unchanged)), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_would_change_nothing_can_be_skipped() {
    let world = World::start(PROGRAM).await;
    unchanged(&world).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_directories_know_too_whether_something_changed() {
    let world = World::with(PROGRAM, |setup| setup.directory_backend = true).await;
    unchanged(&world).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_stay_those_in_force_now_and_stopped_ones_stay_stopped() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    write(&world, &id, "old").await;
    let old = snapshot(&world, &id).await;
    write(&world, &id, "new").await;
    let patch = ResourcesPatch {
        pids: Some(33),
        disk_mb: Some(300),
        ..ResourcesPatch::default()
    };
    client.resize(&id, patch).await.unwrap();
    client.stop(&id, 0).await.unwrap();
    let rolled = client.rollback(back_to(&id, &old.id)).await.unwrap();
    assert_eq!(rolled.sandbox.state, State::Stopped);
    assert_eq!(rolled.sandbox.limits.pids, 33);
    let started = client.start(&id).await.unwrap();
    assert_eq!(started.limits.disk_mb, 300);
    assert_eq!(
        client.sample(&id).await.unwrap().disk_limit_bytes,
        300 << 20
    );
    assert_eq!(read(&world, &id).await, "old");
    // The one kept on the way was of a stopped sandbox, and starts as well.
    let kept = fork(&world, &rolled.kept.id).await;
    assert_eq!(read(&world, &kept.id).await, "new");
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_requests_change_nothing() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    let taken = snapshot(&world, &id).await;
    let unknown = SnapshotId::random();
    let missing = |error: RunnerError| {
        assert!(matches!(error, RunnerError::NotFound { .. }), "{error:?}");
    };
    missing(client.rollback(back_to(&id, &unknown)).await.unwrap_err());
    missing(
        client
            .rollback(back_to(&SandboxId::random(), &taken.id))
            .await
            .unwrap_err(),
    );
    let mut request = back_to(&id, &taken.id);
    request.memory = true;
    let refused = client.rollback(request).await.unwrap_err();
    assert!(
        matches!(refused, RunnerError::Invalid { .. }),
        "{refused:?}"
    );
    let mut request = back_to(&id, &taken.id);
    request.keep = taken.id.clone();
    let refused = client.rollback(request).await.unwrap_err();
    assert!(
        matches!(refused, RunnerError::AlreadyExists { .. }),
        "{refused:?}"
    );
    let again = SnapshotRequest {
        id: taken.id.clone(),
        sandbox: id.clone(),
        memory: false,
        unless_unchanged: false,
    };
    let refused = client.snapshot(again).await.unwrap_err();
    assert!(
        matches!(&refused, RunnerError::AlreadyExists { what, .. } if what == "snapshot"),
        "{refused:?}"
    );
    let refused = client
        .create(CreateRequest {
            owner: None,
            id: SandboxId::random(),
            spec: small_spec(),
            from: Some(FromSnapshot {
                snapshot: taken.id.clone(),
                memory: true,
            }),
        })
        .await
        .unwrap_err();
    assert!(
        matches!(refused, RunnerError::Invalid { .. }),
        "{refused:?}"
    );
    client.stop(&id, 0).await.unwrap();
    let refused = client
        .snapshot(SnapshotRequest {
            id: SnapshotId::random(),
            sandbox: id.clone(),
            memory: true,
            unless_unchanged: false,
        })
        .await
        .unwrap_err();
    assert!(
        matches!(refused, RunnerError::Conflict { .. }),
        "{refused:?}"
    );
    assert_eq!(client.snapshots().await.unwrap().len(), 1);
    assert_eq!(client.list().await.unwrap().len(), 1);
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_stays_while_a_snapshot_needs_it() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    let taken = snapshot(&world, &id).await;
    client.delete(&id).await.unwrap();
    let refused = client.remove_image("busybox").await.unwrap_err();
    assert!(
        matches!(&refused, RunnerError::InUse { message } if message.contains(taken.id.as_str())),
        "{refused:?}"
    );
    client.delete_snapshot(&taken.id).await.unwrap();
    client.remove_image("busybox").await.unwrap();
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn exclusive_bytes_are_what_a_delete_would_free() {
    const MIB: u64 = 1 << 20;
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    let fill = "dd if=/dev/urandom of=/root/big bs=1M count=20 2>/dev/null; sync";
    succeed(&world.guest(&id), fill).await;
    let taken = snapshot(&world, &id).await;
    cove_tests::engine_host::eventually("the sandbox holds it as well", || async {
        let view = client.get_snapshot(&taken.id).await.unwrap();
        (view.exclusive_bytes < MIB && view.shared_bytes >= 20 * MIB).then_some(())
    })
    .await;
    // Overwritten by its owner, the old content is held by the snapshot alone.
    succeed(&world.guest(&id), fill).await;
    world.client().delete(&id).await.unwrap();
    let grown = fork(&world, &taken.id).await;
    client.delete(&grown.id).await.unwrap();
    cove_tests::engine_host::eventually("the snapshot is the only holder", || async {
        let view = client.get_snapshot(&taken.id).await.unwrap();
        (view.exclusive_bytes >= 20 * MIB && view.shared_bytes < MIB).then_some(())
    })
    .await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_forks_at_once_and_fifty_one_after_the_other() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let parent = world.create().await.id;
    write(&world, &parent, "parent").await;
    let taken = snapshot(&world, &parent).await;
    let forks = (0..100).map(|_| {
        let (client, snapshot) = (client.clone(), taken.id.clone());
        tokio::spawn(async move {
            let request = CreateRequest {
                owner: None,
                id: SandboxId::random(),
                spec: small_spec(),
                from: Some(FromSnapshot {
                    snapshot,
                    memory: false,
                }),
            };
            client.create(request).await.unwrap().id
        })
    });
    let mut children = Vec::new();
    for fork in forks.collect::<Vec<_>>() {
        children.push(fork.await.unwrap());
    }
    for child in &children {
        assert_eq!(read(&world, child).await, "parent");
        client.delete(child).await.unwrap();
    }
    // Forks of forks: every one is as flat as the first.
    let mut last = parent;
    for generation in 0..50 {
        write(&world, &last, &format!("generation {generation}")).await;
        let taken = snapshot(&world, &last).await;
        let next = fork(&world, &taken.id).await.id;
        assert_eq!(
            read(&world, &next).await,
            format!("generation {generation}")
        );
        client.delete(&last).await.unwrap();
        client.delete_snapshot(&taken.id).await.unwrap();
        last = next;
    }
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_of_snapshots_and_rollbacks() {
    let world = World::start(PROGRAM).await;
    let id = world.create().await.id;
    let cursor = world.cursor().await;
    let taken = snapshot(&world, &id).await;
    world
        .event(cursor, "a snapshot was taken", |event| {
            event.kind
                == EventKind::Snapshotted {
                    snapshot: taken.id.clone(),
                    memory: false,
                }
        })
        .await;
    let request = back_to(&id, &taken.id);
    world.client().rollback(request.clone()).await.unwrap();
    world
        .event(cursor, "it was rolled back", |event| {
            event.kind
                == EventKind::RolledBack {
                    to: taken.id.clone(),
                    kept: request.keep.clone(),
                }
        })
        .await;
    world.finish();
}
