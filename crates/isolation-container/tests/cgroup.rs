//! Limits, figures and freezing by cgroups of the version that this host has. `scripts/test-cgroup-v2` runs the
//! same on a kernel with version 2 only and sets `COVE_EXPECT_CGROUP=2`, so that it cannot pass on another one.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_isolation::{IsolationError, Machine, MemoryEvent};
use cove_isolation_container::ContainerConfig;
use cove_model::Resources;
use cove_protocol::client::ExecResult;

#[path = "fixtures/tier.rs"]
mod tier;

use tier::{TestTier, end, guest_of, shell};

const APPLETS: [&str; 9] = [
    "sh", "dd", "sleep", "echo", "cat", "nproc", "grep", "true", "kill",
];
/// Anything a test waits for; far above what even an emulated machine needs.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(10);

fn open() -> TestTier {
    let config = ContainerConfig {
        warm: 0,
        ..ContainerConfig::default()
    };
    TestTier::open("cgroup", config)
}

fn limits(memory_mb: u64) -> Resources {
    Resources {
        memory_mb,
        pids: 64,
        ..Resources::default()
    }
}

async fn exec(machine: &Arc<dyn Machine>, script: &str) -> ExecResult {
    guest_of(machine).exec(shell(script)).await.unwrap()
}

async fn output(machine: &Arc<dyn Machine>, script: &str) -> String {
    let result = exec(machine, script).await;
    String::from_utf8_lossy(&result.stdout).trim().to_owned()
}

/// Reads that many megabytes into memory at once.
fn take(mb: u64) -> String {
    format!("dd if=/dev/zero of=/dev/null bs={mb}M count=1")
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "{what} did not come");
        tokio::time::sleep(LOOK).await;
    }
}

#[test]
fn the_version_is_the_one_that_is_expected() {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    match std::env::var("COVE_EXPECT_CGROUP").ok().as_deref() {
        Some("2") => assert!(unified, "version 2 is not mounted at /sys/fs/cgroup"),
        Some(other) => panic!("COVE_EXPECT_CGROUP={other}: only 2 can be expected"),
        None => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_beyond_the_limit_kills_the_command_and_is_reported() {
    let tier = open();
    let machine = tier.boot_busybox(&APPLETS, limits(64)).await;
    let killed = exec(&machine, &format!("exec {}", take(128))).await;
    assert_eq!((killed.exit.code, killed.exit.oom), (137, true));
    assert_eq!(killed.exit.memory_limit_bytes, 64 << 20);
    assert!(killed.exit.memory_peak_bytes > 32 << 20);
    let event = tokio::time::timeout(PATIENCE, machine.memory_event()).await;
    assert_eq!(event.unwrap().unwrap(), MemoryEvent::OomKilled { kills: 1 });
    let usage = machine.usage().await.unwrap();
    assert_eq!(usage.oom_kills, 1);
    assert!(usage.memory_peak_bytes > 32 << 20 && usage.memory_peak_bytes <= 64 << 20);
    assert_eq!(output(&machine, "echo alive").await, "alive");
    end(&machine).await;
    tier.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn elastic_memory_reports_pressure_and_grows() {
    let tier = open();
    let elastic = Resources {
        memory_max_mb: Some(256),
        ..limits(64)
    };
    let machine = tier.boot_busybox(&APPLETS, elastic.clone()).await;
    let busy = Arc::clone(&machine);
    let taken = tokio::spawn(async move { exec(&busy, &take(128)).await });
    // As the engine does: another step whenever the kernel reports pressure.
    let mut grown_mb = 64;
    let watched = Arc::clone(&machine);
    let growing = async {
        loop {
            match watched.memory_event().await.unwrap() {
                MemoryEvent::Pressure => {
                    grown_mb = (grown_mb * 2).min(256);
                    watched.grow_memory(&elastic, grown_mb).await.unwrap();
                }
                MemoryEvent::OomKilled { .. } => panic!("killed below the maximum"),
            }
        }
    };
    let result = tokio::select! {
        result = taken => result.unwrap(),
        () = growing => unreachable!("it does not end"),
        () = tokio::time::sleep(PATIENCE) => panic!("the command did not end"),
    };
    assert_eq!(result.exit.code, 0);
    assert!(grown_mb > 64);
    // The maximum kills.
    let killed = exec(&machine, &format!("exec {}", take(512))).await;
    assert_eq!((killed.exit.code, killed.exit.oom), (137, true));
    end(&machine).await;
    tier.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_change_while_it_runs_and_are_refused_below_use() {
    let tier = open();
    let machine = tier.boot_busybox(&APPLETS, limits(256)).await;
    let hold =
        "dd if=/dev/zero of=/dev/shm/block bs=1M count=100 && echo full > /tmp-full; sleep 1000";
    guest_of(&machine).start(shell(hold)).await.unwrap();
    until("the file", async || {
        output(&machine, "cat /tmp-full").await == "full"
    })
    .await;
    let usage = machine.usage().await.unwrap();
    assert!(usage.memory_bytes > 100 << 20, "{usage:?}");
    let refused = machine.resize(&limits(64), 64).await;
    assert!(
        matches!(refused, Err(IsolationError::LimitBelowUse { .. })),
        "{refused:?}"
    );
    machine.resize(&limits(512), 512).await.unwrap();
    until("the new limit", async || {
        output(&machine, "grep MemTotal /proc/meminfo").await == "MemTotal:         524288 kB"
    })
    .await;
    assert_eq!(exec(&machine, &take(200)).await.exit.code, 0);
    end(&machine).await;
    tier.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_beyond_the_limit_are_refused() {
    let tier = open();
    let few = Resources {
        pids: 16,
        ..limits(64)
    };
    let machine = tier.boot_busybox(&APPLETS, few).await;
    let many = "i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); done";
    let refused = exec(&machine, many).await;
    assert_ne!(refused.exit.code, 0, "40 processes fitted into 16");
    let usage = machine.usage().await.unwrap();
    assert!(usage.pids <= 16, "{usage:?}");
    end(&machine).await;
    tier.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cpu_time_is_counted_and_held_to_its_share() {
    let tier = open();
    let share = Resources {
        cpu: 0.2,
        ..limits(64)
    };
    let machine = tier.boot_busybox(&APPLETS, share).await;
    assert_eq!(output(&machine, "nproc").await, "1");
    guest_of(&machine)
        .start(shell("while true; do true; done"))
        .await
        .unwrap();
    let before = machine.usage().await.unwrap().cpu_usec;
    let begun = Instant::now();
    until("some CPU time", async || {
        machine.usage().await.unwrap().cpu_usec > before + 500_000
    })
    .await;
    // A fifth of one CPU: half a second of it takes about 2.5 s, on any machine at least this much.
    assert!(begun.elapsed() > Duration::from_millis(1200));
    end(&machine).await;
    tier.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_machine_uses_no_cpu_and_can_be_ended() {
    let tier = open();
    let machine = tier.boot_busybox(&APPLETS, limits(64)).await;
    guest_of(&machine)
        .start(shell("while true; do true; done"))
        .await
        .unwrap();
    let used = async || machine.usage().await.unwrap().cpu_usec;
    let started = used().await;
    until("it runs", async || used().await > started).await;
    machine.freeze().await.unwrap();
    // The kernel says that a process is frozen just before it leaves the CPU: its last moment is counted later.
    let mut frozen = 0;
    until("rest", async || {
        let before = std::mem::replace(&mut frozen, used().await);
        tokio::time::sleep(Duration::from_millis(300)).await;
        before == frozen
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(used().await, frozen, "something ran");
    machine.thaw().await.unwrap();
    until("it goes on", async || used().await > frozen).await;
    machine.freeze().await.unwrap();
    end(&machine).await;
    tier.close().await;
}
