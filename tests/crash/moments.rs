//! SIGKILL at random moments under load. What was answered holds; nothing leaks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cove_model::{ResourcesPatch, SandboxId, State};
use cove_runner_api::wire::Client;
use cove_runner_api::{CreateRequest, RunnerApi, RunnerError};
use cove_tests::engine_host::{World, eventually, exec, guest, shell, small_spec, succeed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::PROGRAM;

const KILLS: u32 = 60;
const WORKERS: usize = 4;
/// Sandboxes alive at once, about.
const POPULATION: usize = 8;
/// No new round begins after this.
const TIME_LIMIT: Duration = Duration::from_secs(90);
/// The shortest and, on a machine that is quick enough, the longest time that an engine has before it is killed.
const SOONEST_US: u64 = 1_000;
const LATEST_US: u64 = 250_000;

/// What callers heard.
#[derive(Default)]
struct Told {
    /// Created and not being deleted, with the last state that was answered, when nothing was asked
    /// since whose answer was lost.
    alive: BTreeMap<SandboxId, Option<State>>,
    /// Deletes that were answered.
    deleted: BTreeSet<SandboxId>,
    /// Asked for something and never answered: may exist or not.
    unsure: BTreeSet<SandboxId>,
    busy: BTreeSet<SandboxId>,
}

type Shared = Arc<Mutex<Told>>;

fn is_crash(error: &RunnerError) -> bool {
    matches!(error, RunnerError::Unreachable { .. })
}

/// Works until the engine goes away.
async fn work(client: Client, told: Shared, mut random: StdRng) {
    loop {
        let choice = random.random_range(0..100);
        let picked = {
            let mut told = told.lock().unwrap();
            let idle: Vec<SandboxId> = told
                .alive
                .keys()
                .filter(|id| !told.busy.contains(*id))
                .cloned()
                .collect();
            let picked = (!idle.is_empty() && (choice >= 40 || told.alive.len() > POPULATION))
                .then(|| idle[random.random_range(0..idle.len())].clone());
            if let Some(id) = &picked {
                told.busy.insert(id.clone());
            }
            picked
        };
        let went_on = match picked {
            None => create(&client, &told).await,
            Some(id) => {
                let went_on = change(&client, &told, &id, &mut random).await;
                told.lock().unwrap().busy.remove(&id);
                went_on
            }
        };
        if !went_on {
            return;
        }
    }
}

async fn create(client: &Client, told: &Shared) -> bool {
    let id = SandboxId::random();
    told.lock().unwrap().unsure.insert(id.clone());
    let request = CreateRequest {
        owner: None,
        id: id.clone(),
        spec: small_spec(),
        from: None,
    };
    match client.create(request).await {
        Ok(view) => {
            let mut told = told.lock().unwrap();
            told.unsure.remove(&id);
            told.alive.insert(id, Some(view.state));
            true
        }
        Err(error) if is_crash(&error) => false,
        Err(error) => panic!("a create failed: {error:?}"),
    }
}

async fn change(client: &Client, told: &Shared, id: &SandboxId, random: &mut StdRng) -> bool {
    let state = told.lock().unwrap().alive[id];
    let set = |state: Option<State>| {
        told.lock().unwrap().alive.insert(id.clone(), state);
    };
    let choice = random.random_range(0..100);
    let answered = if choice < 40 {
        {
            let mut told = told.lock().unwrap();
            told.alive.remove(id);
            told.unsure.insert(id.clone());
        }
        client.delete(id).await.map(|()| {
            let mut told = told.lock().unwrap();
            told.unsure.remove(id);
            told.deleted.insert(id.clone());
        })
    } else if choice < 55 && state == Some(State::Running) {
        set(None);
        client.stop(id, 0).await.map(|view| set(Some(view.state)))
    } else if state == Some(State::Stopped) {
        set(None);
        client.start(id).await.map(|view| set(Some(view.state)))
    } else if choice < 70 {
        let patch = ResourcesPatch {
            memory_mb: Some(random.random_range(96..256)),
            disk_mb: Some(random.random_range(128..512)),
            pids: Some(random.random_range(32..128)),
            ..ResourcesPatch::default()
        };
        client.resize(id, patch).await.map(drop)
    } else {
        // The guest's answers do not depend on the engine once the stream stands.
        let _ = guest(client, id).exec(shell("echo x >> /root/log")).await;
        return client.get(id).await.is_ok();
    };
    match answered {
        Ok(()) => true,
        Err(error) if is_crash(&error) => false,
        Err(error) => panic!("{id} ({state:?}): {error:?}"),
    }
}

/// Everything that was answered holds, and what is on the host is what the sandboxes explain.
async fn check(world: &World, told: &Shared) {
    let client = world.client();
    // A stop that was accepted is carried through by the next engine.
    let listed: BTreeMap<SandboxId, State> = eventually("nothing is stopping", || async {
        let views = client.list().await.unwrap();
        let settled = views.iter().all(|view| view.state != State::Stopping);
        settled.then(|| {
            views
                .into_iter()
                .map(|view| (view.id, view.state))
                .collect()
        })
    })
    .await;
    {
        let mut told = told.lock().unwrap();
        told.busy.clear();
        for (id, state) in &told.alive {
            let found = listed.get(id);
            assert!(found.is_some(), "{id} was acknowledged and is gone");
            if let Some(state) = state {
                assert_eq!(found, Some(state), "{id}");
            }
        }
        for id in &told.deleted {
            assert!(!listed.contains_key(id), "{id} was deleted and is back");
        }
        // What nobody heard of is either there whole or gone; from now on it is known.
        for id in std::mem::take(&mut told.unsure) {
            if let Some(state) = listed.get(&id) {
                told.alive.insert(id, Some(*state));
            }
        }
        for (id, state) in &mut told.alive {
            *state = listed.get(id).copied();
        }
        let known: BTreeSet<_> = told.alive.keys().collect();
        assert_eq!(known, listed.keys().collect(), "sandboxes nobody asked for");
    }
    for (id, state) in &listed {
        match state {
            State::Running => {
                exec(&guest(&client, id), "true").await;
            }
            State::Stopped => {}
            other => panic!("{id} is {other} after a restart"),
        }
    }
    let running = listed
        .values()
        .filter(|state| **state == State::Running)
        .count();
    let traces = world.traces();
    let ids: BTreeSet<String> = listed.keys().map(ToString::to_string).collect();
    assert_eq!(traces.volumes, ids, "volumes");
    let records: BTreeSet<String> = listed.keys().map(|id| format!("{id}.json")).collect();
    assert_eq!(traces.records, records, "records");
    assert_eq!(traces.unfinished, BTreeSet::new(), "unfinished volumes");
    assert_eq!(traces.mounts.len(), 1, "{:?}", traces.mounts);
    assert_eq!(traces.loops.len(), 1, "{:?}", traces.loops);
    assert_eq!(traces.claims.len(), 1, "{:?}", traces.claims);
    let seats = running..=running + world.setup.warm;
    assert!(
        seats.contains(&traces.groups.len()),
        "{running} run, but these groups exist: {:#?}",
        traces.groups
    );
    let host = client.host().await.unwrap();
    assert_eq!(host.sandboxes, listed.len() as u64);
    assert_eq!(host.running, running as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_kills_under_load_lose_nothing_acknowledged_and_leak_nothing() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut world = World::with(PROGRAM, |setup| setup.warm = 1).await;
    let told: Shared = Arc::default();
    let begun = Instant::now();
    let (mut kills, mut latest) = (0, LATEST_US);
    // A loaded machine does fewer, but never so few that they would show nothing.
    while kills < KILLS
        && (kills < KILLS / 3
            || begun.elapsed() < TIME_LIMIT
            || told.lock().unwrap().deleted.is_empty())
    {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let random = StdRng::seed_from_u64(random.random());
                tokio::spawn(work(world.client(), Arc::clone(&told), random))
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
        if told.lock().unwrap().deleted.is_empty() && moment > latest / 2 {
            latest *= 2;
        }
    }
    let survivors = told.lock().unwrap().alive.len();
    let deleted = told.lock().unwrap().deleted.len();
    println!("{kills} kills, {deleted} sandboxes deleted on the way, {survivors} survived");
    assert!(deleted > 0);
    let id = world.create().await.id;
    succeed(&world.guest(&id), "true").await;
    world.finish();
}
