//! A disk that stands still: who does not need it must not notice.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cove_model::{ResourcesPatch, SandboxId, SnapshotId};
use cove_runner_api::{RunnerApi, RunnerError, SnapshotRequest};
use cove_tests::engine_host::{World, succeed};
use tokio::task::JoinSet;

use crate::PROGRAM;
use crate::full_host::SmallDisk;

/// How long a filesystem is frozen.
const STALL: Duration = Duration::from_secs(2);
/// Rounds that show how long one takes while nothing stands still.
const CALM_ROUNDS: u32 = 20;
/// On a loaded machine a round may take this many times the slowest calm one, should that be more.
const NOISE: u32 = 4;
const TRIES: u32 = 3;

/// Freezes a filesystem for a while. The child thaws it, whatever becomes of the test.
fn stall(path: &Path) -> Child {
    let script = format!(
        "fsfreeze --freeze \"$0\" && echo frozen; sleep {}; fsfreeze --unfreeze \"$0\"",
        STALL.as_secs()
    );
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "frozen\n");
    child
}

/// What callers of others do: the slowest of it.
async fn round(world: &World, neighbour: &SandboxId, others: &[SandboxId]) -> Duration {
    let client = world.client();
    let mut slowest = Duration::ZERO;
    for id in others.iter().chain([neighbour]) {
        let begun = Instant::now();
        client.get(id).await.unwrap();
        slowest = slowest.max(begun.elapsed());
    }
    let begun = Instant::now();
    succeed(&world.guest(neighbour), "echo here").await;
    slowest.max(begun.elapsed())
}

/// Work of every kind that waits for a disk, several times over.
fn work(world: &World, busy: &[SandboxId]) -> JoinSet<Result<(), RunnerError>> {
    let mut working = JoinSet::new();
    for (number, id) in busy.iter().cloned().enumerate() {
        let client = world.client();
        working.spawn(async move {
            match number % 4 {
                0 => {
                    let patch = ResourcesPatch {
                        memory_mb: Some(160),
                        ..ResourcesPatch::default()
                    };
                    client.resize(&id, patch).await.map(drop)
                }
                1 => {
                    let request = SnapshotRequest {
                        id: SnapshotId::random(),
                        sandbox: id,
                        memory: false,
                        unless_unchanged: false,
                    };
                    client.snapshot(request).await.map(drop)
                }
                2 => client.freeze(&id).await.map(drop),
                _ => client.stop(&id, 0).await.map(drop),
            }
        });
    }
    working
}

/// Other tests of this suite wait for disks at the same time and hold each other up now and then; what the
/// engine itself makes its callers wait for shows every time.
async fn neighbours_stay_quick(frozen: impl Fn(&World, &SmallDisk) -> std::path::PathBuf) {
    for _ in 1..TRIES {
        if beside_a_stall(&frozen).await.is_ok() {
            return;
        }
    }
    beside_a_stall(&frozen).await.unwrap();
}

async fn beside_a_stall(
    frozen: &impl Fn(&World, &SmallDisk) -> std::path::PathBuf,
) -> Result<(), String> {
    let disk = SmallDisk::new();
    let world = World::with(PROGRAM, |setup| {
        setup.dir = disk.world();
        setup.pool_bytes = 2 << 30;
    })
    .await;
    // More of each kind than there are async workers to hold up.
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let mut busy = Vec::new();
    for _ in 0..4 * (workers.min(4) + 1) {
        busy.push(
            world
                .create_with(|spec| spec.resources.disk_mb = 32)
                .await
                .id,
        );
    }
    let neighbour = world.create().await.id;
    let mut calm = Duration::ZERO;
    for _ in 0..CALM_ROUNDS {
        calm = calm.max(round(&world, &neighbour, &busy).await);
    }
    let mut stalled = stall(&frozen(&world, &disk));
    let begun = Instant::now();
    let mut working = work(&world, &busy);
    let (mut rounds, mut slowest) = (0, Duration::ZERO);
    while begun.elapsed() < STALL {
        slowest = slowest.max(round(&world, &neighbour, &busy).await);
        rounds += 1;
    }
    assert!(stalled.wait().unwrap().success(), "it is thawed");
    println!("{rounds} rounds; slowest {slowest:?}, calm {calm:?}");
    let bound = (STALL / 2).max(calm * NOISE);
    while let Some(done) = working.join_next().await {
        done.unwrap().unwrap();
    }
    world.finish();
    match slowest < bound {
        true => Ok(()),
        false => Err(format!(
            "{slowest:?} beside a stalled disk, {calm:?} without"
        )),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn others_stay_quick_while_the_pool_stands_still() {
    neighbours_stay_quick(|world, _| world.setup.data_dir().join("pool")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn others_stay_quick_while_the_disk_of_the_records_stands_still() {
    neighbours_stay_quick(|_, disk| disk.path()).await;
}
