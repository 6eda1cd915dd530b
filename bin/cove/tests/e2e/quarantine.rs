//! A database put back from an older copy of itself, and records damaged under a server: nothing is destroyed.

use std::fs;

use super::harness::{Cove, wait_for};

fn ids(cove: &Cove, args: &[&str]) -> Vec<String> {
    let found = cove.json(args.iter().copied());
    let mut ids: Vec<_> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["id"].as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    ids
}

fn id(cove: &Cove, name: &str) -> String {
    let shown = cove.json(["show", name]);
    shown["id"].as_str().unwrap().to_owned()
}

fn state(cove: &Cove, which: &str) -> String {
    let shown = cove.json(["show", which]);
    shown["state"].as_str().unwrap().to_owned()
}

fn doctor(cove: &Cove, check: &str) -> String {
    let runners = cove.json(["doctor"]);
    let findings = runners[0]["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["name"] == check);
    found.unwrap()["message"].as_str().unwrap().to_owned()
}

#[test]
fn an_older_copy_of_the_database_destroys_nothing_that_was_made_since() {
    let mut cove = Cove::start();
    for name in ["old", "restarted", "deleted"] {
        cove.sandbox(name);
    }
    cove.ok(["stop", "restarted"]);
    cove.stop();
    let database = cove.data_dir().join("control/cove.db");
    let backup = cove.scratch().join("backup.db");
    fs::copy(&database, &backup).unwrap();
    cove.serve();

    cove.ok(["start", "restarted"]);
    cove.ok(["rm", "deleted"]);
    cove.sandbox("young");
    for name in ["old", "restarted", "young"] {
        let write = format!("echo {name} > /tmp/file; sync");
        cove.ok(["exec", name, "-c", &write]);
    }
    cove.ok(["exec", "--detach", "young", "-c", "sleep 10000"]);
    cove.ok(["snapshot", "young", "--name", "precious"]);
    let young = id(&cove, "young");
    let precious = cove.json(["snapshots"])[0]["id"]
        .as_str()
        .unwrap()
        .to_owned();

    cove.stop();
    fs::copy(&backup, &database).unwrap();
    for journal in ["cove.db-wal", "cove.db-shm"] {
        fs::remove_file(database.with_file_name(journal)).ok();
    }
    cove.serve();
    let mut expected = [young.clone(), precious.clone()];
    expected.sort();
    wait_for("the unknown are in quarantine", || {
        (ids(&cove, &["quarantine", "ls"]) == expected).then_some(())
    });
    assert!(doctor(&cove, "quarantine").contains(&young));
    // What was started since runs on, and what was deleted since is shown as lost, not made anew.
    wait_for("the one that was started runs", || {
        (state(&cove, "restarted") == "running").then_some(())
    });
    for name in ["old", "restarted"] {
        let read = cove.ok(["exec", name, "--", "cat", "/tmp/file"]);
        assert_eq!(read.trim(), name);
    }
    assert_eq!(state(&cove, "deleted"), "failed");

    cove.ok(["quarantine", "adopt", &young]);
    assert!(ids(&cove, &["quarantine", "ls"]).is_empty());
    let read = cove.ok(["exec", "young", "--", "cat", "/tmp/file"]);
    assert_eq!(read.trim(), "young");
    assert!(
        cove.ok(["exec", "young", "--", "ps"])
            .contains("sleep 10000"),
        "its processes were kept"
    );
    assert_eq!(ids(&cove, &["snapshots"]), [precious]);
}

#[test]
fn a_damaged_record_costs_one_sandbox_its_place_until_it_is_adopted() {
    let mut cove = Cove::start();
    cove.sandbox("healthy");
    cove.sandbox("damaged");
    cove.ok(["exec", "damaged", "-c", "echo kept > /tmp/file; sync"]);
    let damaged = id(&cove, "damaged");
    cove.kill_server();
    let records = cove.data_dir().join("engine/records");
    fs::write(records.join(format!("{damaged}.json")), "garbage").unwrap();
    fs::remove_file(records.join(format!("{damaged}.flushed"))).unwrap();
    cove.serve();
    wait_for("it is shown as failed", || {
        (state(&cove, "damaged") == "failed").then_some(())
    });
    let shown = cove.json(["show", "damaged"]);
    assert!(shown["reason"].as_str().unwrap().contains("damaged"));
    cove.ok(["exec", "healthy", "--", "true"]);
    assert!(doctor(&cove, "records").contains(&damaged));
    assert_eq!(
        ids(&cove, &["quarantine", "ls"]),
        std::slice::from_ref(&damaged)
    );
    cove.ok(["quarantine", "adopt", &damaged]);
    cove.ok(["start", "damaged"]);
    let read = cove.ok(["exec", "damaged", "--", "cat", "/tmp/file"]);
    assert_eq!(read.trim(), "kept");
}

#[test]
fn a_database_of_another_host_is_refused_and_nothing_in_it_is_taken_for_lost() {
    let mut cove = Cove::start();
    cove.sandbox("box");
    cove.ok(["exec", "box", "-c", "echo kept > /tmp/file; sync"]);
    cove.stop();
    let file = cove.data_dir().join("engine/host");
    let this = fs::read_to_string(&file).unwrap();
    let other = "host_bbbbbbbbbbbbbbbbbbbb";
    fs::write(&file, other).unwrap();
    cove.launch(&[]);
    wait_for("the start is refused", || cove.has_ended().then_some(()));
    let log = cove.log();
    let message =
        format!("the database belongs to host {this}, and this data directory is host {other}");
    assert!(log.contains(&message), "{log}");
    fs::write(&file, "garbage").unwrap();
    cove.launch(&[]);
    wait_for("the start is refused", || cove.has_ended().then_some(()));
    assert_eq!(fs::read_to_string(&file).unwrap(), "garbage");
    // As the documentation says.
    fs::write(&file, format!("{this}\n")).unwrap();
    cove.serve();
    wait_for("it runs on", || {
        (state(&cove, "box") == "running").then_some(())
    });
    let read = cove.ok(["exec", "box", "--", "cat", "/tmp/file"]);
    assert_eq!(read.trim(), "kept");
}
