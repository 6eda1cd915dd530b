//! Disks that are full and pools that turned read-only: the server starts, says so, and gets out of it.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use super::harness::{Cove, wait_for};

/// Takes what is left of the disk of a file, down to the last block.
fn fill(path: &Path) {
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    for size in [1 << 20, 4096] {
        let block = vec![7u8; size];
        while file
            .write_all(&block)
            .and_then(|()| file.sync_data())
            .is_ok()
        {}
    }
}

#[test]
fn a_server_starts_on_a_full_disk_and_space_is_freed_through_it() {
    let mut cove = Cove::start_on_disk(1536 << 20);
    cove.sandbox("kept");
    cove.sandbox("large");
    let write = "dd if=/dev/zero of=/tmp/large bs=1M count=300 && sync";
    cove.ok(["exec", "large", "-c", write]);
    cove.ok(["exec", "kept", "-c", "echo kept > /tmp/file && sync"]);
    let reserve = cove.data_dir().join("engine/reserve");
    wait_for("something is kept for the server itself", || {
        reserve.exists().then_some(())
    });
    cove.stop();
    fill(&cove.data_dir().join("outside"));
    cove.serve_until(&["ls"]);
    let refused = cove.run(["create", "busybox"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("disk"), "{said}");
    assert_eq!(
        cove.ok(["exec", "kept", "--", "cat", "/tmp/file"]),
        "kept\n"
    );
    cove.ok(["rm", "large"]);
    wait_for("what was deleted makes room for another", || {
        cove.run(["create", "busybox", "--disk", "100M"])
            .status
            .success()
            .then_some(())
    });
    std::fs::remove_file(cove.data_dir().join("outside")).unwrap();
    wait_for("the host is well again", || {
        cove.run(["doctor"]).status.success().then_some(())
    });
}

#[test]
fn a_pool_that_turned_read_only_is_told_of_and_repaired_by_one_command() {
    let mut cove = Cove::start();
    cove.sandbox("running");
    cove.sandbox("stopped");
    for name in ["running", "stopped"] {
        let write = format!("echo {name} > /tmp/file && sync");
        cove.ok(["exec", name, "-c", &write]);
    }
    cove.ok(["stop", "stopped"]);
    let id = cove.json(["show", "running"])["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(cove.readyz().starts_with("HTTP/1.1 200"));
    // With nothing to repair nobody is stopped.
    let told = cove.ok(["doctor", "--repair-pool"]);
    assert_eq!(told.trim(), "the storage pool can be written to");
    assert!(cove.readyz().starts_with("HTTP/1.1 200"));
    let pool = cove.data_dir().join("engine/pool");
    // As the kernel does it after a failed write: for all mounts of the filesystem at once. Refused for
    // moments in which somebody has a file open for writing.
    wait_for("the pool is read-only", || {
        let remounted = Command::new("mount")
            .args(["-o", "remount,ro"])
            .arg(&pool)
            .output()
            .unwrap();
        remounted.status.success().then_some(())
    });
    let answer = cove.readyz();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("read-only"), "{answer}");
    let doctor = cove.run(["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert_eq!(doctor.status.code(), Some(1), "{said}");
    assert!(said.contains("--repair-pool"), "{said}");
    let refused = cove.run(["create", "busybox"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("read-only"), "{said}");

    // A server that starts meanwhile says the same.
    cove.kill_server();
    cove.serve_until(&["ls"]);
    assert!(cove.readyz().starts_with("HTTP/1.1 503"));

    // It stops the server, which some service manager or somebody then starts again.
    let told = cove.ok(["doctor", "--repair-pool"]);
    assert!(told.contains("the server was stopped"), "{told}");
    cove.stop();
    let line = told.lines().find(|line| line.contains(&id)).unwrap();
    assert!(
        line.contains("memory is lost") && line.contains("runs again"),
        "{told}"
    );
    assert_eq!(told.matches("memory is lost").count(), 1, "{told}");
    let again = cove.ok(["doctor", "--repair-pool"]);
    assert_eq!(again.trim(), "the storage pool can be written to");

    // One that is killed after it has ended the sandboxes is gone on with by the next.
    let left = cove.data_dir().join("engine/interrupted");
    std::fs::write(
        left.join(format!("{id}.json")),
        format!(r#"{{"id":"{id}","state":"running"}}"#),
    )
    .unwrap();
    cove.serve();
    cove.ok(["stop", "running"]);
    cove.stop();
    let told = cove.ok(["doctor", "--repair-pool"]);
    assert!(told.contains("runs again"), "{told}");
    assert_eq!(std::fs::read_dir(&left).unwrap().count(), 0);
    cove.serve();
    assert!(cove.readyz().starts_with("HTTP/1.1 200"));
    assert_eq!(cove.json(["show", "running"])["state"], "running");
    cove.ok(["start", "stopped"]);
    for name in ["running", "stopped"] {
        let read = cove.ok(["exec", name, "--", "cat", "/tmp/file"]);
        assert_eq!(read.trim(), name);
        cove.ok(["exec", name, "-c", "echo more > /tmp/more && sync"]);
    }
}
