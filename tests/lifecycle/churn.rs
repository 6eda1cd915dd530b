//! Many sandboxes coming and going, and callers that do not stay for the answer.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cove_engine::Engine;
use cove_model::{SandboxId, State};
use cove_runner_api::{CreateRequest, ImageOwner, ImageSource, JobState, RunnerApi, RunnerError};
use cove_tests::engine_host::{World, eventually, guest, small_spec, succeed};

use crate::PROGRAM;

const CHURN: Duration = Duration::from_secs(10);
const IN_FLIGHT: usize = 4;

/// Descriptors of a process by what they refer to, numbers left out.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Namespaces that the engine's sandboxes and seats live in.
fn namespaces(world: &World) -> usize {
    let mut found = std::collections::BTreeSet::new();
    for pid in world.traces().processes {
        for kind in ["mnt", "net", "user", "pid", "ipc", "uts", "cgroup", "time"] {
            if let Ok(link) = fs::read_link(format!("/proc/{pid}/ns/{kind}")) {
                found.insert(link);
            }
        }
    }
    found.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_seconds_of_churn_leave_every_count_where_it_was() {
    let world = World::with(PROGRAM, |setup| setup.warm = 2).await;
    // One round first, so that what is made once is there.
    let id = world.create().await.id;
    world.client().delete(&id).await.unwrap();
    let settled = || async {
        eventually("the seats are full again", || async {
            // A seat has its groups before it has its namespaces, on a busy machine much earlier.
            let counts = || (namespaces(&world), descriptors(world.engine_pid()));
            let now = counts();
            tokio::time::sleep(Duration::from_millis(500)).await;
            // One kind is shared; of the others each of the two seats has its own.
            let both = now.0 > 1 && now.0 % 2 == 1;
            (world.traces().groups.len() == 2 && both && counts() == now).then_some(())
        })
        .await;
    };
    settled().await;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let own_mounts = |table: &str| {
        table
            .lines()
            .filter(|line| line.contains(world.setup.dir.to_str().unwrap()))
            .count()
    };
    let before = (
        own_mounts(&mounts),
        namespaces(&world),
        descriptors(world.engine_pid()),
        world.traces(),
    );
    let rounds = Arc::new(AtomicU64::new(0));
    let end = Instant::now() + CHURN;
    let workers: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (client, rounds) = (world.client(), Arc::clone(&rounds));
            tokio::spawn(async move {
                while Instant::now() < end {
                    let id = SandboxId::random();
                    let request = CreateRequest {
                        owner: None,
                        id: id.clone(),
                        spec: small_spec(),
                        from: None,
                    };
                    client.create(request).await.unwrap();
                    succeed(&guest(&client, &id), "echo hello > /root/file").await;
                    client.delete(&id).await.unwrap();
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    settled().await;
    println!("{} rounds in {CHURN:?}", rounds.load(Ordering::Relaxed));
    eventually("the counts are where they were", || async {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let traces = world.traces();
        let same = own_mounts(&mounts) == before.0
            && namespaces(&world) == before.1
            // One may have been on its way out when they were first counted.
            && descriptors(world.engine_pid()) <= before.2
            && traces.groups.len() == before.3.groups.len()
            && traces.processes.len() == before.3.processes.len()
            && traces.claims == before.3.claims
            && traces.records.is_empty()
            && traces.volumes.is_empty()
            && traces.unfinished.is_empty();
        if !same {
            println!(
                "mounts {} → {}, namespaces {} → {}, descriptors {} → {}, {traces:#?}",
                before.0,
                own_mounts(&mounts),
                before.1,
                namespaces(&world),
                before.2,
                descriptors(world.engine_pid())
            );
        }
        same.then_some(())
    })
    .await;
    world.finish();
}

/// Dropping a call is only possible inside the engine's process, so this one has it here.
#[tokio::test(flavor = "multi_thread")]
async fn a_create_whose_caller_goes_away_ends_as_a_whole_sandbox_or_as_nothing() {
    // The fixture makes the image and the names to clean up by; its own engine then lets go.
    let mut world = World::start(PROGRAM).await;
    world.let_go();
    let engine = Engine::open(world.setup.engine_config(), world.setup.tiers())
        .await
        .unwrap();
    assert!(
        RunnerApi::images(&engine)
            .await
            .unwrap()
            .iter()
            .any(|image| {
                image
                    .names
                    .iter()
                    .any(|name| name == small_spec().image.as_str())
            })
    );
    for delay_us in (0..20_000).step_by(1000) {
        let id = SandboxId::random();
        let request = CreateRequest {
            owner: None,
            id: id.clone(),
            spec: small_spec(),
            from: None,
        };
        let _ = tokio::time::timeout(
            Duration::from_micros(delay_us),
            RunnerApi::create(&engine, request),
        )
        .await;
        // Whatever became of it, it comes to rest, and can be deleted.
        eventually("the create comes to rest", || async {
            match RunnerApi::get(&engine, &id).await {
                Ok(view) => (view.state == State::Running).then_some(()),
                Err(RunnerError::NotFound { .. }) => Some(()),
                Err(other) => panic!("{other:?}"),
            }
        })
        .await;
        RunnerApi::delete(&engine, &id).await.unwrap();
        let traces = world.traces();
        assert!(
            traces.groups.is_empty() && traces.volumes.is_empty() && traces.records.is_empty(),
            "after {delay_us} µs: {traces:#?}"
        );
    }
    let host = engine.host().await.unwrap();
    assert_eq!(
        (host.promised_memory_bytes, host.promised_disk_bytes),
        (0, 0)
    );
    engine.close().await;
    drop(engine);
    eventually("the data directory is free", || async {
        // Tasks that hold the engine end on their own time.
        cove_tests::engine_host::unlocked(&world.setup.data_dir()).then_some(())
    })
    .await;
    world.launch();
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_cannot_be_written_down_leaves_no_machine_running() {
    let world = World::start(PROGRAM).await;
    let records = world.setup.data_dir().join("records");
    let away = world.setup.data_dir().join("records-away");
    fs::rename(&records, &away).unwrap();
    let error = world.try_create(|_| {}).await.unwrap_err();
    assert!(matches!(error, RunnerError::Internal { .. }), "{error:?}");
    fs::rename(&away, &records).unwrap();
    let traces = world.traces();
    assert!(
        traces.groups.is_empty() && traces.processes.is_empty() && traces.volumes.is_empty(),
        "{traces:#?}"
    );
    let id = world.create().await.id;
    succeed(&world.guest(&id), "true").await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_and_creates_go_on_side_by_side() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let job = client
        .add_image(
            ImageSource::Local {
                name: "other".into(),
                path: world.setup.dir.join("image").display().to_string(),
            },
            ImageOwner::Operator,
        )
        .await
        .unwrap();
    let ids: Vec<SandboxId> = {
        let mut made = Vec::new();
        for _ in 0..5 {
            made.push(world.create().await.id);
        }
        made
    };
    assert_eq!(world.job_end(&job.id).await.state, JobState::Done);
    for id in &ids {
        succeed(&world.guest(id), "true").await;
    }
    world.finish();
}
