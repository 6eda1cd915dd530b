//! How a sandbox ends: asked, made to, or by the death of its PID 1.

use cove_model::{EventKind, State};
use cove_runner_api::RunnerApi;
use cove_tests::engine_host::{World, eventually, output, shell, signal, succeed};

use crate::PROGRAM;

/// Enough for a process on a busy machine to do something in it.
const GRACE_MS: u64 = 5000;

#[tokio::test(flavor = "multi_thread")]
async fn stop_asks_first_and_what_it_writes_then_is_on_disk() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    let guest = world.guest(&id);
    // Takes its time after SIGTERM; only somebody who waits finds the second file.
    guest
        .start(shell(
            "trap 'sleep 1; echo bye > /root/bye; exit 0' TERM; touch /root/ready; while :; do sleep 0.1; done",
        ))
        .await
        .unwrap();
    eventually("the trap is set", || async {
        (output(&guest, "ls /root").await == "ready").then_some(())
    })
    .await;
    client.stop(&id, 120_000).await.unwrap();
    client.start(&id).await.unwrap();
    assert_eq!(output(&guest, "cat /root/bye").await, "bye");
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ignores_the_request_is_killed_at_the_end_of_the_grace_time() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    let guest = world.guest(&id);
    // Tells apart what it does before it is asked and after that.
    guest
        .start(shell(
            "trap '' HUP; trap 'touch /root/asked' TERM; touch /root/ready; \
             while :; do [ -e /root/asked ] && echo x >> /root/alive; sleep 0.05; done",
        ))
        .await
        .unwrap();
    eventually("the trap is set", || async {
        (output(&guest, "ls /root").await == "ready").then_some(())
    })
    .await;
    let stopped = client.stop(&id, GRACE_MS).await.unwrap();
    assert_eq!(stopped.state, State::Stopped);
    assert!(world.traces().processes.is_empty());
    client.start(&id).await.unwrap();
    let listed = output(&guest, "ls /root").await;
    assert!(
        listed.contains("alive"),
        "it had no grace time, but left: {listed}"
    );
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_pid_1_means_stopped_with_a_reason_and_a_sandbox_that_starts_again() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    succeed(&world.guest(&id), "echo kept > /root/file; sync").await;
    let cpu_before = client.sample(&id).await.unwrap().cpu_usec;
    let cursor = world.cursor().await;
    let pids = world.traces().processes;
    // Nothing else runs in it.
    let [pid] = pids.iter().copied().collect::<Vec<_>>()[..] else {
        panic!("expected PID 1 alone, found {pids:?}");
    };
    signal(pid as u32, rustix::process::Signal::KILL);
    let event = world
        .event(cursor, "it stopped", |event| {
            matches!(
                event.kind,
                EventKind::State {
                    state: State::Stopped,
                    ..
                }
            )
        })
        .await;
    assert_eq!(event.sandbox, id);
    let view = client.get(&id).await.unwrap();
    assert_eq!(view.state, State::Stopped);
    assert_eq!(view.reason.as_deref(), Some("PID 1 ended"));
    let traces = world.traces();
    assert!(traces.groups.is_empty(), "{traces:#?}");
    assert!(client.sample(&id).await.unwrap().cpu_usec >= cpu_before);
    client.start(&id).await.unwrap();
    assert_eq!(output(&world.guest(&id), "cat /root/file").await, "kept");
    world.finish();
}
