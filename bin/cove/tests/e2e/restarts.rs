//! Whatever part of the server dies, sandboxes live on and nobody loses output.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use rustix::process::Signal;

use super::harness::{Cove, signal, wait_for};

/// Counts slowly enough to be interrupted, quickly enough to test.
const COUNTING: &str = "for i in $(seq 1 60); do echo line $i; sleep 0.05; done";

fn expected() -> String {
    (1..=60).map(|i| format!("line {i}\n")).collect()
}

#[test]
fn an_exec_survives_the_death_of_the_control_side() {
    let cove = Cove::start();
    cove.sandbox("box");
    let mut child = cove
        .command(["exec", "box", "-c", COUNTING])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    for _ in 0..5 {
        stdout.read_line(&mut text).unwrap();
    }
    let before = cove.role_pid("control");
    signal(before, Signal::KILL);
    stdout.read_to_string(&mut text).unwrap();
    assert_eq!(text, expected());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_ne!(cove.role_pid("control"), before);
}

#[test]
fn sandboxes_live_through_the_death_of_the_runner() {
    let cove = Cove::start();
    cove.sandbox("box");
    let id = cove
        .ok(["exec", "--detach", "box", "-c", COUNTING])
        .trim()
        .to_owned();
    let before = cove.role_pid("runner");
    signal(before, Signal::KILL);
    wait_for("another runner serves", || {
        let served = cove.run(["exec", "box", "--", "true"]).status.success();
        (served && cove.role_pid("runner") != before).then_some(())
    });
    assert_eq!(cove.ok(["logs", "--follow", "box", &id]), expected());
    cove.sandbox("another");
}

#[test]
fn a_killed_supervisor_is_followed_by_one_that_finds_everything() {
    let mut cove = Cove::start();
    cove.sandbox("box");
    let id = cove
        .ok(["exec", "--detach", "box", "-c", COUNTING])
        .trim()
        .to_owned();
    let made = cove.json(["show", "box"]);
    cove.kill_server();
    cove.serve();
    wait_for("the sandbox is taken over", || {
        (cove.json(["show", "box"])["state"] == "running").then_some(())
    });
    assert_eq!(cove.json(["show", "box"])["id"], made["id"]);
    assert_eq!(cove.ok(["logs", "--follow", "box", &id]), expected());
    cove.ok(["rm", "box"]);
    assert_eq!(cove.json(["ls"]), serde_json::json!([]));
}

#[test]
fn an_orderly_restart_keeps_what_runs() {
    let mut cove = Cove::start();
    cove.sandbox("box");
    let id = cove
        .ok(["exec", "--detach", "box", "-c", COUNTING])
        .trim()
        .to_owned();
    cove.stop();
    assert!(!cove.run(["ls"]).status.success());
    cove.serve();
    assert_eq!(cove.ok(["logs", "--follow", "box", &id]), expected());
}
