//! Disks and what they may do: limits on space and on reading, room on the host.

use std::time::Instant;

use cove_runner_api::{JobState, RunnerApi, RunnerError};
use cove_tests::engine_host::{World, exec, succeed};

use crate::PROGRAM;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_told_inside_and_the_neighbour_writes_on() {
    let world = World::start(PROGRAM).await;
    let full = world.create_with(|spec| spec.resources.disk_mb = 48).await;
    let neighbour = world.create_with(|spec| spec.resources.disk_mb = 200).await;
    let result = exec(
        &world.guest(&full.id),
        "dd if=/dev/urandom of=/root/big bs=1M count=100",
    )
    .await;
    let text = String::from_utf8_lossy(&result.stderr).into_owned();
    assert_ne!(result.exit.code, 0);
    assert!(
        text.contains("quota exceeded") || text.contains("No space left"),
        "{text}"
    );
    succeed(
        &world.guest(&neighbour.id),
        "dd if=/dev/urandom of=/root/big bs=1M count=100 && sync",
    )
    .await;
    // A full sandbox can still be emptied, and works then.
    let guest = world.guest(&full.id);
    succeed(&guest, "rm /root/big && sync").await;
    succeed(&guest, "echo fits > /root/small && sync").await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn creates_and_imports_stop_before_the_host_runs_full() {
    let mut world = World::start(PROGRAM).await;
    let before = world.create().await;
    world.let_go();
    world.setup.reserve_bytes = Some(1 << 60);
    world.launch();
    let error = world.try_create(|_| {}).await.unwrap_err();
    assert!(
        matches!(&error, RunnerError::NoCapacity { resource, .. } if resource == "disk"),
        "{error:?}"
    );
    let job = world.import("more", &world.setup.dir.join("image")).await;
    assert_eq!(job.state, JobState::Failed, "{job:?}");
    let reason = job.error.map(|error| error.to_string()).unwrap_or_default();
    assert!(reason.contains("reserve"), "{reason}");
    let traces = world.traces();
    assert_eq!(traces.unfinished.len(), 0, "{traces:#?}");
    assert_eq!(traces.groups.len(), 1, "{traces:#?}");
    assert_eq!(traces.records.len(), 1, "{traces:#?}");
    // What was there before works on, and stops and starts without needing room.
    succeed(&world.guest(&before.id), "echo works > /root/file").await;
    world.client().stop(&before.id, 0).await.unwrap();
    world.client().start(&before.id).await.unwrap();
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_from_the_disk_is_held_to_its_limit() {
    // So low that nobody without a limit is that slow, also on a machine that has much else to do.
    const LIMIT_MB_S: u64 = 2;
    const FILE_MB: u64 = 32;
    let world = World::start(PROGRAM).await;
    let report = world.client().host().await.unwrap();
    let can = |name: &str| report.tiers[0].capabilities.iter().any(|has| has == name);
    assert!(can("io_read_limit"), "the pool lies on a loop device");
    let free = world.create().await;
    let limited = world
        .create_with(|spec| spec.resources.io_read_mb_s = Some(LIMIT_MB_S))
        .await;
    let mut seconds = Vec::new();
    for id in [&free.id, &limited.id] {
        let guest = world.guest(id);
        succeed(
            &guest,
            &format!("dd if=/dev/urandom of=/root/big bs=1M count={FILE_MB} && sync"),
        )
        .await;
        let begun = Instant::now();
        succeed(&guest, "dd if=/root/big of=/dev/null bs=1M iflag=direct").await;
        seconds.push(begun.elapsed().as_secs_f64());
    }
    println!(
        "{FILE_MB} MB read in {:.2} s free, {:.2} s limited",
        seconds[0], seconds[1]
    );
    // A limit that is kept cannot be beaten; how much faster the free one is depends on the machine.
    let least = FILE_MB as f64 / LIMIT_MB_S as f64;
    assert!(seconds[1] > least * 0.8, "{seconds:?}");
    assert!(seconds[0] < seconds[1], "{seconds:?}");

    if can("io_write_limit") {
        world
            .create_with(|spec| spec.resources.io_write_mb_s = Some(10))
            .await;
    } else {
        let error = world
            .try_create(|spec| spec.resources.io_write_mb_s = Some(10))
            .await
            .unwrap_err();
        match error {
            RunnerError::Unsupported { message } => {
                assert!(message.contains("io_write_mb_s"), "{message}")
            }
            other => panic!("{other:?}"),
        }
    }
    world.finish();
}
