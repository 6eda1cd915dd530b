//! Services, from the command line down to the sandbox and back after a stop, a fork and a rollback.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::harness::Cove;

const PATIENCE: Duration = Duration::from_secs(60);

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn only(cove: &Cove, sandbox: &str) -> Value {
    let all = cove.json(["service", "ls", sandbox]);
    assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
    all[0].clone()
}

#[test]
fn a_service_comes_back_with_its_sandbox_until_it_is_removed() {
    let cove = Cove::start();
    cove.ok(["create", "busybox", "--name", "box", "-e", "COLOUR=red"]);
    let script = "echo $COLOUR $OWN; exec sleep 100000";
    let process = cove.ok([
        "service",
        "start",
        "--restart",
        "always",
        "-e",
        "OWN=mine",
        "box",
        "web",
        "-c",
        script,
    ]);
    let process = process.trim();
    let logs = |sandbox: &str| cove.ok(["logs", sandbox, process]);
    eventually("it says so", || logs("box") == "red mine\n");
    assert!(cove.ok(["service", "ls", "box"]).contains("running"));
    let twice = cove.run(["service", "start", "box", "web", "--", "true"]);
    assert_eq!(twice.status.code(), Some(1));
    cove.ok(["snapshot", "box", "--name", "kept"]);

    let pid = cove.json(["ps", "box"])[0]["pid"].to_string();
    cove.ok(["exec", "box", "--", "kill", "-9", &pid]);
    eventually("it was started again", || {
        let now = only(&cove, "box");
        now["restarts"] == 1 && now["state"] == "running"
    });

    // It runs when `start` returns: what is asked first finds it.
    cove.ok(["stop", "box"]);
    cove.ok(["start", "box"]);
    let now = only(&cove, "box");
    assert_eq!(
        (&now["state"], &now["process"]),
        (&"running".into(), &process.into())
    );
    eventually("its output goes on", || {
        logs("box") == "red mine\n".repeat(3)
    });

    cove.ok(["fork", "box", "--name", "copy"]);
    assert_eq!(only(&cove, "copy")["state"], "running");
    cove.ok(["service", "rm", "box", "web"]);
    assert_eq!(
        cove.json(["service", "ls", "box"]),
        Value::Array(Vec::new())
    );
    cove.ok(["stop", "box"]);
    cove.ok(["start", "box"]);
    assert_eq!(
        cove.json(["service", "ls", "box"]),
        Value::Array(Vec::new())
    );
    cove.ok(["rollback", "box", "kept"]);
    assert_eq!(only(&cove, "box")["state"], "running");
    assert_eq!(
        cove.run(["service", "rm", "box", "other"]).status.code(),
        Some(1)
    );
}
