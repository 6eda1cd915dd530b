//! SIGKILL in the middle of a change of limits: what is in force afterwards is what the record says.

use std::time::Duration;

use cove_model::{Resources, ResourcesPatch, SandboxId};
use cove_runner_api::RunnerApi;
use cove_tests::engine_host::World;
use rand::Rng;

use crate::PROGRAM;

const KILLS: u32 = 12;

/// The limits the kernel holds the only sandbox to: memory in MiB, pids, thousandths of a CPU.
fn in_force(world: &World) -> (u64, u64, u64) {
    let groups = world.traces().groups;
    assert_eq!(groups.len(), 1, "{groups:?}");
    let read = |file: &str| {
        let dirs = groups.values().flatten();
        let mut found = dirs.filter_map(|dir| std::fs::read_to_string(dir.join(file)).ok());
        found.next()
    };
    let number = |text: String| text.trim().parse::<u64>().unwrap();
    let memory = read("memory.limit_in_bytes").or_else(|| read("memory.max"));
    let cpu = match read("cpu.cfs_quota_us") {
        Some(quota) => number(quota),
        None => {
            let line = read("cpu.max").unwrap();
            number(line.split(' ').next().unwrap().into())
        }
    };
    (
        number(memory.unwrap()) >> 20,
        number(read("pids.max").unwrap()),
        cpu / 100,
    )
}

async fn check(world: &World, id: &SandboxId) -> Resources {
    let client = world.client();
    let limits = client.get(id).await.unwrap().limits;
    let told = (
        limits.memory_mb,
        limits.pids,
        (limits.cpu * 1000.0).round() as u64,
    );
    assert_eq!(in_force(world), told, "record: {limits:?}");
    let disk = client.sample(id).await.unwrap().disk_limit_bytes >> 20;
    assert_eq!(disk, limits.disk_mb, "record: {limits:?}");
    limits
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_in_force_are_the_records_after_a_kill_in_the_middle_of_a_change() {
    let mut world = World::start(PROGRAM).await;
    let id = world.create().await.id;
    for _ in 0..KILLS {
        let (client, sandbox) = (world.client(), id.clone());
        let changing = tokio::spawn(async move {
            for round in 0u64.. {
                let odd = round % 2;
                let patch = ResourcesPatch {
                    cpu: Some(0.5 + 0.25 * odd as f64),
                    memory_mb: Some(100 + 50 * odd),
                    disk_mb: Some(200 + 100 * odd),
                    pids: Some(40 + 20 * odd),
                    ..ResourcesPatch::default()
                };
                if client.resize(&sandbox, patch).await.is_err() {
                    break;
                }
            }
        });
        let moment = rand::rng().random_range(2_000..60_000);
        tokio::time::sleep(Duration::from_micros(moment)).await;
        world.kill();
        changing.await.unwrap();
        world.launch();
        check(&world, &id).await;
    }
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_changed_behind_a_dead_engine_are_put_back() {
    let mut world = World::start(PROGRAM).await;
    let id = world.create().await.id;
    let before = check(&world, &id).await;
    world.kill();
    let groups = world.traces().groups;
    for dir in groups.values().flatten() {
        for (file, value) in [
            ("memory.memsw.limit_in_bytes", "536870912"),
            ("memory.limit_in_bytes", "536870912"),
            ("memory.max", "536870912"),
            ("pids.max", "1000"),
            ("cpu.cfs_quota_us", "10000"),
            ("cpu.max", "10000 100000"),
        ] {
            if dir.join(file).exists() {
                std::fs::write(dir.join(file), value).unwrap();
            }
        }
    }
    assert_ne!(in_force(&world).1, before.pids);
    world.launch();
    assert_eq!(check(&world, &id).await, before);
    world.finish();
}
