//! Services: started again, kept over stops, and read from a disk that anybody may have written.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cove_protocol::client::FollowEvent;
use cove_protocol::message::{
    Environment, ErrorCode, OutputFrom, Restart, Service, ServiceState, ServiceStatus, Signal,
    StartService,
};
use prost::Message;

use crate::harness::*;

/// What a sandbox keeps, for one guest after the other.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        Self(temporary_directory())
    }

    fn kept(&self) -> PathBuf {
        self.0.path().join("kept")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.kept().join("services").join(name)
    }

    async fn guest(&self) -> TestGuest {
        guest_with(&self.kept()).await
    }
}

/// As PID 1, so that this test is outside, as the host is.
async fn guest_with(kept: &Path) -> TestGuest {
    let mut command = Command::new("unshare");
    let program = env!("CARGO_BIN_EXE_cove-guest");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", program]);
    TestGuest::start_by(command, |_, command| {
        command.arg("--kept").arg(kept);
    })
    .await
}

fn environment(env: &[&str]) -> Environment {
    Environment {
        env: env.iter().map(|&entry| entry.to_owned()).collect(),
        cwd: "/".to_owned(),
        user: String::new(),
    }
}

fn service(name: &str, script: &str, restart: Restart) -> StartService {
    StartService {
        service: Some(Service {
            name: name.to_owned(),
            argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
            restart: restart as i32,
            ..Service::default()
        }),
        id: format!("prc_{name}"),
        environment: Some(environment(&[])),
    }
}

async fn status(guest: &TestGuest, name: &str) -> Option<ServiceStatus> {
    let all = guest.services().await.unwrap();
    all.into_iter()
        .find(|it| it.service.as_ref().is_some_and(|it| it.name == name))
}

async fn becomes(guest: &TestGuest, name: &str, state: ServiceState) -> ServiceStatus {
    let mut found = None;
    eventually(&format!("{name} is {state:?}"), async || {
        // What was seen then: a moment later it may be another again.
        found = status(guest, name).await.filter(|now| now.state() == state);
        found.is_some()
    })
    .await;
    found.unwrap()
}

async fn restarts(guest: &TestGuest, name: &str, at_least: u64) {
    eventually(&format!("{at_least} restarts of {name}"), async || {
        status(guest, name).await.unwrap().restarts >= at_least
    })
    .await;
}

/// All of its standard output so far.
async fn output(guest: &TestGuest, id: &str) -> String {
    let from = OutputFrom {
        id: id.to_owned(),
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

#[tokio::test]
async fn a_service_that_ends_is_started_again_and_its_output_goes_on() {
    let disk = Disk::new();
    let guest = disk.guest().await;
    let script = "echo run $$; exit 3";
    let started = guest
        .start_service(service("loop", script, Restart::OnFailure))
        .await
        .unwrap();
    assert_eq!(started.process, "prc_loop");
    // One follower sees several runs, and no exit between them.
    let mut follow = guest.follow(from_start("prc_loop")).await.unwrap();
    let text = within("three runs", async {
        let mut text = String::new();
        while text.lines().count() < 3 {
            match follow.next().await.unwrap() {
                Some(FollowEvent::Output { offset, data, .. }) => {
                    assert_eq!(offset, text.len() as u64);
                    text.push_str(&String::from_utf8_lossy(&data));
                }
                other => panic!("{other:?}"),
            }
        }
        text
    })
    .await;
    assert!(text.lines().all(|line| line.starts_with("run ")), "{text}");
    restarts(&guest, "loop", 2).await;
    let now = becomes(&guest, "loop", ServiceState::Waiting).await;
    assert_eq!(now.last_exit.unwrap().code, 3);
    assert!(guest.process("prc_loop").await.unwrap().exit.is_none());
    // Removing it is its end: that of its last run, or of one that began meanwhile and was ended with it.
    guest.remove_service("loop".into()).await.unwrap();
    let exit = read_exit(&mut follow).await;
    assert!(exit.code == 3 || exit.signal == libc::SIGTERM, "{exit:?}");
    assert!(guest.services().await.unwrap().is_empty());
}

#[tokio::test]
async fn the_policy_decides_whether_it_is_started_again() {
    let disk = Disk::new();
    let guest = disk.guest().await;
    for (name, script, restart, again) in [
        ("no-0", "exit 0", Restart::No, false),
        ("no-1", "exit 1", Restart::No, false),
        ("failure-0", "exit 0", Restart::OnFailure, false),
        ("failure-1", "exit 1", Restart::OnFailure, true),
        ("always-0", "exit 0", Restart::Always, true),
    ] {
        guest
            .start_service(service(name, script, restart))
            .await
            .unwrap();
        if again {
            restarts(&guest, name, 2).await;
            continue;
        }
        let ended = becomes(&guest, name, ServiceState::Ended).await;
        assert_eq!(ended.restarts, 0, "{name}");
        let id = format!("prc_{name}");
        assert!(guest.process(id).await.unwrap().exit.is_some(), "{name}");
    }
}

#[tokio::test]
async fn a_service_that_is_killed_comes_back_and_one_that_is_removed_does_not() {
    let disk = Disk::new();
    let guest = disk.guest().await;
    let script = "echo up; exec sleep 100000";
    guest
        .start_service(service("up", script, Restart::Always))
        .await
        .unwrap();
    let first = guest.process("prc_up").await.unwrap().pid;
    let kill = Signal {
        id: "prc_up".into(),
        signal: libc::SIGKILL,
        only_leader: false,
    };
    guest.signal(kill).await.unwrap();
    restarts(&guest, "up", 1).await;
    let second = guest.process("prc_up").await.unwrap();
    assert_ne!(second.pid, first);
    assert_eq!(second.kind(), cove_protocol::message::ProcessKind::Service);
    assert_eq!(second.owner, "service:up");
    let inside = format!("kill -9 {}", second.pid);
    guest.exec(argv(&["sh", "-c", &inside])).await.unwrap();
    restarts(&guest, "up", 2).await;

    guest.remove_service("up".into()).await.unwrap();
    let ended = guest.process("prc_up").await.unwrap();
    assert_eq!(ended.exit.unwrap().signal, libc::SIGTERM);
    assert!(!disk.file("up").exists());
    let again = guest.remove_service("up".into()).await;
    assert_eq!(code(again), ErrorCode::NotFound);
    drop(guest);
    let guest = disk.guest().await;
    assert!(guest.services().await.unwrap().is_empty());
}

#[tokio::test]
async fn after_a_stop_it_runs_again_with_what_commands_get_then() {
    let disk = Disk::new();
    let mut guest = disk.guest().await;
    let script = "echo token=$TOKEN own=$OWN; exec sleep 100000";
    let mut start = service("web", script, Restart::No);
    start.environment = Some(environment(&["TOKEN=first-secret", "OWN=overridden"]));
    start.service.as_mut().unwrap().env = vec!["OWN=mine".into()];
    guest.start_service(start).await.unwrap();
    let first = "token=first-secret own=mine\n";
    eventually("it says so", async || {
        output(&guest, "prc_web").await == first
    })
    .await;
    let on_disk = std::fs::read(disk.file("web")).unwrap();
    let has = |text: &str| on_disk.windows(text.len()).any(|it| it == text.as_bytes());
    assert!(has("OWN=mine") && !has("first-secret") && !has("overridden"));
    guest.shutdown(Duration::from_secs(30)).await.unwrap();
    eventually("the guest is gone", async || guest.exited().is_some()).await;
    drop(guest);

    let guest = disk.guest().await;
    let pending = status(&guest, "web").await.unwrap();
    assert_eq!(pending.state(), ServiceState::Pending);
    assert_eq!(output(&guest, "prc_web").await, first);
    let begin = environment(&["TOKEN=second-secret"]);
    guest.begin_services(begin.clone()).await.unwrap();
    // It runs when the answer comes.
    let running = status(&guest, "web").await.unwrap();
    assert_eq!(running.state(), ServiceState::Running);
    assert_eq!(running.restarts, 0);
    let both = format!("{first}token=second-secret own=mine\n");
    eventually("it goes on", async || {
        output(&guest, "prc_web").await == both
    })
    .await;
    // Once is enough.
    let pid = guest.process("prc_web").await.unwrap().pid;
    guest.begin_services(begin).await.unwrap();
    assert_eq!(guest.process("prc_web").await.unwrap().pid, pid);
}

#[tokio::test]
async fn a_stop_in_the_pause_of_a_crash_loop_keeps_the_output_and_starts_nothing() {
    let disk = Disk::new();
    let mut guest = disk.guest().await;
    guest
        .start_service(service("loop", "echo run; exit 1", Restart::Always))
        .await
        .unwrap();
    restarts(&guest, "loop", 3).await;
    becomes(&guest, "loop", ServiceState::Waiting).await;
    guest.shutdown(Duration::from_secs(30)).await.unwrap();
    eventually("the guest is gone", async || guest.exited().is_some()).await;
    drop(guest);
    let guest = disk.guest().await;
    assert!(output(&guest, "prc_loop").await.lines().count() >= 4);
}

#[tokio::test]
async fn pauses_between_runs_grow() {
    let disk = Disk::new();
    let guest = disk.guest().await;
    let script = "date +%s%N; exit 1";
    guest
        .start_service(service("loop", script, Restart::Always))
        .await
        .unwrap();
    restarts(&guest, "loop", 4).await;
    let text = output(&guest, "prc_loop").await;
    let times: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
    for (run, pair) in times.windows(2).enumerate() {
        let least = cove_limits::SERVICE_PAUSE_MIN_MS << run;
        let gap = (pair[1] - pair[0]) / 1_000_000;
        assert!(gap >= least, "run {run}: {gap} ms, not {least}");
    }
}

#[tokio::test]
async fn a_program_that_vanished_is_reported_and_tried_again() {
    let disk = Disk::new();
    let program = disk.0.path().join("program");
    write_program(&program, "#!/bin/sh\nexec sleep 100000\n");
    let mut start = service("gone", "", Restart::Always);
    start.service.as_mut().unwrap().argv = vec![program.to_str().unwrap().to_owned()];
    let mut guest = disk.guest().await;
    guest.start_service(start).await.unwrap();
    guest.shutdown(Duration::from_secs(30)).await.unwrap();
    eventually("the guest is gone", async || guest.exited().is_some()).await;
    drop(guest);

    let away = disk.0.path().join("away");
    std::fs::rename(&program, &away).unwrap();
    let guest = disk.guest().await;
    guest.begin_services(environment(&[])).await.unwrap();
    let waiting = status(&guest, "gone").await.unwrap();
    assert_eq!(waiting.state(), ServiceState::Waiting);
    assert!(waiting.error.contains("not found"), "{}", waiting.error);
    // Others are not held up by it.
    guest
        .start_service(service("other", "exec sleep 100000", Restart::No))
        .await
        .unwrap();
    std::fs::rename(&away, &program).unwrap();
    let running = becomes(&guest, "gone", ServiceState::Running).await;
    assert_eq!(running.error, "");
}

#[tokio::test]
async fn what_outlived_a_run_is_killed_before_the_next() {
    let disk = Disk::new();
    let guest = disk.guest().await;
    let script = "sleep 100000 & echo $!; exit 1";
    guest
        .start_service(service("fork", script, Restart::Always))
        .await
        .unwrap();
    restarts(&guest, "fork", 2).await;
    let text = output(&guest, "prc_fork").await;
    let first = text.lines().next().unwrap();
    let look = format!("kill -0 {first} 2>/dev/null && echo alive; true");
    // What was killed is there until it had its turn to end and was reaped.
    eventually("what outlived the first run is gone", async || {
        let seen = guest.exec(argv(&["sh", "-c", &look])).await.unwrap();
        seen.stdout.is_empty()
    })
    .await;
}

#[tokio::test]
async fn what_is_refused_changes_nothing() {
    let disk = Disk::new();
    let guest = disk.guest().await;
    let start = |change: fn(&mut Service)| {
        let mut start = service("bad", "exec sleep 100000", Restart::No);
        change(start.service.as_mut().unwrap());
        start
    };
    let refused = [
        (start(|it| it.name = "../bad".into()), ErrorCode::Invalid),
        (start(|it| it.name = ".new".into()), ErrorCode::Invalid),
        (start(|it| it.name.clear()), ErrorCode::Invalid),
        (start(|it| it.restart = 9), ErrorCode::Invalid),
        (start(|it| it.shell = "true".into()), ErrorCode::Invalid),
        (start(|it| it.env = vec!["=".into()]), ErrorCode::Invalid),
        (
            start(|it| it.argv[2] = "x".repeat(cove_limits::SERVICE_BYTES_MAX)),
            ErrorCode::Limit,
        ),
        (
            start(|it| it.argv = vec!["no-such-program".into()]),
            ErrorCode::CommandNotFound,
        ),
        (
            start(|it| it.user = "no-such-user".into()),
            ErrorCode::NoSuchUser,
        ),
    ];
    for (start, expected) in refused {
        let name = start.service.clone().unwrap().name;
        let refusal = code(guest.start_service(start).await);
        assert_eq!(refusal, expected, "{name}");
    }
    assert!(guest.services().await.unwrap().is_empty());
    let left = std::fs::read_dir(disk.kept().join("services")).unwrap();
    assert_eq!(left.count(), 0);

    for number in 0..cove_limits::SERVICES_MAX {
        let one = service(&format!("s{number}"), "exec sleep 100000", Restart::No);
        guest.start_service(one).await.unwrap();
    }
    let twice = guest.start_service(service("s0", "true", Restart::No));
    assert_eq!(code(twice.await), ErrorCode::AlreadyExists);
    let more = guest.start_service(service("more", "true", Restart::No));
    assert_eq!(code(more.await), ErrorCode::Limit);
}

/// A filesystem of one test alone, so small that it can be filled.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let disk = Self(temporary_directory());
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k,mode=755", "none"])
            .arg(disk.0.path())
            .status();
        assert!(mounted.unwrap().success());
        disk
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_takes_no_service_and_gives_up_those_it_has() {
    let disk = SmallDisk::mount();
    let kept = disk.0.path().join("kept");
    let guest = guest_with(&kept).await;
    let start = |name: &str| service(name, "exec sleep 100000", Restart::No);
    guest.start_service(start("one")).await.unwrap();
    let filler = disk.0.path().join("filler");
    assert!(std::fs::write(filler, vec![1; 1 << 20]).is_err());
    let refusal = code(guest.start_service(start("two")).await);
    assert_eq!(refusal, ErrorCode::DiskFull);
    let missing = code(guest.process("prc_two").await);
    assert_eq!(missing, ErrorCode::NotFound);
    guest.remove_service("one".into()).await.unwrap();
    let left = std::fs::read_dir(kept.join("services")).unwrap();
    assert_eq!(left.count(), 0);
}

/// The form of a file.
fn contents(service: &Service, id: &str) -> Vec<u8> {
    #[derive(Clone, PartialEq, Message)]
    struct Kept {
        #[prost(message, optional, tag = "1")]
        service: Option<Service>,
        #[prost(string, tag = "2")]
        id: String,
    }
    let kept = Kept {
        service: Some(service.clone()),
        id: id.to_owned(),
    };
    [&b"cove service 1\n"[..], &kept.encode_to_vec()].concat()
}

fn spec(name: &str) -> Service {
    let script = "exec sleep 100000";
    service(name, script, Restart::Always).service.unwrap()
}

#[tokio::test]
async fn hostile_files_of_services_are_not_read() {
    let disk = Disk::new();
    let directory = disk.kept().join("services");
    std::fs::create_dir_all(&directory).unwrap();
    set_mode(&disk.kept(), 0o700);
    set_mode(&directory, 0o700);
    let put = |name: &str, contents: &[u8]| {
        std::fs::write(directory.join(name), contents).unwrap();
        set_mode(&directory.join(name), 0o600);
    };
    let good = |name: &str| contents(&spec(name), &format!("prc_{name}"));
    put("good", &good("good"));
    put("other-name", &good("renamed"));
    put("UPPER", &good("UPPER"));
    put("garbage", &[0xff; 5000]);
    put("empty", b"");
    put("cut", &good("cut")[..30]);
    put("huge", &[good("huge"), vec![0; 200_000]].concat());
    let large = Service {
        argv: vec![String::new(); 30_000],
        ..spec("many")
    };
    put("many", &contents(&large, "prc_many"));
    let odd = Service {
        restart: 77,
        ..spec("odd")
    };
    put("odd", &contents(&odd, "prc_odd"));
    put("no-id", &contents(&spec("no-id"), ""));
    // The id of another.
    put("twin", &contents(&spec("twin"), "prc_good"));
    put("theirs", &good("theirs"));
    chown(directory.join("theirs"), Some(1000), Some(1000)).unwrap();
    put("writable", &good("writable"));
    set_mode(&directory.join("writable"), 0o620);
    put("target", &good("link"));
    symlink(directory.join("target"), directory.join("link")).unwrap();
    std::fs::remove_file(directory.join("target")).unwrap();
    let outside = disk.0.path().join("outside");
    std::fs::write(&outside, good("linked")).unwrap();
    symlink(&outside, directory.join("linked")).unwrap();
    std::fs::create_dir(directory.join("dir")).unwrap();
    let made = Command::new("mkfifo").arg(directory.join("fifo")).status();
    assert!(made.unwrap().success());

    let guest = disk.guest().await;
    let names = async || -> Vec<String> {
        let all = guest.services().await.unwrap();
        all.into_iter().map(|it| it.service.unwrap().name).collect()
    };
    assert_eq!(names().await, ["good", "twin"]);
    guest.begin_services(environment(&[])).await.unwrap();
    becomes(&guest, "good", ServiceState::Running).await;
    let twin = becomes(&guest, "twin", ServiceState::Waiting).await;
    assert!(twin.error.contains("exists already"), "{}", twin.error);
    // What stands in the place of a file hinders nobody.
    let blocked = service("dir", "exec sleep 100000", Restart::No);
    code(guest.start_service(blocked).await);
    assert_eq!(names().await, ["good", "twin"]);
    eventually("what was started for it is gone", async || {
        let process = guest.process("prc_dir").await;
        process.is_ok_and(|process| process.exit.is_some())
    })
    .await;
    guest.remove_service("twin".into()).await.unwrap();
    assert!(guest.process("prc_good").await.unwrap().exit.is_none());
}

#[tokio::test]
async fn more_services_than_there_may_be_are_not_read() {
    let disk = Disk::new();
    let directory = disk.kept().join("services");
    std::fs::create_dir_all(&directory).unwrap();
    for number in 0..2000 {
        let name = format!("s{number}");
        let text = contents(&spec(&name), &format!("prc_{name}"));
        std::fs::write(directory.join(&name), text).unwrap();
    }
    let guest = disk.guest().await;
    let found = guest.services().await.unwrap();
    assert_eq!(found.len(), cove_limits::SERVICES_MAX);
}

#[tokio::test]
async fn a_directory_that_another_user_can_change_is_not_read() {
    for spoil in [
        |path: &Path| chown(path, Some(1000), Some(1000)).unwrap(),
        |path: &Path| {
            let all = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(path, all).unwrap();
        },
        |path: &Path| {
            let moved = path.with_extension("moved");
            std::fs::rename(path, &moved).unwrap();
            symlink(&moved, path).unwrap();
        },
    ] {
        for which in ["", "services"] {
            let disk = Disk::new();
            let directory = disk.kept().join("services");
            std::fs::create_dir_all(&directory).unwrap();
            let text = contents(&spec("web"), "prc_web");
            std::fs::write(directory.join("web"), text).unwrap();
            spoil(&disk.kept().join(which).components().collect::<PathBuf>());
            let guest = disk.guest().await;
            assert!(guest.services().await.unwrap().is_empty(), "{which}");
            let start = service("new", "exec sleep 100000", Restart::No);
            assert!(guest.start_service(start).await.is_err(), "{which}");
        }
    }
}
