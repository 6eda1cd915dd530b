//! Limits changed while a sandbox runs.

use cove_model::{EventKind, Resources, ResourcesPatch, SandboxId};
use cove_protocol::message::Start;
use cove_runner_api::{RunnerApi, RunnerError, SandboxView};
use cove_tests::engine_host::{World, eventually, exec, output, process_id, shell, succeed};

use crate::PROGRAM;

async fn resize(
    world: &World,
    id: &SandboxId,
    change: impl FnOnce(&mut ResourcesPatch),
) -> Result<SandboxView, RunnerError> {
    let mut patch = ResourcesPatch::default();
    change(&mut patch);
    world.client().resize(id, patch).await
}

async fn meminfo_mb(world: &World, id: &SandboxId) -> u64 {
    let text = output(
        &world.guest(id),
        "awk '/MemTotal/ {print $2}' /proc/meminfo",
    )
    .await;
    text.parse::<u64>().unwrap() / 1024
}

async fn until_meminfo(world: &World, id: &SandboxId, wanted_mb: u64) {
    eventually(&format!("meminfo says {wanted_mb} MB"), || async {
        (meminfo_mb(world, id).await == wanted_mb).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cpu_memory_and_pids_follow_up_and_down_and_survive_engine_and_sandbox() {
    let mut world = World::start(PROGRAM).await;
    let cpus = world.client().host().await.unwrap().cpus;
    let id = world.create_with(|spec| spec.resources.cpu = 0.5).await.id;
    let guest = world.guest(&id);
    assert_eq!(output(&guest, "nproc").await, "1");
    until_meminfo(&world, &id, 128).await;

    let cursor = world.cursor().await;
    let view = resize(&world, &id, |patch| {
        patch.cpu = Some(f64::from(cpus));
        patch.memory_mb = Some(300);
        patch.pids = Some(40);
    })
    .await
    .unwrap();
    assert_eq!(view.limits.memory_mb, 300);
    world
        .event(cursor, "resized", |event| event.kind == EventKind::Resized)
        .await;
    assert_eq!(output(&guest, "nproc").await, cpus.to_string());
    until_meminfo(&world, &id, 300).await;
    // None of them ends before the last one is asked for, nor keeps the shell's output.
    let refused = exec(
        &guest,
        "i=0; while [ $i -lt 60 ]; do sleep 1000 > /dev/null 2>&1 & i=$((i+1)); done",
    )
    .await;
    assert_ne!(refused.exit.code, 0, "60 processes fitted into 40");
    // The end of the shell leaves room for one process.
    let kill = Start {
        id: process_id(),
        argv: vec!["/bin/killall".into(), "sleep".into()],
        ..Start::default()
    };
    guest.exec(kill).await.unwrap();
    eventually("there is room again", || async {
        let ran = guest.exec(shell("/bin/true; /bin/true")).await.ok()?;
        (ran.exit.code == 0).then_some(())
    })
    .await;

    world.restart();
    assert_eq!(world.client().get(&id).await.unwrap().limits, view.limits);
    assert_eq!(output(&guest, "nproc").await, cpus.to_string());
    world.client().stop(&id, 0).await.unwrap();
    let view = world.client().start(&id).await.unwrap();
    assert_eq!((view.limits.memory_mb, view.limits.pids), (300, 40));
    assert_eq!(output(&guest, "nproc").await, cpus.to_string());

    resize(&world, &id, |patch| {
        patch.cpu = Some(1.0);
        patch.memory_mb = Some(64);
    })
    .await
    .unwrap();
    assert_eq!(output(&guest, "nproc").await, "1");
    until_meminfo(&world, &id, 64).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_below_use_are_refused_by_name_and_change_nothing() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let view = world
        .create_with(|spec| {
            spec.resources = Resources {
                memory_mb: 256,
                disk_mb: 256,
                ..spec.resources.clone()
            };
        })
        .await;
    let id = view.id.clone();
    let guest = world.guest(&id);
    guest
        .start(shell(
            "awk 'BEGIN{s=sprintf(\"%1000000s\",\"\"); for(i=0;i<130;i++) a[i]=s i; system(\"sleep 1000\")}'",
        ))
        .await
        .unwrap();
    eventually("100 MB are in use", || async {
        (client.sample(&id).await.unwrap().memory_bytes > 100 << 20).then_some(())
    })
    .await;
    guest
        .start(shell(
            "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done; wait",
        ))
        .await
        .unwrap();
    eventually("processes are there", || async {
        (client.sample(&id).await.unwrap().pids > 12).then_some(())
    })
    .await;
    succeed(
        &guest,
        "dd if=/dev/urandom of=/root/big bs=1M count=60; sync",
    )
    .await;

    let refused = |error: RunnerError, word: &str| match error {
        RunnerError::Invalid { message } => {
            assert!(message.contains(word), "'{word}' is not in: {message}");
        }
        other => panic!("{other:?}"),
    };
    refused(
        resize(&world, &id, |patch| patch.memory_mb = Some(48))
            .await
            .unwrap_err(),
        "memory_mb",
    );
    refused(
        resize(&world, &id, |patch| patch.pids = Some(8))
            .await
            .unwrap_err(),
        "pids",
    );
    refused(
        resize(&world, &id, |patch| patch.disk_mb = Some(32))
            .await
            .unwrap_err(),
        "in use",
    );
    // One part that fits does not go through when another does not.
    refused(
        resize(&world, &id, |patch| {
            patch.disk_mb = Some(512);
            patch.memory_mb = Some(48);
        })
        .await
        .unwrap_err(),
        "memory_mb",
    );
    let error = resize(&world, &id, |patch| patch.cpu = Some(1000.0))
        .await
        .unwrap_err();
    assert!(
        matches!(error, RunnerError::Unsupported { .. }),
        "{error:?}"
    );
    let after = client.get(&id).await.unwrap();
    assert_eq!(after.limits, view.limits);
    let sample = client.sample(&id).await.unwrap();
    assert_eq!(sample.disk_limit_bytes, 256 << 20);
    assert_eq!(sample.memory_limit_bytes, 256 << 20);
    let promised = client.host().await.unwrap();
    assert_eq!(promised.promised_memory_bytes, 256 << 20);
    assert_eq!(promised.promised_disk_bytes, 256 << 20);
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_grows_and_shrinks_under_a_running_sandbox() {
    let mut world = World::start(PROGRAM).await;
    let id = world
        .create_with(|spec| spec.resources.disk_mb = 64)
        .await
        .id;
    let guest = world.guest(&id);
    let fill = "dd if=/dev/urandom of=/root/big bs=1M count=100 && sync";
    let full = exec(&guest, fill).await;
    assert_ne!(full.exit.code, 0, "100 MB fitted into 64");
    succeed(&guest, "rm /root/big && sync").await;
    resize(&world, &id, |patch| patch.disk_mb = Some(200))
        .await
        .unwrap();
    succeed(&guest, fill).await;
    world.restart();
    assert_eq!(
        world.client().sample(&id).await.unwrap().disk_limit_bytes,
        200 << 20
    );
    succeed(&guest, "rm /root/big && sync").await;
    eventually("the space is back", || async {
        resize(&world, &id, |patch| patch.disk_mb = Some(64))
            .await
            .ok()
    })
    .await;
    let full = exec(&guest, fill).await;
    assert_ne!(full.exit.code, 0, "100 MB fitted into 64 again");
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn more_disk_than_the_host_may_promise_is_refused() {
    let world = World::start(PROGRAM).await;
    let id = world.create().await.id;
    let error = resize(&world, &id, |patch| patch.disk_mb = Some(1 << 20))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, RunnerError::NoCapacity { resource, .. } if resource == "disk"),
        "{error:?}"
    );
    assert_eq!(
        world.client().sample(&id).await.unwrap().disk_limit_bytes,
        256 << 20
    );
    world.finish();
}
