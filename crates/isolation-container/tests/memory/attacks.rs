//! Guests that work against their capture: they may spoil their own, never the host or a neighbour.

use std::path::PathBuf;

use cove_isolation::{Afterwards, IsolationError};

use crate::fixture::{Host, Sandbox};

/// Whatever a program did, without it the sandbox is captured and comes back.
async fn works_without(host: &Host, one: &Sandbox, program: &str) {
    let end = format!(
        "for p in /proc/[0-9]*; do read -r name < $p/comm && [ \"$name\" = {program} ] && kill -9 ${{p#/proc/}}; done 2>/dev/null; true"
    );
    one.say(&end).await;
    let gone = |said: &str| !said.lines().any(|name| name == program);
    one.until("cat /proc/[0-9]*/comm 2>/dev/null", gone).await;
    let snapshot = host.capture(one).await;
    let copy = host.restore(&snapshot, "after").await;
    assert_eq!(copy.say("hostname").await, "after");
    copy.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_connections_from_inside_does_not_stop_a_capture() {
    let host = Host::open();
    let one = host.boot("one").await;
    let storm = r#"
import socket, time
held = []
open("/tmp/storming", "w").close()
while True:
    s = socket.socket(socket.AF_UNIX); s.setblocking(False)
    try: s.connect("/.cove/sock"); held.append(s)
    except OSError: time.sleep(0.001)
    if len(held) > 50: held.pop(0).close()
"#;
    one.start("/usr/bin/python3", storm).await;
    one.until("ls /tmp", |said| said.contains("storming")).await;
    let captured = host.try_capture(&one, Afterwards::Continue).await;
    match captured {
        Ok(snapshot) => {
            let two = host.restore(&snapshot, "two").await;
            assert_eq!(two.say("hostname").await, "two");
            two.end().await;
        }
        // A connection that was given up before the guest took it cannot be saved; the one that waits
        // for it is named.
        Err(IsolationError::Uncapturable { process, reason }) => {
            assert!(reason.contains("in-flight"), "{process}: {reason}");
        }
        Err(other) => panic!("{other:?}"),
    }
    assert_eq!(one.say("echo alive").await, "alive");
    works_without(&host, &one, "python3").await;
    host.close(vec![one]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_processes_are_captured_or_refused_within_limits() {
    let host = Host::open();
    let one = host.boot("one").await;
    one.start(
        "/bin/sh",
        "i=0; while [ $i -lt 200 ]; do i=$((i+1)); sleep 1000 & done; touch /tmp/many; wait",
    )
    .await;
    one.until("ls /tmp", |said| said.contains("many")).await;
    let snapshot = host.capture(&one).await;
    let two = host.restore(&snapshot, "two").await;
    let count = two.machine.usage().await.unwrap().pids;
    assert!(count > 200, "{count} processes came back");
    host.close(vec![one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_of_a_guest_never_lead_to_the_host() {
    let host = Host::open();
    let canary = host.path("canary");
    std::fs::create_dir(&canary).unwrap();
    std::fs::write(canary.join("victim"), "untouched").unwrap();
    let one = host.boot("one").await;
    // A deleted file that is still open is made again at its path when it is restored; by then the
    // path is a link that leads somewhere else.
    let outside = canary.display();
    let source = format!(
        r#"
import os, time, socket
os.makedirs("/tmp/evil"); f = open("/tmp/evil/victim", "w+"); f.write("evil"); f.flush()
g = open("/tmp/evil/linked", "w+"); os.link("/tmp/evil/linked", "/tmp/kept"); os.unlink("/tmp/evil/linked")
s = socket.socket(socket.AF_UNIX); s.bind("/tmp/evil/new-socket"); s.listen()
os.unlink("/tmp/evil/victim"); os.rename("/tmp/evil", "/tmp/moved"); os.symlink("{outside}", "/tmp/evil")
open("/tmp/set", "w").close()
while True: time.sleep(0.01)
"#
    );
    one.start("/usr/bin/python3", &source).await;
    one.until("ls /tmp", |said| said.contains("set")).await;
    let looked = |dir: &PathBuf| {
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        (names, std::fs::read_to_string(dir.join("victim")).unwrap())
    };
    let before = looked(&canary);
    let mut all = Vec::new();
    match host.try_capture(&one, Afterwards::Continue).await {
        Ok(snapshot) => all.extend(host.try_restore(&snapshot, "two").await.ok()),
        Err(IsolationError::Uncapturable { process, reason }) => {
            assert!(process.contains("python3"), "{process}: {reason}");
        }
        Err(other) => panic!("{other:?}"),
    }
    assert_eq!(looked(&canary), before, "the host's files changed");
    assert_eq!(one.say("echo alive").await, "alive");
    works_without(&host, &one, "python3").await;
    assert_eq!(looked(&canary), before, "the host's files changed");
    all.push(one);
    host.close(all).await;
}

/// The process that has a sandbox in its hands while it is captured.
fn tracer(pid: i64) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"))
        .and_then(|rest| rest.trim().parse().ok())
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn criu_killed_in_the_middle_harms_nothing() {
    let host = Host::open();
    let one = host.boot("one").await;
    one.start(
        "/bin/sh",
        "i=0; while true; do i=$((i+1)); echo $i > /tmp/n; sleep 0.01; done",
    )
    .await;
    one.until("cat /tmp/n", |said| said.parse::<u64>().unwrap_or(0) > 2)
        .await;
    let pid = one.machine.record().detail["pid"].as_i64().unwrap();
    for afterwards in [Afterwards::Continue, Afterwards::Hold] {
        let memory = host.path("memory");
        std::fs::create_dir(&memory).unwrap();
        let kill = Box::new(move || {
            let criu = rustix::process::Pid::from_raw(tracer(pid)).unwrap();
            rustix::process::kill_process(criu, rustix::process::Signal::KILL)?;
            Ok(())
        });
        assert!(
            one.machine
                .capture(&memory, kill, afterwards)
                .await
                .is_err()
        );
        let now: u64 = one
            .until("cat /tmp/n", |said| !said.is_empty())
            .await
            .parse()
            .unwrap();
        one.until("cat /tmp/n", |said| {
            said.parse::<u64>().unwrap_or(0) > now + 2
        })
        .await;
    }
    let snapshot = host.capture(&one).await;
    host.prove(&snapshot).await.unwrap();
    host.close(vec![one]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_too_large_to_pass_through_memory_goes_straight_to_the_disk() {
    let host = Host::open();
    let one = host.boot("one").await;
    let source = r#"
import time, os
blob = bytearray(os.urandom(1 << 20)) * 440
open("/tmp/full", "w").close()
while not os.path.exists("/tmp/ask"): time.sleep(0.01)
open("/tmp/sum", "w").write(str(len(blob)))
time.sleep(1000)
"#;
    one.start("/usr/bin/python3", source).await;
    one.until("ls /tmp", |said| said.contains("full")).await;
    let snapshot = host.capture(&one).await;
    assert!(snapshot.captured.memory_bytes > 440 << 20);
    one.end().await;
    let owners = std::fs::read_dir(&snapshot.memory)
        .unwrap()
        .map(|entry| std::os::unix::fs::MetadataExt::uid(&entry.unwrap().metadata().unwrap()));
    assert!(
        owners.into_iter().all(|uid| uid == 0),
        "the sandbox owns its images"
    );
    let two = host.restore(&snapshot, "two").await;
    two.say("touch /tmp/ask").await;
    two.until("cat /tmp/sum", |said| said == (440_u64 << 20).to_string())
        .await;
    host.close(vec![two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_can_tell_whether_memory_works() {
    let host = Host::open();
    let told = host.tier.probe_memory().await.unwrap();
    assert!(told.contains("criu 4"), "{told}");
    host.close(Vec::new()).await;
}

/// CRIU's log quotes names of files. One that looks like CRIU's own words must not make Cove tell what runs
/// on the host.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_named_like_a_line_of_the_log_tells_nothing_about_the_host() {
    let host = Host::open();
    let one = host.boot("one").await;
    let ours = std::process::id();
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let name = name.trim();
    for crafted in [
        format!("Error (x): non-zombie {ours} x"),
        format!("Error (x): x (ctty pid_real {ours} x"),
        format!("x\\n(00.1) Error (criu: Dumping task (pid: {ours} comm: x)\\n"),
    ] {
        // A connection that was given up before anybody took it cannot be saved. The log names its socket,
        // and the file, by then.
        let source = format!(
            r#"
import os, socket, time
held = open("/tmp/{crafted}", "w")
one = socket.socket(socket.AF_UNIX)
one.bind("\0{crafted}")
one.listen()
two = socket.socket(socket.AF_UNIX)
two.connect("\0{crafted}")
two.close()
open("/tmp/held", "w").close()
while True: time.sleep(0.01)
"#
        );
        one.start("/usr/bin/python3", &source).await;
        one.until("ls /tmp", |said| said.contains("held")).await;
        let error = host
            .try_capture(&one, Afterwards::Continue)
            .await
            .err()
            .unwrap();
        let IsolationError::Uncapturable { process, reason } = &error else {
            panic!("{error:?}");
        };
        let told = format!("{process}: {reason}");
        assert!(!told.contains(name), "{crafted}: {told}");
        assert!(!told.contains(&ours.to_string()), "{crafted}: {told}");
        assert!(
            !told.contains("zombie") && !told.contains("ctty pid"),
            "{told}"
        );
        one.say("rm /tmp/held").await;
        works_without(&host, &one, "python3").await;
    }
    host.close(vec![one]).await;
}
