//! A log that cannot be written costs lines of the log and nothing else.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

use super::harness::{Cove, wait_for};

/// So much is logged that every queue on the way is full soon.
const TALKATIVE: &[&str] = &["--log", "trace"];

fn lost(cove: &Cove) -> u64 {
    let mut answer = String::new();
    cove.ask("/metrics").read_to_string(&mut answer).unwrap();
    let line = answer
        .lines()
        .find_map(|line| line.strip_prefix("cove_log_lines_lost_total "));
    line.unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
}

/// Many requests on one connection, all answered.
fn chatter(cove: &Cove) {
    const REQUESTS: usize = 500;
    let url = std::fs::read_to_string(cove.data_dir().join("url")).unwrap();
    let address = url.trim().strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let one = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    let last = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let requests = one.repeat(REQUESTS - 1) + last;
    let mut sending = stream.try_clone().unwrap();
    let sent = std::thread::spawn(move || sending.write_all(requests.as_bytes()));
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    sent.join().unwrap().unwrap();
    assert_eq!(answers.matches("200 OK").count(), REQUESTS);
}

/// Everything works, lines are lost, and both the metric and `cove doctor` say so.
fn works_without_a_log(mut cove: Cove) {
    wait_for("lines are lost", || {
        chatter(&cove);
        (lost(&cove) > 0).then_some(())
    });
    cove.sandbox("box");
    assert_eq!(cove.ok(["exec", "box", "--", "echo", "hello"]), "hello\n");
    let before = lost(&cove);
    cove.ok(["stop", "box"]);
    cove.ok(["rm", "box"]);
    chatter(&cove);
    assert!(lost(&cove) > before, "what is lost is counted on");
    let doctor = cove.ok(["doctor"]);
    let line = doctor
        .lines()
        .find(|line| line.contains("lines of the server's log could not be written"));
    assert!(
        line.is_some_and(|line| line.starts_with("warning")),
        "{doctor}"
    );
    // A restart of a child does not forget them.
    let control = cove.role_pid("control");
    super::harness::signal(control, rustix::process::Signal::KILL);
    wait_for("another control side serves", || {
        (cove.role_pid("control") != control && cove.run(["ls"]).status.success()).then_some(())
    });
    assert!(lost(&cove) > before);
    cove.stop();
}

#[test]
fn a_full_device_as_standard_error_costs_lines_only() {
    works_without_a_log(Cove::start_logging_to(&[], |_| {
        File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
            .into()
    }));
}

#[test]
fn a_reader_of_the_log_that_is_gone_costs_lines_only() {
    works_without_a_log(Cove::start_logging_to(&[], |_| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    }));
}

#[test]
fn a_reader_of_the_log_that_stands_still_costs_lines_only() {
    let (reader, writer) = std::io::pipe().unwrap();
    works_without_a_log(Cove::start_logging_to(TALKATIVE, move |_| {
        Stdio::from(writer.try_clone().unwrap())
    }));
    // It was there all the time.
    drop(reader);
}

/// A small filesystem, unmounted in the end.
struct Full<'a>(&'a Path);

impl Drop for Full<'_> {
    fn drop(&mut self) {
        rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH).ok();
    }
}

#[test]
fn a_full_disk_under_the_log_costs_lines_until_there_is_room() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    rustix::mount::mount(
        "none",
        dir.path(),
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        Some(c"size=64k"),
    )
    .unwrap();
    let _mounted = Full(dir.path());
    let filler = dir.path().join("filler");
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    drop(file);
    let log = dir.path().join("log");
    let target = log.clone();
    let mut cove = Cove::start_logging_to(&[], move |_| {
        let file = File::options().create(true).append(true).open(&target);
        file.unwrap().into()
    });
    wait_for("lines are lost", || {
        cove.ok(["ls"]);
        (lost(&cove) > 0).then_some(())
    });
    // Once there is room, what is logged comes out again.
    std::fs::remove_file(&filler).unwrap();
    cove.sandbox("box");
    cove.stop();
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.is_empty());
}
