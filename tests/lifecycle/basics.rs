//! The plain way through the lifecycle, and every request that is refused on it.

use cove_model::{NetworkMode, ResourcesPatch, SandboxId, State};
use cove_runner_api::{CreateRequest, RunnerApi, RunnerError};
use cove_tests::engine_host::{World, eventually, output, small_spec, succeed};

use crate::PROGRAM;

async fn walk(world: &World) {
    let client = world.client();
    let view = world.create().await;
    assert_eq!(view.state, State::Running);
    let id = view.id.clone();
    let guest = world.guest(&id);
    succeed(&guest, "echo kept > /root/file && sync").await;

    let stopped = client.stop(&id, 2000).await.unwrap();
    assert_eq!(stopped.state, State::Stopped);
    assert_eq!(stopped.reason.as_deref(), Some("stopped on request"));
    let traces = world.traces();
    assert!(traces.groups.is_empty(), "{traces:#?}");
    assert!(!client.sample(&id).await.unwrap().running);

    let started = client.start(&id).await.unwrap();
    assert_eq!(started.state, State::Running);
    assert_eq!(started.reason, None);
    assert!(started.started_at > view.started_at);
    assert_eq!(output(&guest, "cat /root/file").await, "kept");

    client.delete(&id).await.unwrap();
    client.delete(&id).await.expect("a delete can be repeated");
    assert!(matches!(
        client.get(&id).await,
        Err(RunnerError::NotFound { .. })
    ));
    nothing_is_left(world).await;
}

async fn nothing_is_left(world: &World) {
    let traces = world.traces();
    assert!(
        traces.groups.is_empty()
            && traces.processes.is_empty()
            && traces.records.is_empty()
            && traces.volumes.is_empty(),
        "{traces:#?}"
    );
    // Plain directories are emptied in the background.
    eventually("deleted volumes are gone", || async {
        world.traces().unfinished.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_survives_stop_and_start_and_nothing_survives_delete() {
    let world = World::start(PROGRAM).await;
    walk(&world).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_holds_on_plain_directories_where_disks_cannot_be_resized() {
    let world = World::with(PROGRAM, |setup| setup.directory_backend = true).await;
    walk(&world).await;
    let view = world.create().await;
    let patch = ResourcesPatch {
        disk_mb: Some(512),
        ..ResourcesPatch::default()
    };
    let refused = world.client().resize(&view.id, patch).await.unwrap_err();
    assert!(
        matches!(refused, RunnerError::Unsupported { .. }),
        "{refused:?}"
    );
    assert_eq!(
        world.client().get(&view.id).await.unwrap().limits,
        view.limits
    );
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_make_no_sense_now_are_refused_by_state() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    let conflict = |wanted: &'static str, state: State| {
        move |error: RunnerError| match error {
            RunnerError::Conflict { request, state: at } => {
                assert_eq!((request.as_str(), at), (wanted, state));
            }
            other => panic!("not a conflict: {other:?}"),
        }
    };
    conflict("start", State::Running)(client.start(&id).await.unwrap_err());
    client.stop(&id, 0).await.unwrap();
    conflict("stop", State::Stopped)(client.stop(&id, 0).await.unwrap_err());
    conflict("connect to", State::Stopped)(client.connect(&id).await.unwrap_err());

    let stranger = SandboxId::random();
    let missing = |error: RunnerError| {
        assert!(matches!(error, RunnerError::NotFound { .. }), "{error:?}");
    };
    missing(client.get(&stranger).await.unwrap_err());
    missing(client.start(&stranger).await.unwrap_err());
    missing(client.stop(&stranger, 0).await.unwrap_err());
    missing(client.sample(&stranger).await.unwrap_err());
    missing(client.connect(&stranger).await.unwrap_err());
    missing(
        client
            .resize(&stranger, ResourcesPatch::default())
            .await
            .unwrap_err(),
    );
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_creates_leave_nothing() {
    // Promises as much memory as the host has, and not a byte more.
    let world = World::with(PROGRAM, |setup| setup.memory_overcommit = Some(1.0)).await;
    let client = world.client();
    let host = client.host().await.unwrap();
    let before = (host.promised_memory_bytes, host.promised_disk_bytes);

    let error = world
        .try_create(|spec| spec.image = "nothing".into())
        .await
        .unwrap_err();
    assert!(
        matches!(&error, RunnerError::NotFound { what, .. } if what == "image"),
        "{error:?}"
    );
    let unsupported = |error: RunnerError, word: &str| match error {
        RunnerError::Unsupported { message } => assert!(message.contains(word), "{message}"),
        other => panic!("{other:?}"),
    };
    unsupported(
        world
            .try_create(|spec| spec.isolation = "vm".into())
            .await
            .unwrap_err(),
        "vm",
    );
    for (mode, entry) in [
        (NetworkMode::Open, "example.org"),
        (NetworkMode::None, "example.org"),
        (NetworkMode::Allowlist, "preset:nobody-has-this"),
    ] {
        let error = world
            .try_create(|spec| {
                spec.network.mode = mode;
                spec.network.allow = Some(vec![entry.parse().unwrap()]);
            })
            .await
            .unwrap_err();
        assert!(
            matches!(error, RunnerError::Invalid { .. }),
            "{entry}: {error:?}"
        );
    }
    unsupported(
        world
            .try_create(|spec| spec.resources.cpu = f64::from(host.cpus) + 0.5)
            .await
            .unwrap_err(),
        "CPU",
    );
    let error = world
        .try_create(|spec| spec.resources.memory_mb = 1)
        .await
        .unwrap_err();
    assert!(matches!(error, RunnerError::Invalid { .. }), "{error:?}");
    let error = world
        .try_create(|spec| spec.resources.memory_mb = (host.memory_bytes >> 20) + 1)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, RunnerError::NoCapacity { resource, .. } if resource == "memory"),
        "{error:?}"
    );
    nothing_is_left(&world).await;
    let host = client.host().await.unwrap();
    assert_eq!(
        (host.promised_memory_bytes, host.promised_disk_bytes),
        before
    );
    assert_eq!(host.sandboxes, 0);
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_id_is_refused_and_its_owner_untouched() {
    let world = World::start(PROGRAM).await;
    let view = world.create().await;
    let request = CreateRequest {
        owner: None,
        id: view.id.clone(),
        spec: small_spec(),
        from: None,
    };
    let error = world.client().create(request).await.unwrap_err();
    assert!(
        matches!(&error, RunnerError::AlreadyExists { id, .. } if id == view.id.as_str()),
        "{error:?}"
    );
    assert_eq!(output(&world.guest(&view.id), "echo alive").await, "alive");
    let host = world.client().host().await.unwrap();
    assert_eq!(host.promised_memory_bytes, view.limits.memory_mb << 20);
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn more_open_files_than_the_host_allows_are_refused_with_its_limit() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    const HOST: u64 = 9000;
    let world = World::start(PROGRAM).await;
    let engine = Pid::from_raw(world.engine_pid() as i32);
    let limit = Rlimit {
        current: Some(HOST),
        maximum: Some(HOST),
    };
    prlimit(engine, Resource::Nofile, limit).unwrap();
    let error = world
        .try_create(|spec| spec.resources.open_files = HOST + 1)
        .await
        .unwrap_err();
    match error {
        RunnerError::Unsupported { message } => {
            assert!(
                message.contains("open_files") && message.contains("9000"),
                "{message}"
            )
        }
        other => panic!("{other:?}"),
    }
    let traces = world.traces();
    assert!(
        traces.records.is_empty() && traces.volumes.is_empty(),
        "{traces:?}"
    );
    let id = world
        .create_with(|spec| spec.resources.open_files = HOST)
        .await
        .id;
    let inside = output(&world.guest(&id), "ulimit -n; ulimit -H -n").await;
    assert_eq!(inside, "9000\n9000");
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn promised_memory_is_given_back_by_stop_and_delete() {
    let world = World::with(PROGRAM, |setup| setup.memory_overcommit = Some(1.0)).await;
    let client = world.client();
    let half = (client.host().await.unwrap().memory_bytes >> 20) * 2 / 3;
    let first = world
        .create_with(|spec| spec.resources.memory_mb = half)
        .await;
    let error = world
        .try_create(|spec| spec.resources.memory_mb = half)
        .await
        .unwrap_err();
    assert!(matches!(error, RunnerError::NoCapacity { .. }), "{error:?}");
    client.stop(&first.id, 0).await.unwrap();
    let second = world
        .create_with(|spec| spec.resources.memory_mb = half)
        .await;
    let error = client.start(&first.id).await.unwrap_err();
    assert!(matches!(error, RunnerError::NoCapacity { .. }), "{error:?}");
    assert_eq!(
        client.get(&first.id).await.unwrap().state,
        State::Stopped,
        "a refused start changes nothing"
    );
    client.delete(&second.id).await.unwrap();
    client.start(&first.id).await.unwrap();
    world.finish();
}
