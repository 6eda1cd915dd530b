//! Services come back with their sandbox, wherever its disk goes, and keep running where its memory goes.

use cove_model::{SandboxId, SnapshotId, State};
use cove_protocol::client::{FollowEvent, Guest};
use cove_protocol::message::{
    Environment, OutputFrom, Restart, Service, ServiceState, ServiceStatus, StartService,
};
use cove_runner_api::{
    CreateRequest, FromSnapshot, RollbackRequest, RunnerApi, SandboxView, SnapshotRequest,
};
use cove_tests::engine_host::{World, eventually, small_spec, succeed};

use crate::PROGRAM;

const PROCESS: &str = "prc_aaaaaaaaaaaaaaaaaaaa";

fn environment(token: &str) -> Environment {
    Environment {
        env: vec![format!("TOKEN={token}")],
        ..Environment::default()
    }
}

async fn start(guest: &Guest, token: &str) {
    let service = Service {
        name: "web".into(),
        shell: "echo token $TOKEN; exec sleep 100000".into(),
        restart: Restart::Always as i32,
        ..Service::default()
    };
    let request = StartService {
        service: Some(service),
        id: PROCESS.into(),
        environment: Some(environment(token)),
    };
    let started = guest.start_service(request).await.unwrap();
    assert_eq!(started.state(), ServiceState::Running);
}

async fn only(guest: &Guest) -> ServiceStatus {
    let mut all = guest.services().await.unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

async fn output(guest: &Guest) -> String {
    let from = OutputFrom {
        id: PROCESS.into(),
        ..OutputFrom::default()
    };
    let mut follow = guest.follow(from).await.unwrap();
    let mut text = String::new();
    while let Some(event) = follow.next().await.unwrap() {
        if let FollowEvent::Output { data, .. } = event {
            text.push_str(&String::from_utf8_lossy(&data));
        }
    }
    text
}

async fn says(guest: &Guest, expected: &str) {
    eventually(expected, || async {
        (output(guest).await == expected).then_some(())
    })
    .await;
}

/// It waits for the host, begins with what the host says, and runs then.
async fn comes_back(guest: &Guest, token: &str) {
    assert_eq!(only(guest).await.state(), ServiceState::Pending);
    guest.begin_services(environment(token)).await.unwrap();
    assert_eq!(only(guest).await.state(), ServiceState::Running);
}

async fn snapshot(world: &World, sandbox: &SandboxId, memory: bool) -> SnapshotId {
    let request = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: sandbox.clone(),
        memory,
        unless_unchanged: false,
    };
    world.client().snapshot(request).await.unwrap().id
}

async fn fork(world: &World, snapshot: &SnapshotId, memory: bool) -> SandboxView {
    let request = CreateRequest {
        owner: None,
        id: SandboxId::random(),
        spec: small_spec(),
        from: Some(FromSnapshot {
            snapshot: snapshot.clone(),
            memory,
        }),
    };
    world.client().create(request).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_comes_back_after_a_stop_a_fork_and_a_rollback() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    let guest = world.guest(&id);
    start(&guest, "one").await;
    says(&guest, "token one\n").await;
    let taken = snapshot(&world, &id, false).await;

    client.stop(&id, 120_000).await.unwrap();
    client.start(&id).await.unwrap();
    comes_back(&guest, "two").await;
    says(&guest, "token one\ntoken two\n").await;

    // Of the running sandbox only its disk was kept, which has no output of the service.
    let child = fork(&world, &taken, false).await;
    let copy = world.guest(&child.id);
    comes_back(&copy, "three").await;
    says(&copy, "token three\n").await;

    guest.remove_service("web".into()).await.unwrap();
    let back = RollbackRequest {
        sandbox: id.clone(),
        to: taken.clone(),
        keep: SnapshotId::random(),
        memory: false,
    };
    let kept = back.keep.clone();
    assert_eq!(
        client.rollback(back).await.unwrap().sandbox.state,
        State::Running
    );
    comes_back(&guest, "four").await;
    says(&guest, "token four\n").await;

    // And where it was removed it stays removed.
    let removed = fork(&world, &kept, false).await;
    let guest = world.guest(&removed.id);
    assert!(guest.services().await.unwrap().is_empty());
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_in_captured_memory_keeps_running_and_is_still_looked_after() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let host = client.host().await.unwrap();
    let captures = host.tiers[0].capabilities.contains(&"memory".to_owned());
    if !cove_tests::needs::has("criu", captures) {
        return;
    }
    let id = world.create().await.id;
    let guest = world.guest(&id);
    start(&guest, "one").await;
    says(&guest, "token one\n").await;
    let pid = guest.process(PROCESS).await.unwrap().pid;

    client.pause(&id).await.unwrap();
    client.resume(&id).await.unwrap();
    assert_eq!(guest.process(PROCESS).await.unwrap().pid, pid);
    let taken = snapshot(&world, &id, true).await;
    let child = fork(&world, &taken, true).await;
    let copy = world.guest(&child.id);
    assert_eq!(copy.process(PROCESS).await.unwrap().pid, pid);
    // The copy has variables of its own, which count from the next start on.
    copy.begin_services(environment("copy")).await.unwrap();
    assert_eq!(copy.process(PROCESS).await.unwrap().pid, pid);
    succeed(&copy, &format!("kill -9 {pid}")).await;
    says(&copy, "token one\ntoken copy\n").await;
    assert_eq!(only(&copy).await.restarts, 1);
    assert_eq!(only(&guest).await.restarts, 0);
    world.finish();
}
