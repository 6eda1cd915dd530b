//! What copies come with counts against their limits, however long the chain of copies is.

use std::process::Command;

use cove_model::{ResourcesPatch, SandboxId, SnapshotId};
use cove_protocol::client::ExecResult;
use cove_runner_api::{
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
        owner: None,
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

/// What the snapshots of a host cost their owners, all together.
async fn cost_mb(world: &World) -> u64 {
    let client = world.client();
    for view in client.snapshots().await.unwrap() {
        // Asked for by itself it is looked at anew, where a list tells what was known.
        client.get_snapshot(&view.id).await.unwrap();
    }
    let views = client.snapshots().await.unwrap();
    let bytes: u64 = views
        .iter()
        .map(|view| view.exclusive_bytes + view.counted_bytes)
        .sum();
    bytes >> 20
}

async fn costs(world: &World, what: &str, mb: std::ops::RangeInclusive<u64>) {
    eventually(what, || async {
        mb.contains(&cost_mb(world).await).then_some(())
    })
    .await;
}

/// What lies on the pool's filesystem, whoever is charged for it.
fn pool_mb(world: &World) -> u64 {
    let pool = world.setup.data_dir().join("pool");
    // Deleted volumes are cleared away twice a minute, or after this: syncfs(2) does not wake the cleaner.
    let mut sync = Command::new("btrfs");
    sync.args(["filesystem", "sync"]).arg(&pool);
    let synced = sync.output().unwrap();
    assert!(synced.status.success(), "{synced:?}");
    let stat = rustix::fs::statvfs(&pool).unwrap();
    ((stat.f_blocks - stat.f_bfree) * stat.f_frsize) >> 20
}

async fn holds(world: &World, what: &str, mb: std::ops::RangeInclusive<u64>) {
    eventually(what, || async {
        mb.contains(&pool_mb(world)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_only_snapshots_share_are_charged_once() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let before = pool_mb(&world);
    // Written, kept twice, and the sandbox is gone: each shares all of it with the other.
    let writer = create(&world, None, LIMIT_MB).await.id;
    fits(&world, &writer, "a", 40).await;
    let (first, second) = (
        snapshot(&world, &writer).await,
        snapshot(&world, &writer).await,
    );
    costs(&world, "the sandbox pays for it", 0..=4).await;
    client.delete(&writer).await.unwrap();
    costs(&world, "the two are charged", 39..=44).await;

    // A copy that lives pays for what it inherited, and its snapshots cost nothing more.
    let copy = create(&world, Some(&second), LIMIT_MB).await.id;
    let third = snapshot(&world, &copy).await;
    costs(&world, "the copy pays for it", 0..=4).await;
    fits(&world, &copy, "b", 20).await;
    let (fourth, fifth) = (snapshot(&world, &copy).await, snapshot(&world, &copy).await);
    client.delete(&copy).await.unwrap();
    costs(&world, "both parts are charged", 59..=65).await;

    // The charge stays as long as anybody holds the bytes, whoever is deleted first.
    client.delete_snapshot(&first).await.unwrap();
    client.delete_snapshot(&third).await.unwrap();
    client.delete_snapshot(&fourth).await.unwrap();
    costs(&world, "the rest is charged for the same", 59..=65).await;
    client.delete_snapshot(&fifth).await.unwrap();
    costs(&world, "one part is gone", 39..=44).await;
    holds(&world, "its bytes are gone too", before + 39..=before + 46).await;
    // Nobody is left to be charged, so nothing may be left that somebody should pay for.
    client.delete_snapshot(&second).await.unwrap();
    assert_eq!(client.snapshots().await.unwrap(), []);
    holds(&world, "the pool is as it was", 0..=before + 4).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_rollbacks_leave_behind_is_charged_to_the_snapshots_that_hold_it() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let one = create(&world, None, LIMIT_MB).await.id;
    let empty = snapshot(&world, &one).await;
    for _ in 0..2 {
        // Filled, kept, and put back to nothing: the sandbox may write as much again.
        fits(&world, &one, "a", 40).await;
        snapshot(&world, &one).await;
        let request = RollbackRequest {
            sandbox: one.clone(),
            to: empty.clone(),
            keep: SnapshotId::random(),
            memory: false,
        };
        client.rollback(request).await.unwrap();
    }
    costs(&world, "both are charged", 79..=88).await;
    world.finish();
}
