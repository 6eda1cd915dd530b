//! Machines with their memory: captured, proven, brought back as what they were and as copies, and what hostile or
//! broken parts do to that.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cove_isolation::{
    Adopted, Afterwards, Boot, Captured, Isolation, IsolationError, Machine, Restore,
};
use cove_seats::spawner;
use cove_spawner::message::{Save, SaveReply};
use cove_wire::packet;
use rustix::process::Signal;
use tokio::time::timeout;

use crate::fixture::{TestTier, end, has_qemu, limits, run};
use crate::{LONG, qemu_of, signal};

/// A program that notes the time and a random number, again and again, in memory. The clock is wrong.
const PROGRAM: &str = "date -s @1000000000 > /dev/null; \
    while true; do echo $(date +%s) $(cat /proc/sys/kernel/random/uuid); sleep 0.05; done > /dev/shm/log 2>&1 &";
/// Lines with the wrong clock.
const WRONG: &str = "10000";
/// So many lines at least.
const SOME: usize = 3;

struct Saved {
    memory: PathBuf,
    volume: PathBuf,
    captured: Captured,
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn memory_dir(tier: &TestTier) -> PathBuf {
    let memory = tier.path("memory");
    fs::create_dir(&memory).unwrap();
    memory
}

/// Captures a machine and copies its disk in the same instant.
async fn capture(
    tier: &TestTier,
    machine: &Arc<dyn Machine>,
    volume: &Path,
    afterwards: Afterwards,
) -> Result<Saved, IsolationError> {
    let (memory, copy) = (memory_dir(tier), tier.volume());
    let (from, to) = (volume.join("disk.img"), copy.join("disk.img"));
    let at_rest = Box::new(move || fs::copy(from, to).map(drop));
    let captured = machine.capture(&memory, at_rest, afterwards).await?;
    Ok(Saved {
        memory,
        volume: copy,
        captured,
    })
}

fn restore(boot: Boot, memory: &Path) -> Restore {
    Restore {
        boot,
        memory: memory.to_owned(),
    }
}

fn failure(restored: Result<Box<dyn Machine>, IsolationError>) -> String {
    let error = restored.map(drop).expect_err("it must not be restored");
    cove_model::error::chain(&error)
}

/// The lines of the program once some were written with a clock that is right.
async fn log_of(machine: &Arc<dyn Machine>) -> (Vec<String>, Vec<String>) {
    let script = format!(
        "while [ $(grep -vc '^{WRONG}' /dev/shm/log) -lt {SOME} ]; do sleep 0.1; done; cat /dev/shm/log"
    );
    let log = run(machine, &script).await;
    // The last line may be in the middle of being written.
    let lines = log
        .lines()
        .map(str::to_owned)
        .filter(|line| line.len() > 40);
    lines.partition(|line| line.starts_with(WRONG))
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

async fn boot_id(machine: &Arc<dyn Machine>) -> String {
    run(machine, "cat /proc/sys/kernel/random/boot_id").await
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_comes_back_as_it_was_and_as_copies_with_their_own_clock_randomness_and_identity() {
    if !has_qemu() {
        return;
    }
    let tier = TestTier::open("vmmem");
    let (image, volume) = (tier.image(), tier.volume());
    let mut boot = tier.boot_of(&image, &volume, limits());
    let sandbox = boot.machine.id.clone();
    tier.tier.settled().await;
    let machine: Arc<dyn Machine> = tier.tier.boot(boot).await.unwrap().into();
    run(&machine, PROGRAM).await;
    let wait = format!("while [ $(grep -c . /dev/shm/log) -lt {SOME} ]; do sleep 0.1; done");
    run(&machine, &wait).await;
    run(&machine, "echo not flushed > /file").await;
    let (id, began) = (boot_id(&machine).await, now());

    // It goes on, and its clock is right before any program runs again.
    let saved = capture(&tier, &machine, &volume, Afterwards::Continue).await;
    let saved = saved.unwrap();
    println!("stood still for {} ms", saved.captured.stopped_us / 1000);
    assert!(saved.captured.memory_bytes > 16 << 20);
    tier.tier.fits(&saved.captured.needs).unwrap();
    let (before, after) = log_of(&machine).await;
    assert!(before.len() >= SOME, "{before:?}");

    // A trial leaves nothing, and the disk as it is.
    let disk = fs::read(saved.volume.join("disk.img")).unwrap();
    boot = tier.boot_of(&image, &saved.volume, limits());
    tier.tier.prove(restore(boot, &saved.memory)).await.unwrap();
    assert!(fs::read(saved.volume.join("disk.img")).unwrap() == disk);

    // A copy beside it: another name, boot id and limit, the same processes.
    boot = tier.boot_of(&image, &saved.volume, limits());
    boot.machine.hostname = "other".into();
    boot.machine.limits.pids = 77;
    let copy = tier.tier.restore(restore(boot, &saved.memory)).await;
    let copy: Arc<dyn Machine> = copy.unwrap().into();
    let told = "hostname; cat /etc/hostname /.cove/cgroup/pids.max /file";
    assert_eq!(run(&copy, told).await, "other\nother\n77\nnot flushed");
    assert_ne!(boot_id(&copy).await, id);
    let (before_copy, after_copy) = log_of(&copy).await;
    // The last line was begun before the capture and ended after it.
    let whole = before.len() - 1;
    assert_eq!(
        before_copy.len(),
        before.len(),
        "a program ran before its clock was set"
    );
    assert_eq!(before_copy[..whole], before[..whole]);
    let times = after.iter().chain(&after_copy).map(|line| {
        let (time, _) = line.split_once(' ').unwrap();
        time.parse::<u64>().unwrap()
    });
    for time in times {
        assert!(time >= began && time <= now() + 1, "{time}");
    }
    let numbers = |lines: &[String]| -> HashSet<String> {
        let number = |line: &String| line.split_once(' ').map(|(_, it)| it.to_owned());
        lines.iter().filter_map(number).collect()
    };
    assert!(numbers(&after).is_disjoint(&numbers(&after_copy)));
    // A copy can be captured as well.
    let again = capture(&tier, &copy, &saved.volume, Afterwards::Continue).await;
    again.unwrap();
    assert_eq!(run(&copy, "cat /file").await, "not flushed");
    end(&copy).await;

    // Held, it stands still until somebody decides, also if its engine dies; then it goes on.
    let held = capture(&tier, &machine, &volume, Afterwards::Hold).await;
    held.unwrap();
    let record = machine.record();
    drop(machine);
    let tier = tier.reopen();
    let Adopted::Running(machine) = tier.tier.adopt(&record).await.unwrap() else {
        panic!("it ended with its engine");
    };
    let machine: Arc<dyn Machine> = machine.into();
    machine.thaw().await.unwrap();
    assert_eq!(run(&machine, "cat /file").await, "not flushed");

    // Paused: nothing of it is left on the host, and it comes back as itself.
    let paused = capture(&tier, &machine, &volume, Afterwards::Hold).await;
    let paused = paused.unwrap();
    end(&machine).await;
    let mut boot = tier.boot_of(&image, &volume, limits());
    boot.machine.id = sandbox;
    let back = tier.tier.restore(restore(boot, &paused.memory)).await;
    let back: Arc<dyn Machine> = back.unwrap().into();
    assert_eq!(run(&back, "hostname").await, "box");
    assert_eq!(boot_id(&back).await, id);
    assert_eq!(log_of(&back).await.0, before);
    end(&back).await;
    tier.close().await;
}

/// A connection to the supervisor, as an engine has one, and what was asked over it.
fn ask(machine: &Arc<dyn Machine>, dir: &Path) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let pid = machine.record().detail["pid"].as_i64().unwrap();
    let flags = SocketFlags::CLOEXEC;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, flags, None)?;
    let path = format!("/proc/{pid}/root/.cove/save");
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let file = |name| fs::File::create(dir.join(name));
    let (state, memory) = (file("state")?, file("memory")?);
    let save = Save { wait_ms: 60_000 };
    packet::send(&socket, &save, &[state.as_fd(), memory.as_fd()])?;
    Ok(socket)
}

/// A file system in memory of this size, gone when dropped.
struct Small(PathBuf);

impl Small {
    fn new(at: PathBuf, options: &std::ffi::CStr) -> Self {
        fs::create_dir(&at).unwrap();
        rustix::mount::mount(
            "tmpfs",
            &at,
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            options,
        )
        .unwrap();
        Self(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_captures_leave_the_machine_running_and_broken_memory_is_refused() {
    if !has_qemu() {
        return;
    }
    let tier = TestTier::open("vmhurt");
    let (image, volume) = (tier.image(), tier.volume());
    let machine = tier.boot(&image, &volume).await;
    run(&machine, "echo kept > /dev/shm/kept").await;

    // The disk is full, and what is done at rest fails.
    let small = Small::new(tier.path("small"), c"size=4m");
    let full = machine
        .capture(&small.0, Box::new(|| Ok(())), Afterwards::Hold)
        .await
        .unwrap_err();
    let said = cove_model::error::chain(&full);
    assert!(
        said.contains("write the memory") && said.contains("No space"),
        "{said}"
    );
    assert_eq!(run(&machine, "cat /dev/shm/kept").await, "kept");
    drop(small);
    let broken = Box::new(|| Err(io::Error::other("no copy")));
    let memory = memory_dir(&tier);
    let failed = machine.capture(&memory, broken, Afterwards::Hold).await;
    let said = cove_model::error::chain(&failed.unwrap_err());
    assert!(said.contains("no copy"), "{said}");
    assert_eq!(run(&machine, "cat /dev/shm/kept").await, "kept");

    // An engine that dies in the middle, wherever that is; callers wait meanwhile, and are served then.
    for pause_ms in [0, 30, 300] {
        let engine = ask(&machine, &memory).unwrap();
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        drop(engine);
        assert_eq!(run(&machine, "cat /dev/shm/kept").await, "kept");
    }
    let engine = ask(&machine, &memory).unwrap();
    let (reply, _) = spawner::receive_within::<SaveReply>(&engine, LONG).unwrap();
    assert!(matches!(reply, SaveReply::Saved { .. }), "{reply:?}");
    let caller = Arc::clone(&machine);
    let waits = tokio::spawn(async move { run(&caller, "cat /dev/shm/kept").await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished(), "a machine that stands still answered");
    drop(engine);
    assert_eq!(timeout(LONG, waits).await.unwrap().unwrap(), "kept");
    // One that says nothing, and one that says nonsense.
    let pid = machine.record().detail["pid"].as_i64().unwrap();
    let names = fs::metadata(format!("/proc/{pid}/root/.cove/save")).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&names.permissions()) & 0o777,
        0o600
    );

    let saved = capture(&tier, &machine, &volume, Afterwards::Continue).await;
    let saved = saved.unwrap();
    let hurt = |change: &dyn Fn(&Path)| {
        let memory = tier.path("hurt");
        copy_dir(&saved.memory, &memory);
        change(&memory);
        memory
    };
    let edit = |path: PathBuf, from: &[u8], to: &[u8]| {
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|found| found == from);
        let at = at.expect("it is there");
        bytes[at..at + to.len()].copy_from_slice(to);
        fs::write(path, bytes).unwrap();
    };
    let cut = |dir: &Path, bytes: u64| {
        let file = fs::File::options().write(true).open(dir.join("memory"));
        file.unwrap().set_len(bytes).unwrap();
    };
    let whole = fs::metadata(saved.memory.join("memory")).unwrap().len();
    let cases: [(PathBuf, &str); 5] = [
        (
            hurt(&|dir| cut(dir, whole - 4096)),
            "read the captured memory",
        ),
        // Nothing but zeros: what runs there ends at once, or never answers.
        (
            hurt(&|dir| {
                cut(dir, 0);
                cut(dir, whole);
            }),
            "restore the machine",
        ),
        (
            hurt(&|dir| fs::write(dir.join("state"), [7; 50_000]).unwrap()),
            "restore the machine",
        ),
        // Of another kind of machine, as QEMU writes it; and of another version of it, as this host does.
        (
            hurt(&|dir| edit(dir.join("state"), b"microvm", b"pc-i440")),
            "restore the machine",
        ),
        (
            hurt(&|dir| edit(dir.join("machine.json"), b"\"qemu\":\"1", b"\"qemu\":\"9")),
            "captured with QEMU 9",
        ),
    ];
    for (memory, says) in cases {
        let boot = tier.boot_of(&image, &saved.volume, limits());
        let said = failure(tier.tier.restore(restore(boot, &memory)).await);
        assert!(said.contains(says), "{says}: {said}");
        println!("{said}");
    }
    let mut more = limits();
    more.memory_mb += 64;
    let boot = tier.boot_of(&image, &saved.volume, more);
    let said = failure(tier.tier.restore(restore(boot, &saved.memory)).await);
    assert!(said.contains("memory_mb was 320 and is 384"), "{said}");
    // None of that hurt the original, or what was captured.
    assert_eq!(run(&machine, "cat /dev/shm/kept").await, "kept");
    let boot = tier.boot_of(&image, &saved.volume, limits());
    let copy = tier.tier.restore(restore(boot, &saved.memory)).await;
    let copy: Arc<dyn Machine> = copy.unwrap().into();
    assert_eq!(run(&copy, "cat /dev/shm/kept").await, "kept");
    end(&copy).await;

    // QEMU stands still, and is killed while it is asked to save: the capture fails, and the machine has ended.
    let (qemu, _) = qemu_of(&machine);
    signal(qemu, Signal::STOP);
    let (captured, memory) = (Arc::clone(&machine), memory_dir(&tier));
    let capturing = tokio::spawn(async move {
        let at_rest = Box::new(|| Ok(()));
        captured.capture(&memory, at_rest, Afterwards::Hold).await
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!capturing.is_finished());
    signal(qemu, Signal::KILL);
    timeout(LONG, capturing)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    timeout(LONG, machine.exited()).await.unwrap();
    machine.dispose().await.unwrap();
    tier.close().await;
}
