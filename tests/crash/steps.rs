//! SIGKILL at each step of a snapshot, a rollback, a pause, a resume and a deletion, not at some random
//! moment: a watcher looks for what a step leaves on the host and kills the engine the instant it is
//! there. What was asked for is then done or not done; the processes inside have missed nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cove_model::{SandboxId, SnapshotId, State};
use cove_protocol::client::Guest;
use cove_runner_api::{CreateRequest, FromSnapshot, RollbackRequest, RunnerApi, SnapshotRequest};
use cove_tests::engine_host::{
    World, eventually, guest, output, shell, signal, small_spec, succeed,
};

use crate::PROGRAM;

/// How often a step is tried until its moment is met. What is very short may be missed each time; a step that is long
/// enough is missed only by a watcher that the machine has no time for.
const TRIES: u32 = 5;
const TRIES_OF_CERTAIN: u32 = 20;
/// How often all steps of a deed are gone through until one of them is met.
const ROUNDS: u32 = 4;
/// Counts in memory, where it also keeps whether it was marked, and tells both on disk.
const COUNTER: &str = "m=no; trap 'm=yes' USR1; echo $$ > /root/pid; n=0; while :; do \
    n=$((n+1)); echo $n $m > /root/n.new; mv /root/n.new /root/n; sleep 0.01; done";
/// Marks a sandbox on disk and in memory.
const MARK: &str = "echo yes > /root/mark && sync && kill -USR1 $(cat /root/pid)";
/// How many counters there are. The pattern does not match itself.
const COUNTERS: &str = "grep -l 'trap .m=ye[s]' /proc/[0-9]*/cmdline 2>/dev/null | wc -l";

/// What the host looks like to a watcher.
#[derive(Clone)]
struct Look {
    data: PathBuf,
    groups: Vec<PathBuf>,
    sandbox: SandboxId,
    snapshot: SnapshotId,
    pid: i64,
    device: u64,
}

impl Look {
    fn staged(&self, purpose: &str, id: &str) -> bool {
        let name = format!("pool/staging/{purpose}-{id}");
        self.data.join(name).exists()
    }

    fn says(&self, state: &str) -> bool {
        let record = self.data.join(format!("records/{}.json", self.sandbox));
        let text = fs::read_to_string(record).unwrap_or_default();
        let record: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        record["state"] == state
    }

    fn volume(&self) -> PathBuf {
        self.data.join("pool/sandboxes").join(self.sandbox.as_str())
    }

    /// Whether CRIU has the first process in its hands.
    fn is_traced(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let tracer = status
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:"));
        tracer.is_some_and(|pid| pid.trim() != "0")
    }

    /// Processes in the groups of sandboxes, of which there is one.
    fn processes(&self) -> usize {
        let count = |parent: &PathBuf| -> usize {
            let groups = fs::read_dir(parent).into_iter().flatten().flatten();
            groups
                .filter_map(|entry| fs::read_to_string(entry.path().join("cgroup.procs")).ok())
                .map(|listed| listed.lines().count())
                .sum()
        };
        self.groups.iter().map(count).max().unwrap_or(0)
    }

    fn has(&self, path: &str) -> bool {
        self.data.join(path).exists()
    }
}

type Seen = fn(&Look) -> bool;

/// A step by name, whether its moment is long enough to be met for certain, and its sign.
type Step = (&'static str, bool, Seen);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Deed {
    Snapshot { memory: bool },
    Rollback { memory: bool },
    Pause,
    Resume,
    DeleteSnapshot,
    Delete,
}

/// Whether the engine was killed, and whether it said before that the deed is done.
struct Outcome {
    killed: bool,
    answered: bool,
}

struct Scene {
    world: World,
    sandbox: SandboxId,
    base: SnapshotId,
}

fn take(sandbox: &SandboxId, memory: bool) -> SnapshotRequest {
    SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: sandbox.clone(),
        memory,
        unless_unchanged: false,
    }
}

/// What the counter last showed: how far it is, and whether its memory is marked.
async fn told(guest: &Guest) -> (u64, bool) {
    let text = output(guest, "cat /root/n || true").await;
    let (count, mark) = text.trim().split_once(' ').unwrap_or_default();
    (count.parse().unwrap_or(0), mark == "yes")
}

async fn is_marked_on_disk(guest: &Guest) -> bool {
    output(guest, "cat /root/mark 2>/dev/null || true").await == "yes"
}

/// Waits until the counter of a sandbox has gone on, and tells whether its memory is marked.
async fn counts(guest: &Guest) -> bool {
    let (now, _) = told(guest).await;
    eventually("it counts on", || async {
        let (count, marked) = told(guest).await;
        (count > now).then_some(marked)
    })
    .await
}

/// Disk and memory of a sandbox are both from before the mark or both from after it. Which of them.
async fn is_marked(guest: &Guest, step: &str) -> bool {
    let (disk, memory) = (is_marked_on_disk(guest).await, counts(guest).await);
    assert_eq!(disk, memory, "{step}: disk and memory are of two states");
    disk
}

impl Scene {
    /// A world in which memory can be captured, or nothing.
    async fn open() -> Option<Self> {
        let world = World::start(PROGRAM).await;
        let tiers = world.client().host().await.unwrap().tiers;
        let captures = tiers[0].capabilities.contains(&"memory".to_owned());
        if !cove_tests::needs::has("criu", captures) {
            world.finish();
            return None;
        }
        let sandbox = world.create().await.id;
        let base = SnapshotId::random();
        let mut scene = Self {
            world,
            sandbox,
            base,
        };
        scene.begin_anew().await;
        Some(scene)
    }

    /// A sandbox that counts, and a snapshot of it from before `mark` was written.
    async fn begin_anew(&mut self) {
        let client = self.world.client();
        for view in client.list().await.unwrap() {
            client.delete(&view.id).await.unwrap();
        }
        for view in client.snapshots().await.unwrap() {
            client.delete_snapshot(&view.id).await.unwrap();
        }
        self.sandbox = self.world.create().await.id;
        let guest = self.world.guest(&self.sandbox);
        guest.start(shell(COUNTER)).await.unwrap();
        eventually("it counts", || async {
            (told(&guest).await.0 > 0).then_some(())
        })
        .await;
        let request = take(&self.sandbox, true);
        self.base = client.snapshot(request).await.unwrap().id;
        succeed(&guest, MARK).await;
        eventually("the mark is in memory", || async {
            told(&guest).await.1.then_some(())
        })
        .await;
    }

    fn look(&self, snapshot: &SnapshotId) -> Look {
        let data = self.world.setup.data_dir();
        let record = data.join(format!("records/{}.json", self.sandbox));
        let record: serde_json::Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
        let look = Look {
            groups: self.world.traces().parents,
            sandbox: self.sandbox.clone(),
            snapshot: snapshot.clone(),
            pid: record["machine"]["detail"]["pid"].as_i64().unwrap_or(0),
            device: 0,
            data,
        };
        let device = fs::metadata(look.volume()).unwrap().dev();
        Look { device, ..look }
    }

    /// Does it, and kills the engine when `seen` says so.
    async fn kill_at(&mut self, deed: Deed, seen: Seen) -> Outcome {
        let (client, sandbox) = (self.world.client(), self.sandbox.clone());
        let request = take(&sandbox, deed == Deed::Snapshot { memory: true });
        let target = match deed {
            Deed::DeleteSnapshot => self.base.clone(),
            _ => request.id.clone(),
        };
        let look = self.look(&target);
        let rollback = RollbackRequest {
            sandbox: sandbox.clone(),
            to: self.base.clone(),
            keep: target,
            memory: deed == Deed::Rollback { memory: true },
        };
        let base = self.base.clone();
        let (engine, over) = (self.world.engine_pid(), Arc::new(AtomicBool::new(false)));
        let watched = Arc::clone(&over);
        let watcher = std::thread::spawn(move || {
            while !watched.load(Ordering::Relaxed) {
                if seen(&look) {
                    signal(engine, rustix::process::Signal::KILL);
                    return true;
                }
            }
            false
        });
        let answer = match deed {
            Deed::Snapshot { .. } => client.snapshot(request).await.map(drop),
            Deed::Rollback { .. } => client.rollback(rollback).await.map(drop),
            Deed::Pause => client.pause(&sandbox).await.map(drop),
            Deed::Resume => client.resume(&sandbox).await.map(drop),
            Deed::DeleteSnapshot => client.delete_snapshot(&base).await.map(drop),
            Deed::Delete => client.delete(&sandbox).await.map(drop),
        };
        over.store(true, Ordering::Relaxed);
        let killed = watcher.join().unwrap();
        assert!(
            answer.is_ok() || killed,
            "{deed:?} failed by itself: {answer:?}"
        );
        let answered = answer.is_ok();
        Outcome { killed, answered }
    }

    /// Nothing is lost, half or left over; and what was answered for is done.
    async fn check(&self, deed: Deed, step: &str, answered: bool) {
        let client = self.world.client();
        let listed = client.list().await.unwrap();
        let gone = listed.is_empty();
        assert!(!gone || deed == Deed::Delete, "{step}: the sandbox is gone");
        assert!(
            gone || !answered || deed != Deed::Delete,
            "{step}: it is left"
        );
        for view in &listed {
            let expected = match deed {
                Deed::Pause if answered => view.state == State::Paused,
                Deed::Pause | Deed::Resume if !answered => {
                    matches!(view.state, State::Running | State::Paused)
                }
                _ => view.state == State::Running,
            };
            assert!(expected, "{step}: it is {}", view.state);
            client.resume(&view.id).await.unwrap();
            let inside = guest(&client, &view.id);
            let marked = match deed {
                // The disk of then, without its processes, or everything as it was.
                Deed::Rollback { memory: false } if !is_marked_on_disk(&inside).await => {
                    assert_eq!(output(&inside, COUNTERS).await.trim(), "0", "{step}");
                    false
                }
                _ => is_marked(&inside, step).await,
            };
            let rolled_back = matches!(deed, Deed::Rollback { .. });
            assert!(marked || rolled_back, "{step}: it is of another time");
            assert!(
                !marked || !answered || !rolled_back,
                "{step}: it is as it was"
            );
        }
        let snapshots = client.snapshots().await.unwrap();
        let has_base = snapshots.iter().any(|view| view.id == self.base);
        let (takes, drops) = match deed {
            Deed::Snapshot { .. } | Deed::Rollback { .. } => (true, false),
            Deed::DeleteSnapshot => (false, true),
            Deed::Pause | Deed::Resume | Deed::Delete => (false, false),
        };
        assert!(has_base || drops, "{step}: the snapshot is gone");
        assert!(!has_base || !answered || !drops, "{step}: it is left");
        let others = snapshots.len() - usize::from(has_base);
        assert!(others <= usize::from(takes), "{step}: {snapshots:?}");
        assert!(
            others == 1 || !answered || !takes,
            "{step}: nothing was taken"
        );
        for view in snapshots.iter().filter(|view| view.memory) {
            let request = CreateRequest {
                owner: None,
                id: SandboxId::random(),
                spec: small_spec(),
                from: Some(FromSnapshot {
                    snapshot: view.id.clone(),
                    memory: true,
                }),
            };
            let copy = client.create(request).await.unwrap();
            let marked = is_marked(&guest(&client, &copy.id), step).await;
            assert_eq!(marked, view.id != self.base, "{step}: a copy");
            client.delete(&copy.id).await.unwrap();
        }
        // The copies made here were deleted a moment ago.
        let what = format!("nothing is left over after {deed:?}: {step}");
        eventually(&what, || async {
            let traces = self.world.traces();
            let clean = traces.unfinished.is_empty()
                && traces.volumes.len() == listed.len()
                && traces.groups.len() == listed.len()
                && traces.snapshots.len() == snapshots.len()
                && traces.snapshot_records.len() == snapshots.len();
            clean.then_some(())
        })
        .await;
    }

    /// Tries a step until its moment is met. Whether it was.
    async fn meet(&mut self, deed: Deed, (name, certain, seen): &Step) -> bool {
        let tries = if *certain { TRIES_OF_CERTAIN } else { TRIES };
        for _ in 0..tries {
            if deed == Deed::Resume {
                self.world.client().pause(&self.sandbox).await.unwrap();
            }
            let Outcome { killed, answered } = self.kill_at(deed, *seen).await;
            if killed {
                self.world.restart();
            }
            self.check(deed, name, answered).await;
            self.begin_anew().await;
            if killed {
                let when = if answered { "after" } else { "before" };
                println!("{deed:?}: {name}: killed {when} the answer");
                return true;
            }
        }
        println!("{deed:?}: {name}: missed");
        false
    }

    async fn walk(mut self, deed: Deed, steps: &[Step]) {
        let mut kills = 0;
        for _ in 0..ROUNDS {
            for step in steps {
                let (name, certain, _) = step;
                let killed = self.meet(deed, step).await;
                assert!(killed || !certain, "{deed:?}: {name} never came");
                kills += u32::from(killed);
            }
            if kills > 0 {
                break;
            }
        }
        assert!(kills > 0, "{deed:?} was never interrupted");
        self.world.finish();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_step_of_a_snapshot_leaves_it_whole_or_not_at_all() {
    let published = |look: &Look| look.has(&format!("pool/snapshots/{}", look.snapshot));
    let recorded = |look: &Look| look.has(&format!("snapshots/{}.json", look.snapshot));
    if let Some(scene) = Scene::open().await {
        scene
            .walk(
                Deed::Snapshot { memory: true },
                &[
                    ("room for the memory is made", true, |look| {
                        look.staged("memory", look.snapshot.as_str())
                    }),
                    ("criu holds the processes", true, Look::is_traced),
                    ("the disk is copied", true, |look| {
                        look.staged("draft", look.snapshot.as_str())
                    }),
                    ("the volume has its name", false, published),
                    ("the record is there", false, recorded),
                ],
            )
            .await;
    }
    if let Some(scene) = Scene::open().await {
        let steps: [Step; 2] = [
            ("the volume is there", false, published),
            ("the record is there", false, recorded),
        ];
        scene.walk(Deed::Snapshot { memory: false }, &steps).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_step_of_a_rollback_leaves_the_old_state_or_the_new() {
    let steps: [Step; 6] = [
        ("a copy is made ready", true, |look| {
            look.staged("rollback", look.sandbox.as_str())
        }),
        ("criu holds the processes", true, Look::is_traced),
        ("what was is kept", false, |look| {
            look.has(&format!("snapshots/{}.json", look.snapshot))
        }),
        ("the record says what comes", false, |look| {
            look.says("restoring")
        }),
        ("its processes have ended", false, |look| {
            !Path::new(&format!("/proc/{}", look.pid)).exists()
        }),
        ("the volumes are exchanged", false, |look| {
            fs::metadata(look.volume()).is_ok_and(|volume| volume.dev() != look.device)
        }),
    ];
    for memory in [false, true] {
        if let Some(scene) = Scene::open().await {
            scene.walk(Deed::Rollback { memory }, &steps).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_step_of_a_pause_or_a_resume_loses_no_process() {
    if let Some(scene) = Scene::open().await {
        let steps: [Step; 5] = [
            ("the record says so", true, |look| look.says("pausing")),
            ("criu holds the processes", true, Look::is_traced),
            ("it is tried out", true, |look| {
                look.staged("trial", look.sandbox.as_str())
            }),
            ("the record says that it is paused", false, |look| {
                look.says("paused")
            }),
            ("its processes have ended", false, |look| {
                look.processes() == 0
            }),
        ];
        scene.walk(Deed::Pause, &steps).await;
    }
    if let Some(scene) = Scene::open().await {
        let steps: [Step; 5] = [
            ("the record says so", false, |look| look.says("resuming")),
            ("a copy is put aside", true, |look| {
                look.staged("resume", look.sandbox.as_str())
            }),
            ("criu is at work", true, |look| look.processes() > 0),
            ("processes come back", true, |look| look.processes() > 2),
            ("the record says that it runs", false, |look| {
                look.says("running")
            }),
        ];
        scene.walk(Deed::Resume, &steps).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_step_of_a_deletion_is_made_up_for() {
    if let Some(scene) = Scene::open().await {
        let steps: [Step; 2] = [
            ("the record is gone", false, |look| {
                !look.has(&format!("snapshots/{}.json", look.snapshot))
            }),
            ("the volume is gone", false, |look| {
                !look.has(&format!("pool/snapshots/{}", look.snapshot))
            }),
        ];
        scene.walk(Deed::DeleteSnapshot, &steps).await;
    }
    if let Some(scene) = Scene::open().await {
        let steps: [Step; 4] = [
            ("the record says so", false, |look| look.says("deleting")),
            ("its processes have ended", false, |look| {
                look.processes() == 0
            }),
            ("the record is gone", false, |look| {
                !look.has(&format!("records/{}.json", look.sandbox))
            }),
            ("the volume is gone", false, |look| !look.volume().exists()),
        ];
        scene.walk(Deed::Delete, &steps).await;
    }
}
