//! SIGKILL at random moments while sandboxes are snapshotted, forked, rolled back, frozen and put to
//! sleep. Each is in the state before or after what was asked of it, never between, and what a
//! snapshot holds is what its sandbox held.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cove_model::{SandboxId, SnapshotId, State};
use cove_runner_api::wire::Client;
use cove_runner_api::{
    CreateRequest, FromSnapshot, RollbackRequest, RunnerApi, RunnerError, SnapshotRequest,
};
use cove_tests::engine_host::{World, guest, output, small_spec, succeed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::PROGRAM;

const KILLS: u32 = 40;
const WORKERS: usize = 3;
/// Sandboxes alive at once, about, and snapshots kept.
const POPULATION: usize = 5;
const SNAPSHOTS: usize = 12;
/// No new round begins after this.
const TIME_LIMIT: Duration = Duration::from_secs(90);
/// The shortest and, on a machine that is quick enough, the longest time that an engine has before it is killed.
const SOONEST_US: u64 = 5_000;
const LATEST_US: u64 = 500_000;

/// What may be in a sandbox's file: one value when the last change was answered, more when not.
type Values = BTreeSet<u64>;

#[derive(Default)]
struct Told {
    alive: BTreeMap<SandboxId, Values>,
    snapshots: BTreeMap<SnapshotId, Values>,
    deleted_snapshots: BTreeSet<SnapshotId>,
    unsure: BTreeMap<SandboxId, Values>,
    unsure_snapshots: BTreeMap<SnapshotId, Values>,
    busy: BTreeSet<SandboxId>,
    answered: u64,
}

type Shared = Arc<Mutex<Told>>;

fn is_crash(error: &RunnerError) -> bool {
    matches!(error, RunnerError::Unreachable { .. })
}

struct Worker {
    client: Client,
    told: Shared,
    random: StdRng,
    memory: bool,
}

impl Worker {
    async fn run(mut self) {
        while self.turn().await {
            self.told.lock().unwrap().answered += 1;
        }
    }

    /// Does one thing; false when the engine went away under it.
    async fn turn(&mut self) -> bool {
        let picked = {
            let mut told = self.told.lock().unwrap();
            let idle: Vec<SandboxId> = told
                .alive
                .keys()
                .filter(|id| !told.busy.contains(*id))
                .cloned()
                .collect();
            let picked =
                (!idle.is_empty()).then(|| idle[self.random.random_range(0..idle.len())].clone());
            if let Some(id) = &picked {
                told.busy.insert(id.clone());
            }
            picked
        };
        let Some(id) = picked else {
            return self.create(None).await;
        };
        let went_on = self.change(&id).await;
        self.told.lock().unwrap().busy.remove(&id);
        went_on
    }

    fn any_snapshot(&mut self) -> Option<(SnapshotId, Values)> {
        let told = self.told.lock().unwrap();
        if told.snapshots.is_empty() {
            return None;
        }
        let at = self.random.random_range(0..told.snapshots.len());
        told.snapshots
            .iter()
            .nth(at)
            .map(|(id, values)| (id.clone(), values.clone()))
    }

    async fn change(&mut self, id: &SandboxId) -> bool {
        let (alive, kept) = {
            let told = self.told.lock().unwrap();
            (told.alive.len(), told.snapshots.len())
        };
        match self.random.random_range(0..100) {
            0..25 => self.snapshot(id).await,
            25..45 if alive < POPULATION => {
                let from = self.any_snapshot();
                self.create(from).await
            }
            45..65 => self.roll_back(id).await,
            65..75 if alive > 2 => self.delete(id).await,
            75..85 if kept > SNAPSHOTS => self.delete_snapshot().await,
            85..95 if self.memory => self.sleep(id).await,
            _ => self.write(id).await,
        }
    }

    async fn create(&mut self, from: Option<(SnapshotId, Values)>) -> bool {
        let id = SandboxId::random();
        let (from, values) = match from {
            Some((snapshot, values)) => {
                let memory = false;
                (Some(FromSnapshot { snapshot, memory }), values)
            }
            None => (None, Values::from([0])),
        };
        self.told
            .lock()
            .unwrap()
            .unsure
            .insert(id.clone(), values.clone());
        let request = CreateRequest {
            owner: None,
            id: id.clone(),
            spec: small_spec(),
            from,
        };
        match self.client.create(request).await {
            Ok(_) => {
                let mut told = self.told.lock().unwrap();
                told.unsure.remove(&id);
                told.alive.insert(id, values);
                true
            }
            // Deleted by another worker between being picked and being used.
            Err(RunnerError::NotFound { .. }) => {
                self.told.lock().unwrap().unsure.remove(&id);
                true
            }
            Err(error) => crash("create", &error),
        }
    }

    async fn write(&mut self, id: &SandboxId) -> bool {
        let value: u64 = self.random.random_range(1..1_000_000_000);
        let before = self.values(id);
        self.set(id, before.iter().copied().chain([value]).collect());
        let command = format!("echo {value} > /root/new && mv /root/new /root/value");
        let done = guest(&self.client, id)
            .exec(cove_tests::engine_host::shell(&command))
            .await;
        if done.is_ok_and(|done| done.exit.code == 0) {
            self.set(id, Values::from([value]));
        }
        self.client.get(id).await.is_ok()
    }

    async fn snapshot(&mut self, id: &SandboxId) -> bool {
        let snapshot = SnapshotId::random();
        let values = self.values(id);
        self.told
            .lock()
            .unwrap()
            .unsure_snapshots
            .insert(snapshot.clone(), values.clone());
        let request = SnapshotRequest {
            id: snapshot.clone(),
            sandbox: id.clone(),
            memory: self.memory && self.random.random_range(0..2) == 0,
            unless_unchanged: false,
        };
        match self.client.snapshot(request).await {
            Ok(_) => {
                let mut told = self.told.lock().unwrap();
                told.unsure_snapshots.remove(&snapshot);
                told.snapshots.insert(snapshot, values);
                true
            }
            Err(error) => crash("snapshot", &error),
        }
    }

    async fn roll_back(&mut self, id: &SandboxId) -> bool {
        let Some((to, target)) = self.any_snapshot() else {
            return self.snapshot(id).await;
        };
        let (keep, before) = (SnapshotId::random(), self.values(id));
        self.set(id, before.union(&target).copied().collect());
        self.told
            .lock()
            .unwrap()
            .unsure_snapshots
            .insert(keep.clone(), before.clone());
        let request = RollbackRequest {
            sandbox: id.clone(),
            to,
            keep: keep.clone(),
            memory: false,
        };
        match self.client.rollback(request).await {
            Ok(_) => {
                self.set(id, target);
                let mut told = self.told.lock().unwrap();
                told.unsure_snapshots.remove(&keep);
                told.snapshots.insert(keep, before);
                true
            }
            Err(RunnerError::NotFound { .. }) => {
                self.set(id, before);
                self.told.lock().unwrap().unsure_snapshots.remove(&keep);
                true
            }
            Err(error) => crash("roll back", &error),
        }
    }

    /// Freezes or pauses, and wakes again.
    async fn sleep(&mut self, id: &SandboxId) -> bool {
        let asleep = if self.random.random_range(0..2) == 0 {
            self.client.freeze(id).await
        } else {
            self.client.pause(id).await
        };
        let awake = match asleep {
            Ok(_) => self.client.resume(id).await,
            Err(error) => Err(error),
        };
        match awake {
            Ok(view) => view.state == State::Running,
            Err(error) => crash("sleep", &error),
        }
    }

    async fn delete(&mut self, id: &SandboxId) -> bool {
        let values = self.values(id);
        {
            let mut told = self.told.lock().unwrap();
            told.alive.remove(id);
            told.unsure.insert(id.clone(), values);
        }
        match self.client.delete(id).await {
            Ok(()) => {
                self.told.lock().unwrap().unsure.remove(id);
                true
            }
            Err(error) => crash("delete", &error),
        }
    }

    async fn delete_snapshot(&mut self) -> bool {
        let Some((id, values)) = self.any_snapshot() else {
            return true;
        };
        {
            let mut told = self.told.lock().unwrap();
            told.snapshots.remove(&id);
            told.unsure_snapshots.insert(id.clone(), values);
        }
        match self.client.delete_snapshot(&id).await {
            Ok(()) => {
                let mut told = self.told.lock().unwrap();
                told.unsure_snapshots.remove(&id);
                told.deleted_snapshots.insert(id);
                true
            }
            Err(error) => crash("delete a snapshot", &error),
        }
    }

    fn values(&self, id: &SandboxId) -> Values {
        let told = self.told.lock().unwrap();
        told.alive.get(id).cloned().unwrap_or_default()
    }

    fn set(&self, id: &SandboxId, values: Values) {
        self.told.lock().unwrap().alive.insert(id.clone(), values);
    }
}

fn crash(what: &str, error: &RunnerError) -> bool {
    assert!(is_crash(error), "{what}: {error:?}");
    false
}

async fn value(client: &Client, id: &SandboxId) -> u64 {
    let text = output(&guest(client, id), "cat /root/value 2>/dev/null || echo 0").await;
    text.parse().unwrap()
}

async fn check(world: &World, told: &Shared) {
    let client = world.client();
    let listed: BTreeMap<SandboxId, State> = client
        .list()
        .await
        .unwrap()
        .into_iter()
        .map(|view| (view.id, view.state))
        .collect();
    let snapshots: BTreeSet<SnapshotId> = client
        .snapshots()
        .await
        .unwrap()
        .into_iter()
        .map(|view| view.id)
        .collect();
    let expected = {
        let mut told = told.lock().unwrap();
        told.busy.clear();
        for (id, values) in std::mem::take(&mut told.unsure) {
            if listed.contains_key(&id) {
                told.alive.insert(id, values);
            }
        }
        for (id, values) in std::mem::take(&mut told.unsure_snapshots) {
            if snapshots.contains(&id) {
                told.snapshots.insert(id, values);
            }
        }
        assert_eq!(
            told.alive.keys().collect::<BTreeSet<_>>(),
            listed.keys().collect(),
            "sandboxes"
        );
        assert_eq!(
            told.snapshots.keys().collect::<BTreeSet<_>>(),
            snapshots.iter().collect(),
            "snapshots"
        );
        told.alive.clone()
    };
    for (id, state) in &listed {
        match state {
            State::Running => {}
            State::Frozen | State::Paused => {
                client.resume(id).await.unwrap();
            }
            other => panic!("{id} is {other} after a restart"),
        }
        let found = value(&client, id).await;
        assert!(
            expected[id].contains(&found),
            "{id} holds {found}, not one of {:?}",
            expected[id]
        );
        told.lock()
            .unwrap()
            .alive
            .insert(id.clone(), Values::from([found]));
    }
    let traces = world.traces();
    let ids = |names: &mut dyn Iterator<Item = String>| names.collect::<BTreeSet<String>>();
    assert_eq!(
        traces.volumes,
        ids(&mut listed.keys().map(ToString::to_string)),
        "volumes"
    );
    assert_eq!(
        traces.snapshots,
        ids(&mut snapshots.iter().map(ToString::to_string)),
        "volumes of snapshots"
    );
    assert_eq!(
        traces.snapshot_records,
        ids(&mut snapshots.iter().map(|id| format!("{id}.json"))),
        "records of snapshots"
    );
    assert_eq!(traces.unfinished, BTreeSet::new(), "unfinished volumes");
    assert_eq!(traces.groups.len(), listed.len(), "{:#?}", traces.groups);
    let host = client.host().await.unwrap();
    assert_eq!(host.running, listed.len() as u64);
    assert_eq!(
        host.promised_memory_bytes,
        (listed.len() as u64 * small_spec().resources.memory_mb) << 20
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_while_travelling_leave_the_old_state_or_the_new() {
    travel(World::start(PROGRAM).await, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_while_memory_goes_to_disk_and_back_do_no_harm_either() {
    let world = World::start(PROGRAM).await;
    let tiers = world.client().host().await.unwrap().tiers;
    let captures = tiers[0].capabilities.contains(&"memory".to_owned());
    if !cove_tests::needs::has("criu", captures) {
        world.finish();
        return;
    }
    travel(world, true).await;
}

async fn travel(mut world: World, memory: bool) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let told: Shared = Arc::default();
    let begun = Instant::now();
    let (mut kills, mut latest) = (0, LATEST_US);
    while kills < KILLS
        && (kills < KILLS / 4
            || begun.elapsed() < TIME_LIMIT
            || told.lock().unwrap().answered <= u64::from(kills))
    {
        let before = told.lock().unwrap().answered;
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let worker = Worker {
                    client: world.client(),
                    told: Arc::clone(&told),
                    random: StdRng::seed_from_u64(random.random()),
                    memory,
                };
                tokio::spawn(worker.run())
            })
            .collect();
        let moment = random.random_range(SOONEST_US..latest);
        tokio::time::sleep(Duration::from_micros(moment)).await;
        world.kill();
        for worker in workers {
            worker
                .await
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        world.launch();
        check(&world, &told).await;
        kills += 1;
        // On a machine so slow that nothing is answered in that time, there is more of it.
        if told.lock().unwrap().answered == before && moment > latest / 2 {
            latest *= 2;
        }
    }
    // Every snapshot that was ever acknowledged holds what its sandbox held.
    let client = world.client();
    let kept = told.lock().unwrap().snapshots.clone();
    for (snapshot, values) in &kept {
        let id = SandboxId::random();
        let from = FromSnapshot {
            snapshot: snapshot.clone(),
            memory: false,
        };
        let request = CreateRequest {
            owner: None,
            id: id.clone(),
            spec: small_spec(),
            from: Some(from),
        };
        client.create(request).await.unwrap();
        let found = value(&client, &id).await;
        assert!(values.contains(&found), "{snapshot}: {found} {values:?}");
        succeed(&guest(&client, &id), "true").await;
        client.delete(&id).await.unwrap();
    }
    let answered = told.lock().unwrap().answered;
    println!(
        "{kills} kills, {answered} answers, {} snapshots at the end",
        kept.len()
    );
    assert!(answered > u64::from(kills));
    world.finish();
}
