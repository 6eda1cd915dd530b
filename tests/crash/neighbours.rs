//! Two engines on one host.

use std::collections::BTreeSet;
use std::fs;

use cove_runner_api::RunnerApi;
use cove_tests::engine_host::{World, eventually, output, succeed};

use crate::PROGRAM;

/// Numbers of the uid ranges in use, from the names of the groups.
fn ranges(world: &World) -> BTreeSet<String> {
    world.traces().groups.into_keys().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_share_no_range_and_never_touch_each_others_sandboxes() {
    let (mut one, mut two) = tokio::join!(
        World::with(PROGRAM, |setup| setup.warm = 2),
        World::with(PROGRAM, |setup| setup.warm = 2)
    );
    assert_ne!(one.instance(), two.instance());
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push((one.create().await.id, two.create().await.id));
    }
    assert!(ranges(&one).is_disjoint(&ranges(&two)));
    let claims = |world: &World| world.traces().claims.into_iter().collect::<BTreeSet<_>>();
    assert!(claims(&one).is_disjoint(&claims(&two)));

    // The sweep of one while the other is down, and the other way round.
    one.kill();
    two.restart();
    let seen = one.traces();
    assert_eq!(seen.records.len(), 3);
    assert!(seen.groups.len() >= 3, "{seen:#?}");
    one.launch();
    two.restart();
    for (first, second) in &ids {
        assert_eq!(output(&one.guest(first), "echo one").await, "one");
        assert_eq!(output(&two.guest(second), "echo two").await, "two");
    }
    assert_eq!(one.client().list().await.unwrap().len(), 3);
    one.finish();
    let (_, second) = &ids[0];
    succeed(&two.guest(second), "true").await;
    two.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_and_groups_of_a_deleted_data_directory_are_free_for_the_next_engine() {
    let mut gone = World::start(PROGRAM).await;
    let claims = gone.traces().claims;
    assert_eq!(claims.len(), 1);
    let text = fs::read_to_string(&claims[0]).unwrap();
    gone.kill();
    // As an operator who throws an installation away does it.
    let traces = gone.traces();
    for mount in &traces.mounts {
        // Programs of the killed engine may hold it for a moment.
        eventually("what was mounted can be unmounted", || async {
            rustix::mount::unmount(mount, rustix::mount::UnmountFlags::empty()).ok()
        })
        .await;
    }
    fs::remove_dir_all(gone.setup.data_dir()).unwrap();
    // Whoever claims next takes the lowest free block: that one, or one freed by another test. The engine of another
    // test may come first.
    let next = World::start(PROGRAM).await;
    let taken = next.traces().claims;
    assert_eq!(taken.len(), 1);
    let number = |path: &std::path::Path| -> u32 {
        path.file_name().unwrap().to_str().unwrap().parse().unwrap()
    };
    let now = fs::read_to_string(&claims[0]).unwrap_or_default();
    assert!(
        number(&taken[0]) < number(&claims[0]) || now != text,
        "{taken:?} {claims:?}"
    );
    // What it left in the cgroup tree is empty, and goes with the sweep of the next engine, whoever's that is.
    eventually("its groups are gone", || async {
        gone.traces().parents.is_empty().then_some(())
    })
    .await;
    next.finish();
    gone.abandon();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_empty_groups_were_removed_makes_them_again() {
    let world = World::start(PROGRAM).await;
    for parent in world.traces().parents {
        fs::remove_dir(parent).unwrap();
    }
    let id = world
        .create_with(|spec| spec.resources.io_read_mb_s = Some(100))
        .await
        .id;
    succeed(&world.guest(&id), "true").await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_engine_over_the_same_data_is_refused() {
    let mut world = World::start(PROGRAM).await;
    let id = world.create().await.id;
    let refused = world.launch_another();
    assert!(!refused.success());
    assert_eq!(output(&world.guest(&id), "echo alive").await, "alive");
    world.restart();
    assert_eq!(output(&world.guest(&id), "echo alive").await, "alive");
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_seats_nor_sandboxes_hold_any_pool_of_the_host() {
    let one = World::with(PROGRAM, |setup| setup.warm = 1).await;
    // Parked and running with the first engine's pool mounted.
    let two = World::with(PROGRAM, |setup| setup.warm = 1).await;
    two.create().await;
    let pools = [one.setup.data_dir(), two.setup.data_dir()].map(|dir| dir.join("pool"));
    let processes = eventually("a sandbox runs and a seat is parked", || async {
        let processes = two.traces().processes;
        (processes.len() >= 2).then_some(processes)
    })
    .await;
    for pid in processes {
        // A sandbox's own root lies on the pool, but the pool itself is nowhere in it.
        let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        for pool in &pools {
            assert!(!table.contains(pool.to_str().unwrap()), "{pid}:\n{table}");
        }
    }
    one.finish();
    two.finish();
}
