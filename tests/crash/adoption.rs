//! What a new engine finds running, and what its callers find of their work.

use std::path::Path;

use cove_model::{EventKind, State};
use cove_protocol::client::{Follow, FollowEvent, Guest};
use cove_protocol::message::{OutputFrom, PtySize, Start};
use cove_runner_api::RunnerApi;
use cove_tests::engine_host::{
    PATIENCE, World, eventually, exec, output, process_id, shell, signal,
};

use crate::PROGRAM;

async fn attach(guest: &Guest, id: &str, from: u64) -> Follow {
    guest
        .follow(OutputFrom {
            id: id.into(),
            stdout_from: from,
            stderr_from: 0,
            follow: true,
            resume: false,
        })
        .await
        .unwrap()
}

/// Reads on until the text so far satisfies `enough`; tells the text and where it ended.
async fn read_until(follow: &mut Follow, text: &mut String, enough: impl Fn(&str) -> bool) {
    let reading = async {
        while !enough(text) {
            match follow.next().await.unwrap() {
                Some(FollowEvent::Output { data, dropped, .. }) => {
                    assert_eq!(dropped, 0, "the ring lost bytes");
                    text.push_str(&String::from_utf8_lossy(&data));
                }
                Some(_) => {}
                None => panic!("the output ended with: {text}"),
            }
        }
    };
    if tokio::time::timeout(PATIENCE, reading).await.is_err() {
        panic!("not enough came: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_output_and_terminals_outlive_a_killed_engine() {
    let mut world = World::with(PROGRAM, |setup| setup.warm = 1).await;
    let client = world.client();
    let id = world.create().await.id;
    let guest = world.guest(&id);
    let counter = shell("i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done");
    let counter_id = counter.id.clone();
    let counter_pid = guest.start(counter).await.unwrap().pid;
    let terminal = Start {
        id: process_id(),
        argv: vec!["/bin/sh".into()],
        pty: Some(PtySize { cols: 80, rows: 24 }),
        stdin_open: true,
        ..Start::default()
    };
    let terminal_id = terminal.id.clone();
    let terminal_pid = guest.start(terminal).await.unwrap().pid;
    let mut stdin = guest.stdin(terminal_id.clone()).await.unwrap();
    stdin.write("marker=before\n".into()).await.unwrap();
    stdin.flush().await.unwrap();

    // A client that is attached while the engine dies loses nothing: the stream is the guest's own.
    let mut attached = attach(&guest, &counter_id, 0).await;
    let mut text = String::new();
    read_until(&mut attached, &mut text, |text| text.lines().count() >= 10).await;
    exec(&guest, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").await;
    let cpu_before = client.sample(&id).await.unwrap().cpu_usec;
    let started_before = client.get(&id).await.unwrap().started_at;
    let cursor = world.cursor().await;
    let processes_before = world.traces().processes;

    world.kill();
    let while_down = text.lines().count();
    read_until(&mut attached, &mut text, |text| {
        text.lines().count() >= while_down + 20
    })
    .await;
    world.launch();

    let view = client.get(&id).await.unwrap();
    assert_eq!(view.state, State::Running);
    assert_eq!(view.started_at, started_before);
    let batch = client.events(cursor, 10_000).await.unwrap();
    assert!(batch.next > cursor && batch.lost, "{batch:?}");
    assert!(
        batch
            .events
            .iter()
            .any(|event| event.sandbox == id && event.kind == EventKind::Adopted),
        "{batch:?}"
    );
    assert!(client.sample(&id).await.unwrap().cpu_usec >= cpu_before);

    let listed = guest.processes().await.unwrap();
    let pid_of = |id: &str| {
        listed
            .iter()
            .find(|process| process.id == id)
            .map(|p| p.pid)
    };
    assert_eq!(pid_of(&counter_id), Some(counter_pid));
    assert_eq!(pid_of(&terminal_id), Some(terminal_pid));
    // The parked seats are new; the sandbox's own processes are the same ones.
    let still = world.traces().processes;
    assert!(
        still.intersection(&processes_before).count() >= 3,
        "{still:?}"
    );

    // The attached client reads on, and one that comes back by offset gets the same bytes.
    read_until(&mut attached, &mut text, |text| {
        text.lines().count() >= while_down + 40
    })
    .await;
    let (position, _) = attached.position();
    let mut again = attach(&guest, &counter_id, 0).await;
    let mut replayed = String::new();
    read_until(&mut again, &mut replayed, |text| {
        text.len() as u64 >= position
    })
    .await;
    assert!(replayed.starts_with(&text) || text.starts_with(&replayed));
    for (index, line) in replayed.split_terminator('\n').enumerate() {
        if replayed.ends_with('\n') || index + 1 < replayed.split('\n').count() {
            assert_eq!(line, format!("line {}", index + 1));
        }
    }

    // The terminal is the same shell, through the old writer and a new one.
    stdin.write("echo seen-$marker\n".into()).await.unwrap();
    let mut viewer = attach(&guest, &terminal_id, 0).await;
    let mut screen = String::new();
    read_until(&mut viewer, &mut screen, |text| {
        text.contains("seen-before")
    })
    .await;
    let mut second = guest.stdin(terminal_id).await.unwrap();
    second.write("echo and-$((40+2))\n".into()).await.unwrap();
    read_until(&mut viewer, &mut screen, |text| text.contains("and-42")).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_died_unwatched_is_stopped_with_the_reason_and_starts_again() {
    let mut world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    exec(&world.guest(&id), "echo kept > /root/file; sync").await;
    let cpu = client.sample(&id).await.unwrap().cpu_usec;
    let pids = world.traces().processes;
    world.kill();
    for pid in pids {
        signal(pid as u32, rustix::process::Signal::KILL);
    }
    eventually("its processes are gone", || async {
        world.traces().processes.is_empty().then_some(())
    })
    .await;
    world.launch();
    let view = client.get(&id).await.unwrap();
    assert_eq!(view.state, State::Stopped);
    assert_eq!(
        view.reason.as_deref(),
        Some("PID 1 ended while the engine was down")
    );
    let traces = world.traces();
    assert!(traces.groups.is_empty(), "{traces:#?}");
    assert!(client.sample(&id).await.unwrap().cpu_usec >= cpu);
    assert_eq!(client.host().await.unwrap().promised_memory_bytes, 0);
    client.start(&id).await.unwrap();
    assert_eq!(output(&world.guest(&id), "cat /root/file").await, "kept");
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_elastic_sandbox_that_grew_unwatched_is_caught_up_with_by_the_next_engine() {
    let mut world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world
        .create_with(|spec| {
            spec.resources.memory_mb = 64;
            spec.resources.memory_max_mb = Some(512);
        })
        .await
        .id;
    let guest = world.guest(&id);
    let hungry = shell(
        "read go; echo going; awk 'BEGIN{s=sprintf(\"%1000000s\",\"\"); for(i=0;i<200;i++) a[i]=s i; print \"full\"; fflush(); while (system(\"test -e /root/end\")) system(\"sleep 0.05\"); print \"survived\"}'",
    );
    let process = hungry.id.clone();
    let hungry = Start {
        stdin_open: true,
        ..hungry
    };
    guest.start(hungry).await.unwrap();
    // The connections outlive the engine; by one of them the hungry one is told that nobody watches.
    let mut attached = attach(&guest, &process, 0).await;
    let mut stdin = guest.stdin(process).await.unwrap();
    world.kill();
    stdin.write("go\n".into()).await.unwrap();
    // Nobody watches, and it is not killed for that: its maximum is far away. On version 2 it is slowed down
    // beyond its present limit, so that it gets all it wants only when somebody watches again.
    let mut text = String::new();
    let grows_unwatched = !Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let reached = if grows_unwatched { "full" } else { "going" };
    read_until(&mut attached, &mut text, |text| text.contains(reached)).await;
    world.launch();
    read_until(&mut attached, &mut text, |text| text.contains("full")).await;
    eventually("the new engine has caught up with it", || async {
        (client.get(&id).await.unwrap().limits.memory_mb >= 200).then_some(())
    })
    .await;
    guest.start(shell("touch /root/end")).await.unwrap();
    read_until(&mut attached, &mut text, |text| text.contains("survived")).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_asked_for_politely_keeps_everything_running() {
    let mut world = World::with(PROGRAM, |setup| setup.warm = 2).await;
    let running = world.create().await.id;
    let stopped = world.create().await.id;
    world.client().stop(&stopped, 0).await.unwrap();
    world.let_go();
    // The parked children go with the engine; the sandbox stays.
    assert_eq!(world.traces().groups.len(), 1);
    world.launch();
    assert_eq!(output(&world.guest(&running), "echo alive").await, "alive");
    assert_eq!(
        world
            .client()
            .get(&stopped)
            .await
            .unwrap()
            .reason
            .as_deref(),
        Some("stopped on request")
    );
    world.client().start(&stopped).await.unwrap();
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_on_plain_directories_are_adopted_too() {
    let mut world = World::with(PROGRAM, |setup| setup.directory_backend = true).await;
    let client = world.client();
    let running = world.create().await.id;
    let deleted = world.create().await.id;
    exec(&world.guest(&running), "echo kept > /root/file").await;
    client.delete(&deleted).await.unwrap();
    world.restart();
    assert_eq!(
        output(&world.guest(&running), "cat /root/file").await,
        "kept"
    );
    assert_eq!(client.list().await.unwrap().len(), 1);
    client.delete(&running).await.unwrap();
    world.restart();
    let traces = world.traces();
    assert!(
        traces.volumes.is_empty() && traces.unfinished.is_empty() && traces.records.is_empty(),
        "{traces:#?}"
    );
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_hides_from_the_host_does_not_keep_the_others_from_being_adopted() {
    let mut world = World::start(PROGRAM).await;
    let client = world.client();
    let hiding = world.create().await.id;
    let honest = world.create().await.id;
    exec(
        &world.guest(&hiding),
        "rm /.cove/sock && ln -s /etc/passwd /.cove/sock",
    )
    .await;
    exec(&world.guest(&honest), "echo kept > /root/file").await;
    world.kill();
    world.launch();
    assert_eq!(
        output(&world.guest(&honest), "cat /root/file").await,
        "kept"
    );
    // Nobody reaches it any more, but its owner can end it, and keeps the disk.
    assert_eq!(client.get(&hiding).await.unwrap().state, State::Running);
    assert!(world.guest(&hiding).info().await.is_err());
    client.stop(&hiding, 0).await.unwrap();
    client.start(&hiding).await.unwrap();
    assert!(world.guest(&hiding).info().await.is_ok());
    world.finish();
}
