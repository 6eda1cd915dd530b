//! A signal ends the server whatever it waits for, and nothing of it outlives its supervisor.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::harness::{Cove, free_port, wait_for};
use super::terminal::TerminalUser;

/// What a stop gives requests under way: a stop that waits for it fails the test.
const ENDLESS_GRACE: &[&str] = &["--shutdown-grace-s", "3600"];

fn is_alive(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
    state.is_some_and(|state| state != b'Z')
}

/// A database that takes connections and never says a word.
fn silent_database() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, format!("postgres://cove@127.0.0.1:{port}/cove"))
}

#[test]
fn a_start_that_waits_for_its_database_ends_when_told() {
    let (database, address) = silent_database();
    let mut cove = Cove::prepare(&["--database", &address], None);
    cove.add_flags(ENDLESS_GRACE);
    cove.launch(&[]);
    let (_connection, _) = database.accept().unwrap();
    let (control, runner) = (cove.role_pid("control"), cove.role_pid("runner"));
    cove.stop();
    assert!(!is_alive(control) && !is_alive(runner));
}

#[test]
fn a_control_side_that_waits_for_its_database_goes_with_its_supervisor() {
    let (database, address) = silent_database();
    let mut cove = Cove::prepare(&["--database", &address], None);
    cove.listen_at(free_port());
    for _ in 0..3 {
        cove.launch(&[]);
        let (_connection, _) = database.accept().unwrap();
        let control = cove.role_pid("control");
        // Another start at once finds the port free, and gets as far as the first one.
        cove.kill_server();
        wait_for("the control side is gone", || {
            (!is_alive(control)).then_some(())
        });
    }
    cove.launch(&[]);
    let (_connection, _) = database.accept().unwrap();
    assert!(!cove.has_ended(), "{}", cove.log());
    cove.stop();
}

#[test]
fn a_killed_supervisor_leaves_no_port_taken() {
    let mut cove = Cove::prepare(ENDLESS_GRACE, None);
    cove.listen_at(free_port());
    cove.serve();
    for _ in 0..3 {
        // A request under way would keep a control side that ends in good order for an hour.
        let address = std::fs::read_to_string(cove.data_dir().join("url")).unwrap();
        let address = address.trim().strip_prefix("http://").unwrap().to_owned();
        let mut slow = TcpStream::connect(&address).unwrap();
        slow.write_all(b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
            .unwrap();
        let control = cove.role_pid("control");
        cove.kill_server();
        cove.serve();
        wait_for("the old control side is gone", || {
            (!is_alive(control)).then_some(())
        });
    }
    cove.stop();
}

/// Ends with the test.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_stop_does_not_wait_for_those_who_follow() {
    const OF_EACH: usize = 5;
    let mut cove = Cove::start_with(ENDLESS_GRACE);
    cove.sandbox("box");
    let endless = "echo begun; exec sleep 3600";
    let detached = cove
        .ok(["exec", "--detach", "box", "-c", endless])
        .trim()
        .to_owned();
    let alone = time_to_stop(&mut cove);
    cove.serve();
    let mut followers = Vec::new();
    let (mut seats, mut streams) = (Vec::new(), Vec::new());
    for _ in 0..OF_EACH {
        for args in [
            vec!["exec", "box", "-c", endless],
            vec!["logs", "--follow", "box", &detached],
        ] {
            let mut child = cove.command(args).stdout(Stdio::piped()).spawn().unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            followers.push(Follower(child));
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            assert_eq!(line, "begun\n");
        }
        let mut stream = cove.ask("/v1/events?follow=true&after=0");
        let mut first = [0; 512];
        assert!(stream.read(&mut first).unwrap() > 0);
        streams.push(stream);
        let mut seat = TerminalUser::new(&cove, &["shell", "box"]);
        seat.press("echo here-$((40+2))\n");
        seat.expect("here-42");
        seats.push(seat);
    }
    let took = time_to_stop(&mut cove);
    let count = followers.len() + seats.len() + streams.len();
    println!("a stop with {count} followers took {took:?}, one without them {alone:?}");
    // What this machine takes for a stop that has nobody to wait for, and what followers may add to it.
    let most = 2 * alone + Duration::from_secs(2);
    assert!(
        took <= most,
        "{took:?} with {count} followers, {alone:?} alone"
    );
}

fn time_to_stop(cove: &mut Cove) -> Duration {
    let started = Instant::now();
    cove.stop();
    started.elapsed()
}

/// Stands before a database: hangs up on everybody until it is opened.
struct Door {
    open: Arc<AtomicBool>,
    port: u16,
}

impl Door {
    fn before(socket: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = Arc::new(AtomicBool::new(false));
        let opened = Arc::clone(&open);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if opened.load(Relaxed) {
                    join(stream.unwrap(), &socket);
                }
            }
        });
        Self { open, port }
    }
}

fn join(client: TcpStream, socket: &Path) {
    let server = UnixStream::connect(socket).unwrap();
    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::spawn(move || copy(&mut from, &mut to));
    let (mut from, mut to) = (server, client);
    std::thread::spawn(move || copy(&mut from, &mut to));
}

fn copy(from: &mut impl Read, to: &mut impl Write) {
    let _ = std::io::copy(from, to);
}

#[test]
fn a_server_without_a_database_waits_for_it_and_never_gives_up() {
    /// Longer than a start ever waited before it gave up.
    const AWAY: Duration = Duration::from_secs(40);
    let cluster = Cluster::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = runtime.block_on(cluster.database("late"));
    let host = address.split(['@', ':']).nth(2).unwrap();
    let socket = Path::new(&host.replace("%2F", "/")).join(".s.PGSQL.5432");
    let door = Door::before(socket);
    let address = format!("postgres://postgres@127.0.0.1:{}/late", door.port);
    let mut cove = Cove::prepare(&["--database", &address], None);
    cove.launch(&[]);
    let control = cove.role_pid("control");
    let started = Instant::now();
    wait_for("the database was away for long", || {
        assert!(!cove.has_ended(), "{}", cove.log());
        (started.elapsed() > AWAY).then_some(())
    });
    assert_eq!(cove.role_pid("control"), control, "{}", cove.log());
    assert!(cove.log().contains("cannot reach the database"));
    door.open.store(true, Relaxed);
    cove.wait_until_ready();
    cove.stop();
}

#[test]
fn the_shipped_units_are_valid_and_never_give_up() {
    for name in ["cove", "cove-control", "cove-node"] {
        check_unit(&format!("{name}.service"));
    }
}

fn check_unit(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    let setting = |wanted: &str| {
        let mut found = text.lines().filter_map(|line| line.split_once('='));
        let found = found.find(|(key, _)| *key == wanted);
        found.map(|(_, value)| value)
    };
    // Started again however it ended and however often; a start has all the time it takes.
    for (wanted, value) in [
        ("Restart", "always"),
        ("StartLimitIntervalSec", "0"),
        ("TimeoutStartSec", "infinity"),
    ] {
        assert_eq!(setting(wanted), Some(value), "{name}: {wanted}");
    }
    // Where there are sandboxes, they outlive the service.
    let kill_mode = (name != "cove-control.service").then_some("process");
    assert_eq!(setting("KillMode"), kill_mode, "{name}");
    // No more than a start a second, and no delay that grows.
    let pause: u64 = setting("RestartSec").unwrap().parse().unwrap();
    assert!((1..=10).contains(&pause), "{name}: {pause}");
    // Nothing that ends it for good or by the clock.
    for unwanted in [
        "StartLimitBurst",
        "StartLimitAction",
        "RestartPreventExitStatus",
        "RestartMaxDelaySec",
        "RestartSteps",
        "RuntimeMaxSec",
        "WatchdogSec",
        "FailureAction",
        "SuccessExitStatus",
    ] {
        assert_eq!(setting(unwanted), None, "{name}: {unwanted}");
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let copy = dir.path().join(name);
    // Neither the program nor its manual is installed where tests run.
    let text = text.replace("/usr/local/bin/cove", super::harness::program());
    std::fs::write(&copy, text).unwrap();
    let verified = Command::new("systemd-analyze")
        .args(["--man=no", "verify"])
        .arg(&copy)
        .output()
        .expect("scripts/setup installs systemd-analyze");
    assert!(verified.status.success(), "{verified:?}");
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(!said.contains(&format!("{name}:")), "{said}");
}
