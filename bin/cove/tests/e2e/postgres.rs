//! The whole server with its database in PostgreSQL: what SQLite promises holds there too.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::cluster::Cluster;
use super::harness::{Cove, signal, wait_for};

/// The longest that `/readyz` waits for a database, with what a busy machine adds.
const READY_MOST: Duration = Duration::from_secs(3 * 5);

/// Counts slowly enough to be interrupted, quickly enough to test.
const COUNTING: &str = "for i in $(seq 1 60); do echo line $i; sleep 0.05; done";

fn expected() -> String {
    (1..=60).map(|i| format!("line {i}\n")).collect()
}

fn books() -> (Cluster, String) {
    let cluster = Cluster::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = runtime.block_on(cluster.database("books"));
    (cluster, address)
}

#[test]
fn nothing_acknowledged_is_lost_with_the_books_in_postgresql() {
    let (mut cluster, address) = books();
    let mut cove = Cove::start_with(&["--database", &address]);
    cove.sandbox("box");
    let made = cove.json(["show", "box"]);
    cove.ok(["exec", "box", "-c", "echo kept > /tmp/file"]);
    let key = cove.json(["key", "create", "worker", "--scope", "read"]);
    assert!(
        !cove.data_dir().join("control/cove.db").exists(),
        "the database is in one place only"
    );
    let check = |cove: &Cove, when: &str| {
        wait_for(when, || {
            let shown = cove.run(["--json", "show", "box"]);
            let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).ok()?;
            (shown["state"] == "running" && shown["id"] == made["id"]).then_some(())
        });
        assert_eq!(cove.ok(["exec", "box", "--", "cat", "/tmp/file"]), "kept\n");
        let keys = cove.json(["key", "ls"]);
        let ids: Vec<_> = keys
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["id"])
            .collect();
        assert!(ids.contains(&&key["id"]), "{when}: {keys}");
    };

    cove.stop();
    cove.serve();
    check(&cove, "after an orderly restart");

    let running = cove.ok(["exec", "--detach", "box", "-c", COUNTING]);
    cove.kill_server();
    cove.serve();
    check(&cove, "after the server was killed");
    assert_eq!(
        cove.ok(["logs", "--follow", "box", running.trim()]),
        expected()
    );

    let before = cove.role_pid("control");
    signal(before, Signal::KILL);
    check(&cove, "after the control side was killed");

    cluster.restart();
    wait_for("the server finds the database again", || {
        let listed = cove.run(["ls"]).status.success();
        listed.then_some(())
    });
    check(&cove, "after the database was restarted");
    cove.sandbox("another");
    cove.ok(["rm", "box", "another"]);
    assert_eq!(cove.json(["ls"]), serde_json::json!([]));
}

#[test]
fn a_database_that_cannot_be_trusted_ends_the_start_with_the_reason() {
    let (_cluster, address) = books();
    let dir = tempfile::Builder::new()
        .prefix("cove-e2e-")
        .tempdir_in("/var/tmp")
        .unwrap();
    for (address, said) in [
        (
            format!("{address}?sslmode=require"),
            "a unix socket has no TLS",
        ),
        (format!("{address}x"), "database \"booksx\" does not exist"),
        (
            format!("{address}?sslmode=sometimes"),
            "sslmode=sometimes is not known",
        ),
    ] {
        let output = std::process::Command::new(super::harness::program())
            .args(["serve", "--listen", "127.0.0.1:0", "--pool", "directory"])
            .args(["--warm", "0", "--database", &address, "--data-dir"])
            .arg(dir.path().join("data"))
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{log}");
        assert!(log.contains(said), "{address}: {log}");
    }
}

/// What `/readyz` answers, and how long it took.
fn timed_readyz(cove: &Cove) -> (String, Duration) {
    let asked = Instant::now();
    let answer = cove.readyz();
    (answer, asked.elapsed())
}

fn wait_until_ready_again(cove: &Cove) {
    wait_for("the database is used again", || {
        cove.readyz().starts_with("HTTP/1.1 200").then_some(())
    });
    cove.ok(["exec", "box", "--", "true"]);
}

#[test]
fn readiness_reports_a_database_that_is_down_hung_or_read_only() {
    let (mut cluster, address) = books();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut cove = Cove::start_with(&["--database", &address]);
    cove.sandbox("box");
    assert!(cove.readyz().starts_with("HTTP/1.1 200"));

    // Hung: bounded.
    cluster.signal_all(Signal::STOP);
    let (hung, took) = timed_readyz(&cove);
    cluster.signal_all(Signal::CONT);
    assert!(hung.starts_with("HTTP/1.1 503"), "{hung}");
    assert!(hung.contains("\"unavailable\""), "{hung}");
    assert!(took < READY_MOST, "{took:?}");
    wait_until_ready_again(&cove);

    // Down: at once, which is sooner than a database that may still answer is given up.
    cluster.kill();
    let (down, took) = timed_readyz(&cove);
    assert!(down.starts_with("HTTP/1.1 503"), "{down}");
    assert!(down.contains("\"unavailable\""), "{down}");
    assert!(took < READY_MOST / 3, "{took:?}");
    let asked = Instant::now();
    assert!(!cove.run(["ls"]).status.success());
    assert!(asked.elapsed() < READY_MOST, "{:?}", asked.elapsed());
    cluster.start_again();
    wait_until_ready_again(&cove);

    // Read-only: named, also by a server that starts then.
    let set_read_only = |on: &str| {
        let sql = format!("ALTER SYSTEM SET default_transaction_read_only = {on}");
        runtime.block_on(cluster.run_sql("postgres", &sql));
        runtime.block_on(cluster.run_sql("postgres", "SELECT pg_reload_conf()"));
    };
    set_read_only("on");
    wait_for("the database is read-only", || {
        let answer = cove.readyz();
        (answer.starts_with("HTTP/1.1 503") && answer.contains("read-only")).then_some(())
    });
    cove.stop();
    let known = cove.log().len();
    cove.launch(&[]);
    wait_for("the start says why it waits", || {
        assert!(!cove.has_ended(), "{}", cove.log());
        cove.log()[known..].contains("read-only").then_some(())
    });
    set_read_only("off");
    cove.wait_until_ready();
    wait_until_ready_again(&cove);
}
