//! Metrics, the files that stand in for /proc, and running out of memory.

use cove_protocol::message::{ErrorCode, PathRequest};

use crate::harness::*;

#[tokio::test]
async fn metrics_count_what_runs() {
    let guest = TestGuest::start().await;
    guest.start(argv(&["sleep", "1000"])).await.unwrap();
    let metrics = guest.metrics().await.unwrap();
    assert_eq!((metrics.running_commands, metrics.open_calls), (1, 0));
    assert!(metrics.processes >= 2 && metrics.threads >= metrics.processes);
    assert!(metrics.memory_limit_bytes > 0 && metrics.memory_bytes > 0);
    assert!(metrics.disk_used_bytes > 0 && metrics.cpus >= 1);
}

#[tokio::test]
async fn the_figures_for_commands_are_written_in_place() {
    let guest = TestGuest::start_with(|root, _| {
        std::fs::create_dir(root.join("proc")).unwrap();
        std::fs::create_dir_all(root.join("cgroup/memory")).unwrap();
        for (name, text) in [
            ("proc/meminfo", "MemTotal: 1 kB\n".repeat(200)),
            (
                "proc/cpuinfo",
                "processor\t: 5\nflags\t: x\n\nprocessor\t: 6\n\n".to_owned(),
            ),
            ("proc/online", "0-63\n".to_owned()),
            (
                "cgroup/memory/memory.usage_in_bytes",
                "104857600\n".to_owned(),
            ),
            (
                "cgroup/memory/memory.limit_in_bytes",
                "268435456\n".to_owned(),
            ),
            (
                "cgroup/memory/memory.max_usage_in_bytes",
                "209715200\n".to_owned(),
            ),
        ] {
            std::fs::write(root.join(name), text).unwrap();
        }
    })
    .await;
    guest.shell("true").await;
    let meminfo = std::fs::read_to_string(guest.path("proc/meminfo")).unwrap();
    assert!(
        meminfo.starts_with("MemTotal:         262144 kB\nMemFree:          159744 kB\n"),
        "{meminfo}"
    );
    let cpus = guest.metrics().await.unwrap().cpus as usize;
    let cpuinfo = std::fs::read_to_string(guest.path("proc/cpuinfo")).unwrap();
    assert_eq!(cpuinfo.matches("processor\t: ").count(), cpus);
    // While a command runs the figures follow.
    guest.start(argv(&["sleep", "1000"])).await.unwrap();
    std::fs::write(guest.path("cgroup/memory/memory.usage_in_bytes"), "0\n").unwrap();
    let path = guest.path("proc/meminfo");
    eventually("fresh figures", async || {
        std::fs::read_to_string(&path)
            .unwrap()
            .contains("MemFree:          262144 kB")
    })
    .await;
}

/// Reads into memory, in one piece, more than the sandbox has.
const EAT: [&str; 5] = ["dd", "if=/dev/zero", "of=/dev/null", "bs=256M", "count=1"];

#[tokio::test]
async fn running_out_of_memory_is_reported_with_limit_and_peak_and_spares_the_guest() {
    let limit: u64 = 64 * 1024 * 1024;
    let Some(group) = Cgroup::with_memory(limit) else {
        return;
    };
    let guest = TestGuest::start_with(|root, command| group.show(root, command)).await;
    let direct = within("the eater", guest.exec(argv(&EAT))).await.unwrap();
    assert_eq!((direct.exit.code, direct.exit.signal), (137, 9));
    assert!(direct.exit.oom);
    assert_eq!(direct.exit.memory_limit_bytes, limit);
    assert!(direct.exit.memory_peak_bytes > limit / 2);
    // The shell survives its child and exits with what shells say of a killed one.
    let command = format!("{}; exit $?", EAT.join(" "));
    let child = within("the eater", guest.exec(argv(&["sh", "-c", &command])))
        .await
        .unwrap();
    assert_eq!((child.exit.code, child.exit.signal), (137, 0));
    assert!(child.exit.oom);
    // The same code without a kill by the kernel is not out of memory.
    let plain = guest.exec(argv(&["sh", "-c", "exit 137"])).await.unwrap();
    assert!(!plain.exit.oom);
    let killed = guest.exec(argv(&["sh", "-c", "kill -9 $$"])).await.unwrap();
    assert!(killed.exit.signal == 9 && !killed.exit.oom);
    drop(guest);
}

#[tokio::test]
async fn a_limit_of_processes_is_reported_as_such() {
    let Some(group) = Cgroup::with_pids(1) else {
        return;
    };
    let guest = TestGuest::start_with(|_, command| group.join_on_start(command)).await;
    assert_eq!(
        code(guest.start(argv(&["true"])).await),
        ErrorCode::TooManyProcesses
    );
    // File calls need a thread each, which counts too.
    let stat = PathRequest {
        path: "/".to_owned(),
        ..PathRequest::default()
    };
    assert_eq!(code(guest.stat(stat.clone()).await), ErrorCode::Limit);
    std::fs::write(group.path.join("pids.max"), "50").unwrap();
    assert_eq!(guest.exec(argv(&["true"])).await.unwrap().exit.code, 0);
    guest.stat(stat).await.unwrap();
    drop(guest);
}
