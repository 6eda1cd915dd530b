//! What copies come with counts against their limits, however long the chain of copies is.

use cove_model::{ResourcesPatch, SandboxId, SnapshotId};
use cove_protocol::client::ExecResult;
use cove_runner::{
    CreateRequest, FromSnapshot, RollbackRequest, RunnerApi, RunnerError, SandboxView,
    SnapshotRequest,
};
use cove_tests::engine_host::{World, eventually, exec, output, small_spec, succeed};

use crate::PROGRAM;

const LIMIT_MB: u64 = 128;

async fn create(world: &World, from: Option<&SnapshotId>, disk_mb: u64) -> SandboxView {
    try_create(world, from, disk_mb).await.unwrap()
}

async fn try_create(
    world: &World,
    from: Option<&SnapshotId>,
    disk_mb: u64,
) -> Result<SandboxView, RunnerError> {
    let mut spec = small_spec();
    spec.resources.disk_mb = disk_mb;
    let request = CreateRequest {
        id: SandboxId::random(),
        spec,
        from: from.map(|snapshot| FromSnapshot {
            snapshot: snapshot.clone(),
            memory: false,
        }),
    };
    world.client().create(request).await
}

async fn snapshot(world: &World, sandbox: &SandboxId) -> SnapshotId {
    let request = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: sandbox.clone(),
        memory: false,
        unless_unchanged: false,
    };
    world.client().snapshot(request).await.unwrap().id
}

async fn fill(world: &World, id: &SandboxId, file: &str, mb: u64) -> ExecResult {
    let command = format!("dd if=/dev/urandom of=/root/{file} bs=1M count={mb} && sync");
    exec(&world.guest(id), &command).await
}

/// What was deleted a moment before may still be charged.
async fn fits(world: &World, id: &SandboxId, file: &str, mb: u64) {
    eventually("there is room for it", || async {
        let filled = fill(world, id, file, mb).await;
        (filled.exit.code == 0).then_some(())
    })
    .await;
}

async fn is_full(world: &World, id: &SandboxId, mb: u64) {
    let filled = fill(world, id, "too-much", mb).await;
    let said = String::from_utf8_lossy(&filled.stderr).into_owned();
    assert!(
        filled.exit.code != 0 && said.contains("uota exceeded"),
        "{said}"
    );
    succeed(&world.guest(id), "rm -f /root/too-much; sync").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_copy_inherits_counts_against_its_limit() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let parent = create(&world, None, LIMIT_MB).await.id;
    fits(&world, &parent, "a", 60).await;
    let taken = snapshot(&world, &parent).await;

    // A chain of copies never holds more than one of them may.
    let child = create(&world, Some(&taken), LIMIT_MB).await.id;
    is_full(&world, &child, 80).await;
    fits(&world, &child, "b", 30).await;
    let second = snapshot(&world, &child).await;
    let grandchild = create(&world, Some(&second), LIMIT_MB).await.id;
    is_full(&world, &grandchild, 50).await;
    client.delete(&parent).await.unwrap();
    client.delete_snapshot(&taken).await.unwrap();
    is_full(&world, &grandchild, 50).await;

    // A larger limit is more room, and a smaller one than what is there is refused.
    let wide = create(&world, Some(&second), 2 * LIMIT_MB).await.id;
    fits(&world, &wide, "c", 120).await;
    let refused = try_create(&world, Some(&second), 64).await.unwrap_err();
    assert!(
        matches!(&refused, RunnerError::Invalid { message } if message.contains("64 MB")),
        "{refused:?}"
    );
    let patch = ResourcesPatch {
        disk_mb: Some(64),
        ..ResourcesPatch::default()
    };
    let refused = client.resize(&child, patch).await.unwrap_err();
    assert!(
        matches!(refused, RunnerError::Invalid { .. }),
        "{refused:?}"
    );

    // The same for a rollback, which is another way to come by a disk.
    let rollback = |sandbox: &SandboxId| RollbackRequest {
        sandbox: sandbox.clone(),
        to: second.clone(),
        keep: SnapshotId::random(),
        memory: false,
    };
    let small = create(&world, None, 64).await.id;
    let refused = client.rollback(rollback(&small)).await.unwrap_err();
    assert!(
        matches!(refused, RunnerError::Invalid { .. }),
        "{refused:?}"
    );
    succeed(&world.guest(&small), "echo unharmed > /root/file").await;
    let other = create(&world, None, LIMIT_MB).await.id;
    client.rollback(rollback(&other)).await.unwrap();
    is_full(&world, &other, 50).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_of_an_inheritance_can_be_used_again() {
    let mut world = World::start(PROGRAM).await;
    let parent = create(&world, None, LIMIT_MB).await.id;
    fits(&world, &parent, "a", 100).await;
    let taken = snapshot(&world, &parent).await;
    let child = create(&world, Some(&taken), LIMIT_MB).await.id;
    is_full(&world, &child, 40).await;
    world.restart();
    is_full(&world, &child, 40).await;
    succeed(&world.guest(&child), "rm /root/a && sync").await;
    // Its room is found out about once it is needed.
    fits(&world, &child, "b", 90).await;
    let listed = output(&world.guest(&child), "ls /root").await;
    assert_eq!(listed.trim(), "b");
    assert!(world.traces().unfinished.is_empty());
    is_full(&world, &child, 60).await;
    world.finish();
}
