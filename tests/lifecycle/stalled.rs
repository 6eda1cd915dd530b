//! A disk that stands still: who does not need it must not notice.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cove_model::{NetworkMode, NetworkPolicy, ResourcesPatch, SandboxId, SnapshotId};
use cove_runner_api::{RunnerApi, RunnerError, SnapshotRequest};
use cove_tests::engine_host::{World, eventually, succeed};
use tokio::task::JoinSet;

use crate::PROGRAM;
use crate::full_host::SmallDisk;

/// How long a filesystem is frozen: far longer than a busy machine makes anybody wait, and shorter than the engine and
/// guests wait for each other.
const STALL: Duration = Duration::from_secs(6);
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

/// What is done to one sandbox while the disk stands still.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Work {
    Limits,
    Snapshot,
    Freeze,
    Stop,
    Pause,
    Policy,
    Growth,
}

const WORK: [Work; 7] = [
    Work::Limits,
    Work::Snapshot,
    Work::Freeze,
    Work::Stop,
    Work::Pause,
    Work::Policy,
    Work::Growth,
];

const DISK_MB: u64 = 16;
const MEMORY_MB: u64 = 64;
/// Takes more memory than a sandbox begins with.
const TAKE: &str = "dd if=/dev/zero of=/dev/null bs=128M count=1";

/// Every kind of work that waits for a disk, each on a sandbox of its own, several times over.
fn work(world: &World, busy: &[(Work, SandboxId)]) -> JoinSet<Result<(), RunnerError>> {
    let mut working = JoinSet::new();
    for (kind, id) in busy.iter().cloned() {
        let client = world.client();
        let guest = world.guest(&id);
        working.spawn(async move {
            match kind {
                Work::Limits => {
                    let patch = ResourcesPatch {
                        memory_mb: Some(96),
                        ..ResourcesPatch::default()
                    };
                    client.resize(&id, patch).await.map(drop)
                }
                Work::Snapshot => {
                    let request = SnapshotRequest {
                        id: SnapshotId::random(),
                        sandbox: id,
                        memory: false,
                        unless_unchanged: false,
                    };
                    client.snapshot(request).await.map(drop)
                }
                Work::Freeze => client.freeze(&id).await.map(drop),
                Work::Stop => client.stop(&id, 0).await.map(drop),
                Work::Pause => client.pause(&id).await.map(drop),
                Work::Policy => {
                    let policy = NetworkPolicy {
                        mode: NetworkMode::Allowlist,
                        allow: Some(vec!["192.0.2.1:443".parse().unwrap()]),
                        ..NetworkPolicy::default()
                    };
                    client.set_network(&id, policy).await.map(drop)
                }
                Work::Growth => {
                    succeed(&guest, TAKE).await;
                    // In force at once; what is shown follows the record, which waits for its disk.
                    eventually("memory has grown", || async {
                        let view = client.get(&id).await.ok()?;
                        (view.limits.memory_mb > MEMORY_MB).then_some(())
                    })
                    .await;
                    Ok(())
                }
            }
        });
    }
    working
}

/// A network namespace of the test's own: policies put interfaces and rules there.
struct Namespace(String);

impl Namespace {
    fn new() -> Self {
        let namespace = Self(format!("cove-stall-{}", SandboxId::random().as_str()));
        namespace.ip(&["netns", "add", &namespace.0]);
        namespace.ip(&["-n", &namespace.0, "link", "set", "lo", "up"]);
        namespace
    }

    fn ip(&self, arguments: &[&str]) {
        let done = Command::new("ip").args(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }

    fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// Other tests of this suite wait for disks at the same time and hold each other up now and then; what the
/// engine itself makes its callers wait for shows every time.
async fn neighbours_stay_quick(frozen: impl Fn(&World, &SmallDisk) -> PathBuf) {
    for _ in 1..TRIES {
        if beside_a_stall(&frozen).await.is_ok() {
            return;
        }
    }
    beside_a_stall(&frozen).await.unwrap();
}

async fn beside_a_stall(frozen: &impl Fn(&World, &SmallDisk) -> PathBuf) -> Result<(), String> {
    let (disk, namespace) = (SmallDisk::new(), Namespace::new());
    let world = World::with(PROGRAM, |setup| {
        setup.dir = disk.world();
        setup.pool_bytes = 2 << 30;
        setup.namespace = Some(namespace.path());
    })
    .await;
    let tiers = world.client().host().await.unwrap().tiers;
    let captures = tiers[0].capabilities.contains(&"memory".to_owned());
    let pauses = cove_tests::needs::has("criu", captures);
    // More of each kind than there are async workers to hold up.
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let mut busy = Vec::new();
    for kind in WORK {
        if kind == Work::Pause && !pauses {
            continue;
        }
        for _ in 0..workers.min(4) + 1 {
            let created = world.create_with(|spec| {
                spec.resources.disk_mb = DISK_MB;
                spec.resources.memory_mb = MEMORY_MB;
                if kind == Work::Growth {
                    spec.resources.memory_max_mb = Some(4 * MEMORY_MB);
                }
            });
            busy.push((kind, created.await.id));
        }
    }
    let others: Vec<SandboxId> = busy.iter().map(|(_, id)| id.clone()).collect();
    let neighbour = world.create().await.id;
    let mut calm = Duration::ZERO;
    for _ in 0..CALM_ROUNDS {
        calm = calm.max(round(&world, &neighbour, &others).await);
    }
    let mut stalled = stall(&frozen(&world, &disk));
    let begun = Instant::now();
    let mut working = work(&world, &busy);
    let (mut rounds, mut slowest) = (0, Duration::ZERO);
    while begun.elapsed() < STALL {
        slowest = slowest.max(round(&world, &neighbour, &others).await);
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
