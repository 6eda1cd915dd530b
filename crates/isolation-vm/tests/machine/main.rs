//! Virtual machines, emulated in software: slow, so that one machine serves several questions.
#![allow(clippy::unwrap_used)]

mod fixture;
mod memory;
#[path = "../../../../tests/src/needs.rs"]
mod needs;
mod network;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_isolation::{Adopted, Isolation, IsolationError, Machine};
use cove_model::Resources;
use cove_protocol::brief;
use fixture::{TestTier, end, exec, limits, run};
use tokio::time::timeout;

pub const LONG: Duration = Duration::from_secs(300);

/// The process of QEMU under a supervisor, and what the host's kernel says of it.
fn qemu_of(machine: &Arc<dyn Machine>) -> (i32, String) {
    let supervisor = machine.record().detail["pid"].as_i64().unwrap();
    let children = format!("/proc/{supervisor}/task/{supervisor}/children");
    let children = fs::read_to_string(children).unwrap();
    let pid: i32 = children.trim().parse().unwrap();
    (
        pid,
        fs::read_to_string(format!("/proc/{pid}/status")).unwrap(),
    )
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let mut lines = status.lines();
    let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap().trim()
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// QEMU and its supervisor have no right that matters, and other users than each other.
fn check_jail(machine: &Arc<dyn Machine>) {
    let base = machine.record().detail["uid_base"].as_u64().unwrap();
    let (pid, status) = qemu_of(machine);
    let supervisor = machine.record().detail["pid"].as_i64().unwrap();
    let other = fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap();
    for (status, uid) in [(&status, base + 1), (&other, base)] {
        assert!(
            field(status, "Uid").starts_with(&format!("{uid}\t{uid}")),
            "{status}"
        );
        for set in ["CapEff", "CapPrm", "CapBnd", "CapInh"] {
            assert_eq!(field(status, set), "0000000000000000", "{set}: {status}");
        }
        assert_eq!(field(status, "NoNewPrivs"), "1");
        assert_eq!(field(status, "Seccomp"), "2", "{status}");
    }
    // Of the host they see a small tree of their own.
    let root = format!("/proc/{pid}/root");
    let mut seen: Vec<String> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    seen.sort();
    let expected = [
        ".cove", "bundle", "dev", "proc", "root", "state", "tmp", "vm",
    ];
    assert_eq!(seen, expected);
}

/// Everything that a caller can do with one machine.
async fn check_work(machine: &Arc<dyn Machine>) {
    assert_eq!(run(machine, "id -u; hostname; nproc").await, "0\nbox\n1");
    // Its own kernel.
    let host = fs::read_to_string("/proc/version").unwrap();
    assert_ne!(run(machine, "cat /proc/version").await, host.trim());
    // Much output, and calls beside each other.
    let script = "dd if=/dev/zero bs=64k count=32 2>/dev/null";
    let much = exec(machine, script).await;
    assert_eq!(much.stdout.len(), 2 << 20);
    let calls = (0..20).map(|number| {
        let machine = Arc::clone(machine);
        tokio::spawn(async move { run(&machine, &format!("echo {number}")).await })
    });
    for (number, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(call.await.unwrap(), number.to_string());
    }
    let usage = machine.usage().await.unwrap();
    assert!(
        usage.memory_bytes > 32 << 20 && usage.cpu_usec > 0,
        "{usage:?}"
    );
}

/// The limits hold inside, and the machine lives on.
async fn check_limits(machine: &Arc<dyn Machine>) {
    let pids = run(machine, "cat /.cove/cgroup/pids.max").await;
    assert_eq!(pids, "200");
    let bomb = "i=0; while [ $i -lt 300 ]; do sleep 1000 & i=$((i+1)); done; echo end";
    let bombed = exec(machine, bomb).await;
    let said = String::from_utf8_lossy(&bombed.stderr).into_owned();
    assert!(said.contains("fork"), "{said}");
    run(machine, "kill -9 -1; true").await;
    let hog = "x=0123456789abcdef; while true; do x=$x$x; done";
    let ended = exec(machine, hog).await;
    assert!(ended.exit.oom, "{:?}", ended.exit);
    assert_eq!(run(machine, "echo alive").await, "alive");
}

/// A guest that writes where it should not, and one that does not read.
async fn check_attacks(machine: &Arc<dyn Machine>) {
    // The port to the host is PID 1's alone.
    let port = "ls /dev | head -n 200; echo x > /dev/vport1p1";
    let tried = exec(machine, port).await;
    assert_ne!(tried.exit.code, 0);
    run(machine, "yes flood | head -c 300000 > /dev/ttyS0").await;
    assert_eq!(run(machine, "echo alive").await, "alive");
    // Nothing is read for a while: calls wait, and what they send is bounded.
    let (pid, _) = qemu_of(machine);
    signal(pid, rustix::process::Signal::STOP);
    let waiting: Vec<_> = (0..40)
        .map(|_| {
            let machine = Arc::clone(machine);
            tokio::spawn(async move { run(&machine, "echo late").await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(waiting.iter().all(|call| !call.is_finished()));
    let supervisor = machine.record().detail["pid"].as_i64().unwrap();
    let status = fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap();
    let resident = field(&status, "VmRSS").trim_end_matches(" kB");
    assert!(resident.parse::<u64>().unwrap() < 32_000, "{status}");
    signal(pid, rustix::process::Signal::CONT);
    for call in waiting {
        // Those that gave up meanwhile failed, and the machine answers again.
        let _ = timeout(LONG, call).await.unwrap();
    }
    assert_eq!(run(machine, "echo alive").await, "alive");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_works_withstands_attacks_outlives_its_engine_and_ends_with_qemu() {
    if !fixture::has_qemu() {
        return;
    }
    let tier = TestTier::open("vmboot");
    let (image, volume) = (tier.image(), tier.volume());
    let began = Instant::now();
    let machine = tier.boot(&image, &volume).await;
    println!("boot with a new disk image: {:?}", began.elapsed());
    check_jail(&machine);
    let idle = machine.usage().await.unwrap().memory_bytes >> 20;
    println!("memory of QEMU and its supervisor after the boot: {idle} MB of 320");
    let began = Instant::now();
    for _ in 0..20 {
        run(&machine, "true").await;
    }
    println!("exec of a shell and true: {:?}", began.elapsed() / 20);
    check_work(&machine).await;
    check_limits(&machine).await;
    check_attacks(&machine).await;
    let script = "echo kept > /tmp/kept; sleep 1000 > /dev/null 2>&1 & echo $!";
    let background = exec(&machine, script).await;
    let record = machine.record();
    drop(machine);
    let tier = tier.reopen();
    let Adopted::Running(machine) = tier.tier.adopt(&record).await.unwrap() else {
        panic!("it ended with its engine");
    };
    let machine: Arc<dyn Machine> = machine.into();
    let sleeping = String::from_utf8_lossy(&background.stdout)
        .trim()
        .to_owned();
    let found = run(&machine, &format!("cat /tmp/kept /proc/{sleeping}/comm")).await;
    assert_eq!(found, "kept\nsleep");
    let swept = tier.tier.sweep().await.unwrap();
    println!("swept beside it: {swept}");
    assert_eq!(run(&machine, "echo alive").await, "alive");

    let (pid, _) = qemu_of(&machine);
    signal(pid, rustix::process::Signal::KILL);
    timeout(LONG, machine.exited()).await.unwrap();
    machine.dispose().await.unwrap();
    assert!(matches!(
        tier.tier.adopt(&record).await.unwrap(),
        Adopted::Gone(_)
    ));
    tier.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_are_copied_grown_and_made_of_trees() {
    if !fixture::has_qemu() {
        return;
    }
    let tier = TestTier::open("vmdisk");
    let (image, volume) = (tier.image(), tier.volume());
    // As a container left it: a change over the image.
    fs::create_dir_all(volume.join("upper/etc")).unwrap();
    fs::write(volume.join("upper/etc/from"), "a container\n").unwrap();
    let machine = tier.boot(&image, &volume).await;
    assert_eq!(
        run(&machine, "cat /etc/from /etc/hostname").await,
        "a container\nbox"
    );
    assert!(
        !volume.join("upper").exists(),
        "the tree was left beside the disk"
    );
    run(&machine, "seq 1 100000 > /numbers; echo first > /state").await;
    // What was written is on the disk when it stands still.
    machine.freeze().await.unwrap();
    let copy = tier.volume();
    fs::copy(volume.join("disk.img"), copy.join("disk.img")).unwrap();
    machine.thaw().await.unwrap();
    run(&machine, "echo second > /state").await;
    brief::shutdown(unix(&machine), LONG).await.unwrap();
    timeout(LONG, machine.exited()).await.unwrap();
    machine.dispose().await.unwrap();

    let began = Instant::now();
    let larger = Resources {
        disk_mb: 512,
        ..limits()
    };
    let boot = tier.boot_of(&image, &copy, larger.clone());
    let machine: Arc<dyn Machine> = tier.tier.boot(boot).await.unwrap().into();
    println!("boot with a disk: {:?}", began.elapsed());
    assert_eq!(
        run(&machine, "cat /state; tail -n 1 /numbers").await,
        "first\n100000"
    );
    let blocks = run(&machine, "df -k / | tail -n 1").await;
    let blocks: u64 = blocks.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(blocks > 400 << 10, "{blocks} KB");
    // A full disk is told as such, and the machine lives on.
    let script = "dd if=/dev/zero of=/fill bs=1M";
    let fill = exec(&machine, script).await;
    assert!(
        String::from_utf8_lossy(&fill.stderr).contains("No space"),
        "{:?}",
        fill.stderr
    );
    assert_eq!(run(&machine, "echo alive").await, "alive");
    end(&machine).await;

    let smaller = tier.tier.boot(tier.boot_of(&image, &copy, limits())).await;
    let refused = smaller.map(drop).unwrap_err();
    assert!(
        matches!(refused, IsolationError::Unsupported(_)),
        "{refused}"
    );
    let tiny = Resources {
        disk_mb: 3,
        ..limits()
    };
    let refused = tier
        .tier
        .boot(tier.boot_of(&image, &tier.volume(), tiny))
        .await;
    let refused = refused.map(drop).unwrap_err().to_string();
    assert!(refused.contains("does not fit"), "{refused}");
    tier.close().await;
}

async fn unix(machine: &Arc<dyn Machine>) -> std::io::Result<tokio::net::UnixStream> {
    match machine.connect().await? {
        cove_runner_api::GuestStream::Unix(stream) => Ok(stream),
        _ => Err(std::io::ErrorKind::Unsupported.into()),
    }
}
