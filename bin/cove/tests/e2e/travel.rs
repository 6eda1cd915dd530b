//! Snapshots, forks, rollbacks, rest and waking, from the command line down to the disk.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use rustix::process::Signal;

use super::harness::{Cove, signal, wait_for};

fn state(cove: &Cove, sandbox: &str) -> String {
    let shown = cove.json(["show", sandbox]);
    shown["state"].as_str().unwrap().to_owned()
}

fn read(cove: &Cove, sandbox: &str) -> String {
    cove.ok(["exec", sandbox, "--", "cat", "/state"])
}

fn write(cove: &Cove, sandbox: &str, text: &str) {
    cove.ok(["exec", sandbox, "-c", &format!("echo {text} > /state")]);
}

/// Whether this host captures memory. Where it does not, the test fails, unless it was opted out of.
pub fn captures_memory(cove: &Cove) -> bool {
    let host = cove.json(["doctor"]);
    let tiers = host[0]["tiers"].as_array().cloned().unwrap_or_default();
    let can = tiers.iter().any(|tier| {
        let capabilities = tier["capabilities"].as_array().cloned();
        capabilities
            .unwrap_or_default()
            .iter()
            .any(|one| one == "memory")
    });
    super::needs::has("criu", can)
}

#[test]
fn a_sandbox_goes_back_forks_and_shows_its_tree() {
    let cove = Cove::start();
    cove.sandbox("box");
    write(&cove, "box", "good");
    assert_eq!(cove.ok(["snapshot", "box", "--name", "clean"]), "clean\n");
    write(&cove, "box", "bad");
    let done = cove.json(["rollback", "box", "clean"]);
    assert_eq!(read(&cove, "box"), "good\n");
    let kept = done["kept"]["id"].as_str().unwrap();
    cove.ok(["rollback", "box", kept]);
    assert_eq!(read(&cove, "box"), "bad\n");
    cove.ok(["fork", "box", "--count", "3", "--name", "kid"]);
    for file in ["/etc/hostname", "/etc/hosts"] {
        let named = cove.ok(["exec", "kid-2", "--", "cat", file]);
        let words: Vec<_> = named.split_whitespace().collect();
        assert!(
            words.contains(&"kid-2") && !words.contains(&"box"),
            "{named}"
        );
    }
    write(&cove, "kid-2", "own");
    assert_eq!(read(&cove, "kid-1"), "bad\n");
    assert_eq!(read(&cove, "box"), "bad\n");
    // What grew from a snapshot does not need it any more.
    cove.ok(["create", "--snapshot", "clean", "--name", "late"]);
    cove.ok(["snapshot", "rm", "clean"]);
    assert_eq!(read(&cove, "late"), "good\n");
    let tree = cove.ok(["timeline", "box"]);
    for word in [
        "clean",
        "gone",
        "before the rollback",
        "kid-3",
        "◉ now: box",
    ] {
        assert!(tree.contains(word), "{word} is not in\n{tree}");
    }
    let refused = cove.run(["rollback", "box", "clean"]);
    assert_eq!(refused.status.code(), Some(1));
    // Copies of copies.
    let mut parent = "kid-1".to_owned();
    for generation in 0..5 {
        let child = format!("deep-{generation}");
        cove.ok(["fork", &parent, "--name", &child]);
        parent = child;
    }
    assert_eq!(read(&cove, &parent), "bad\n");
}

#[test]
fn snapshots_survive_whatever_dies() {
    let mut cove = Cove::start();
    cove.sandbox("box");
    write(&cove, "box", "kept");
    cove.ok(["snapshot", "box", "--name", "kept"]);
    for role in ["control", "runner"] {
        let before = cove.role_pid(role);
        signal(before, Signal::KILL);
        wait_for("it serves again", || {
            let listed = cove.run(["snapshots", "box"]);
            let text = String::from_utf8_lossy(&listed.stdout).into_owned();
            (text.contains("kept") && cove.role_pid(role) != before).then_some(())
        });
    }
    cove.kill_server();
    cove.serve();
    write(&cove, "box", "lost");
    cove.ok(["rollback", "box", "kept"]);
    assert_eq!(read(&cove, "box"), "kept\n");
}

#[test]
fn a_frozen_sandbox_wakes_for_a_command_and_a_listener_lets_it_sleep() {
    let cove = Cove::start();
    cove.sandbox("box");
    let ticking = "i=0; while true; do i=$((i+1)); echo tick $i; sleep 0.1; done";
    let process = cove.ok(["exec", "--detach", "box", "-c", ticking]);
    let mut child = cove
        .command(["logs", "--follow", "box", process.trim()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "tick 1");
    cove.ok(["freeze", "box"]);
    assert_eq!(state(&cove, "box"), "frozen");
    cove.ok(["exec", "box", "--", "true"]);
    assert_eq!(state(&cove, "box"), "running");
    for (n, line) in (2..20).zip(lines) {
        assert_eq!(line.unwrap(), format!("tick {n}"));
    }
    signal(child.id() as i32, Signal::TERM);
    child.wait().unwrap();
}

#[test]
fn a_paused_sandbox_goes_on_where_it_was_and_its_listener_misses_nothing() {
    let cove = Cove::start();
    if !captures_memory(&cove) {
        return;
    }
    cove.sandbox("box");
    let counting = "for i in $(seq 1 100); do echo line $i; sleep 0.05; done";
    let mut child = cove
        .command(["exec", "box", "-c", counting])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    for _ in 0..5 {
        stdout.read_line(&mut text).unwrap();
    }
    cove.ok(["pause", "box"]);
    // Somebody who only listens does not wake it.
    assert_eq!(state(&cove, "box"), "paused");
    cove.ok(["exec", "box", "--", "true"]);
    assert_eq!(state(&cove, "box"), "running");
    cove.ok(["snapshot", "box", "--memory", "--name", "hot"]);
    stdout.read_to_string(&mut text).unwrap();
    let expected: String = (1..=100).map(|i| format!("line {i}\n")).collect();
    assert_eq!(text, expected);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_snapshot_travels_as_a_file_and_becomes_an_image() {
    let cove = Cove::start();
    cove.sandbox("box");
    write(&cove, "box", "travelled");
    cove.ok(["snapshot", "box", "--name", "clean"]);
    let file = cove.scratch().join("clean.cove");
    let file = file.to_str().unwrap();
    cove.ok(["snapshot", "export", "clean", file]);
    cove.ok(["snapshot", "import", file, "--name", "moved"]);
    cove.ok(["create", "--snapshot", "moved", "--name", "other"]);
    assert_eq!(read(&cove, "other"), "travelled\n");
    let mut bytes = std::fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(file, &bytes).unwrap();
    let forged = cove.run(["snapshot", "import", file, "--name", "forged"]);
    assert_eq!(forged.status.code(), Some(1));
    assert!(!cove.ok(["snapshots"]).contains("forged"));
    cove.ok(["image", "create", "template", "--from", "clean"]);
    cove.ok(["create", "template", "--name", "third"]);
    assert_eq!(read(&cove, "third"), "travelled\n");
}
