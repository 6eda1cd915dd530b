//! Whatever part of the server dies, sandboxes live on and nobody loses output.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

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
fn a_runner_told_to_end_while_it_starts_harms_no_sandbox() {
    const NAMES: [&str; 3] = ["one", "two", "three"];
    let mut cove = Cove::start();
    NAMES.iter().for_each(|name| cove.sandbox(name));
    let made = NAMES.map(|name| cove.json(["show", name])["started_at"].clone());
    cove.kill_server();
    // Each a little later on its way.
    for round in 0..16 {
        cove.launch(&[]);
        let runner = cove.role_pid("runner");
        std::thread::sleep(Duration::from_millis(30 * round));
        cove.kill_server();
        wait_for("the runner ends", || {
            (!Path::new(&format!("/proc/{runner}")).exists()).then_some(())
        });
    }
    cove.serve();
    for (name, started) in NAMES.iter().zip(made) {
        let shown = cove.json(["show", name]);
        assert_eq!(shown["state"], "running", "{shown}\n{}", cove.log());
        assert_eq!(shown["started_at"], started);
        cove.ok(["exec", name, "--", "true"]);
    }
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

#[test]
fn a_sweep_removes_what_a_crash_left_and_nothing_that_lives() {
    let mut cove = Cove::start();
    cove.sandbox("box");
    let shown = cove.json(["show", "box"]);
    let id = shown["id"].as_str().unwrap();
    let refused = cove.run(["doctor", "--sweep"]);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("a server runs"), "{said}");
    let kept = cove
        .ok(["exec", "--detach", "box", "-c", "sleep 4321"])
        .trim()
        .to_owned();
    cove.kill_server();

    // A disk without a record, as a create that was killed leaves it.
    let pool = cove.data_dir().join("engine/pool/sandboxes");
    let disk = pool.join(id.chars().rev().collect::<String>());
    let made = std::process::Command::new("btrfs")
        .args(["subvolume", "create"])
        .arg(&disk)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    // The parts of the killed server may be on their way out still.
    wait_for("what was left is swept", || {
        let swept = cove.run(["doctor", "--sweep"]);
        (swept.status.success() && swept.stdout == b"swept\n").then_some(())
    });
    assert!(!disk.exists() && pool.join(id).exists());

    cove.serve();
    let running = cove.ok(["ps", "box"]);
    assert!(running.contains(&kept), "{running}");
    let nowhere = cove.scratch().join("nowhere");
    let refused = cove
        .command(["doctor", "--sweep"])
        .env("COVE_DATA_DIR", &nowhere)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("does not exist"),
        "{said}"
    );
    assert!(!nowhere.exists(), "it made what it was asked to look at");
}

/// `POST /v1/sandboxes` with a key: the status and what came with it.
fn create(cove: &Cove, key: &str, name: &str) -> (u16, serde_json::Value) {
    let read = |file: &str| std::fs::read_to_string(cove.data_dir().join(file)).unwrap();
    let body = serde_json::json!({
        "image": "busybox", "name": name, "resources": {"memory_mb": 64, "disk_mb": 256},
    });
    let asked = std::process::Command::new("curl")
        .args([
            "--silent",
            "--max-time",
            "60",
            "--write-out",
            "\n%{http_code}",
        ])
        .arg("--header")
        .arg(format!("Authorization: Bearer {}", read("root.key").trim()))
        .args(["--header", "Content-Type: application/json", "--header"])
        .arg(format!("Idempotency-Key: {key}"))
        .arg("--data")
        .arg(body.to_string())
        .arg(format!("{}/v1/sandboxes", read("url").trim()))
        .output()
        .unwrap();
    let text = String::from_utf8(asked.stdout).unwrap();
    let (answer, status) = text.rsplit_once('\n').unwrap();
    let answer = serde_json::from_str(answer).unwrap_or_default();
    (status.parse().unwrap(), answer)
}

/// How often listeners heard that it runs.
fn told_running(cove: &Cove, id: &str) -> usize {
    let told = cove.ok(["--json", "events", id]);
    let events = told
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    events.filter(|event| event["state"] == "running").count()
}

#[test]
fn creates_repeated_while_runners_die_are_made_once_and_told_once() {
    let cove = Cove::start();
    let mut made = Vec::new();
    for round in 0..6u64 {
        let before = cove.role_pid("runner");
        // The runner dies at another moment of the create each time.
        let killing = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(12 * round));
            signal(before, Signal::KILL);
        });
        let (key, name) = (format!("key-{round}"), format!("box-{round}"));
        let id = wait_for("the create is answered", || {
            let (status, answer) = create(&cove, &key, &name);
            assert_ne!(status, 409, "{answer}");
            matches!(status, 200 | 201).then(|| answer["id"].as_str().unwrap().to_owned())
        });
        killing.join().unwrap();
        made.push(id);
        wait_for("another runner serves", || {
            (cove.role_pid("runner") != before).then_some(())
        });
    }
    made.sort();
    wait_for("nothing is left of what failed", || {
        let listed = cove.run(["ls", "--quiet"]);
        let listed = String::from_utf8(listed.stdout).unwrap();
        let mut listed: Vec<_> = listed.lines().map(str::to_owned).collect();
        listed.sort();
        (listed == made).then_some(())
    });
    for id in &made {
        wait_for("its start is told", || {
            (told_running(&cove, id) == 1).then_some(())
        });
    }
    // Another engine tells how they are; nobody hears of it again.
    let before = cove.role_pid("runner");
    signal(before, Signal::KILL);
    wait_for("another runner serves", || {
        let served = cove.run(["exec", &made[0], "--", "true"]).status.success();
        (served && cove.role_pid("runner") != before).then_some(())
    });
    for id in &made {
        assert_eq!(told_running(&cove, id), 1, "{id}");
    }
}
