//! What can be seen from outside: figures, events, the host's report.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cove_model::{EventKind, State};
use cove_runner_api::{Level, RunnerApi};
use cove_tests::engine_host::{World, exec, succeed};

use crate::PROGRAM;

#[tokio::test(flavor = "multi_thread")]
async fn figures_of_a_sandbox_follow_what_it_does() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    let guest = world.guest(&id);
    let idle = client.sample(&id).await.unwrap();
    assert!(idle.running);
    assert_eq!(idle.pids, 1);
    assert_eq!(idle.memory_limit_bytes, 128 << 20);
    assert_eq!(idle.disk_limit_bytes, 256 << 20);
    assert!(idle.memory_bytes > 0 && idle.memory_bytes <= idle.memory_peak_bytes);

    let begun = Instant::now();
    exec(&guest, "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done").await;
    let spent = begun.elapsed();
    succeed(
        &guest,
        "dd if=/dev/urandom of=/root/big bs=1M count=20 && sync",
    )
    .await;
    let busy = client.sample(&id).await.unwrap();
    let cpu = Duration::from_micros(busy.cpu_usec - idle.cpu_usec);
    assert!(
        cpu > Duration::from_millis(10),
        "{cpu:?} of CPU in a loop of {spent:?}"
    );
    assert!(busy.disk_bytes >= idle.disk_bytes + (20 << 20), "{busy:?}");
    assert!(busy.disk_bytes < 60 << 20, "{busy:?}");
    assert!(busy.at > idle.at);

    let all = client.samples().await.unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].0, id);

    client.stop(&id, 0).await.unwrap();
    let stopped = client.sample(&id).await.unwrap();
    assert!(!stopped.running);
    assert_eq!(stopped.pids, 0);
    assert!(stopped.cpu_usec >= busy.cpu_usec, "counters never go back");
    client.start(&id).await.unwrap();
    assert!(client.sample(&id).await.unwrap().cpu_usec >= stopped.cpu_usec);
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_taken_while_a_sandbox_ends_counts_nothing_twice() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    for _ in 0..5 {
        let before = client.sample(&id).await.unwrap().cpu_usec;
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        succeed(&world.guest(&id), busy).await;
        let used = client.sample(&id).await.unwrap().cpu_usec - before;
        let done = Arc::new(AtomicBool::new(false));
        let sampling = {
            let (client, id, done) = (client.clone(), id.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                let mut most = 0;
                while !done.load(Ordering::Relaxed) {
                    // In between its figures may be gone for a moment.
                    if let Ok(sample) = client.sample(&id).await {
                        most = most.max(sample.cpu_usec);
                    }
                }
                most
            })
        };
        client.stop(&id, 0).await.unwrap();
        done.store(true, Ordering::Relaxed);
        let most = sampling.await.unwrap();
        let stopped = client.sample(&id).await.unwrap();
        // The kernel may still book the last moments of the dead, far less than what the loop used. Counted twice,
        // all of that comes again.
        let counted = stopped.cpu_usec + used / 2;
        assert!(most <= counted, "{most} > {}, {used}", stopped.cpu_usec);
        client.start(&id).await.unwrap();
    }
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_to_who_waits_in_order_and_once() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let cursor = world.cursor().await;
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.events(cursor, 60_000).await })
    };
    let id = world.create().await.id;
    let first = waiting.await.unwrap().unwrap();
    assert!(!first.events.is_empty() && !first.lost);
    client.stop(&id, 0).await.unwrap();
    client.start(&id).await.unwrap();
    client.delete(&id).await.unwrap();
    let whole = client.events(cursor, 0).await.unwrap();
    let states: Vec<State> = whole
        .events
        .iter()
        .filter(|event| event.sandbox == id)
        .filter_map(|event| match &event.kind {
            EventKind::State { state, .. } => Some(*state),
            _ => None,
        })
        .collect();
    assert_eq!(
        states,
        [
            State::Running,
            State::Stopping,
            State::Stopped,
            State::Creating,
            State::Running,
            State::Deleting,
            State::Gone,
        ]
    );
    assert!(whole.events.is_sorted_by(|a, b| a.sequence < b.sequence));
    let after = client.events(whole.next, 0).await.unwrap();
    assert!(after.events.is_empty(), "{after:?}");
    assert_eq!(after.next, whole.next);
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_report_counts_and_finds_nothing_that_stops_sandboxes() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let running = world.create().await;
    let stopped = world.create().await;
    client.stop(&stopped.id, 0).await.unwrap();
    let report = client.host().await.unwrap();
    assert_eq!((report.sandboxes, report.running), (2, 1));
    assert_eq!(
        report.promised_memory_bytes,
        running.limits.memory_mb << 20,
        "only what runs is promised memory"
    );
    assert_eq!(
        report.promised_disk_bytes,
        (running.limits.disk_mb + stopped.limits.disk_mb) << 20
    );
    assert!(report.disk_free_bytes > 0 && report.disk_free_bytes <= report.disk_bytes);
    assert!(
        report
            .tiers
            .iter()
            .any(|tier| tier.name == "container" && tier.usable)
    );
    for finding in &report.findings {
        assert_ne!(finding.level, Level::Error, "{finding:?}");
        assert_eq!(
            finding.fix.is_some(),
            finding.level != Level::Ok,
            "a line that is not well says what to do: {finding:?}"
        );
    }
    world.finish();
}
