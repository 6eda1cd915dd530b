//! The whole server with its database in PostgreSQL: what SQLite promises holds there too.

use rustix::process::Signal;

use super::cluster::Cluster;
use super::harness::{Cove, signal, wait_for};

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
