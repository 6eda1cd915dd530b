//! Processes that are copied, put back, put away and woken, over HTTP against a real server.

use std::collections::BTreeSet;

use cove_api::process::Exec;
use cove_client::{Client, ClientConfig};
use serde_json::Value;

use super::harness::{Cove, wait_for};

/// Counts in memory and appends every count to a file.
const COUNTER: &str = "n=0; while :; do n=$((n+1)); echo $n >> /log; sleep 0.05; done";
/// Requests that find the sandbox asleep all at once.
const HERD: usize = 40;

/// A server whose idle policies and meters work in seconds. Nothing when this host cannot capture
/// memory and the tests opted out of it.
pub fn quick() -> Option<Cove> {
    let cove = Cove::start_with(&[
        "--lifecycle-every-s",
        "1",
        "--meter-every-s",
        "1",
        "--idle-cpu",
        "0.5",
        "--warm",
        "0",
    ]);
    super::travel::captures_memory(&cove).then_some(cove)
}

fn state(cove: &Cove, sandbox: &str) -> String {
    let shown = cove.json(["show", sandbox]);
    shown["state"].as_str().unwrap().to_owned()
}

fn counts(cove: &Cove, sandbox: &str) -> Vec<u64> {
    let text = cove.ok(["exec", sandbox, "--", "cat", "/log"]);
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// The counter goes on, and every number is there once, in order.
fn counts_on(cove: &Cove, sandbox: &str) -> u64 {
    let before = counts(cove, sandbox).len();
    let now = wait_for("the counter goes on", || {
        let now = counts(cove, sandbox);
        (now.len() > before).then_some(now)
    });
    for (at, number) in now.iter().enumerate() {
        assert_eq!(*number, at as u64 + 1, "a count was lost or repeated");
    }
    now.len() as u64
}

fn counting(cove: &Cove, name: &str) -> String {
    cove.sandbox(name);
    let process = cove.ok(["exec", "--detach", name, "-c", COUNTER]);
    wait_for("it counts", || {
        let looked = cove.run(["exec", name, "--", "test", "-s", "/log"]);
        looked.status.success().then_some(())
    });
    process.trim().to_owned()
}

/// The states a sandbox went through, oldest first.
fn states(cove: &Cove, sandbox: &str) -> Vec<String> {
    let events = cove.ok(["--json", "events", sandbox]);
    events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["type"] == "state")
        .map(|event| event["state"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn processes_fork_and_go_back_with_their_memory() {
    let Some(cove) = quick() else { return };
    counting(&cove, "box");
    cove.ok(["snapshot", "box", "--memory", "--name", "hot"]);
    assert_eq!(cove.json(["snapshot", "show", "hot"])["memory"], true);
    let then = counts_on(&cove, "box");

    let made = cove.json(["fork", "box", "--memory", "--count", "3", "--name", "kid"]);
    let ids: BTreeSet<_> = made
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["sandbox"]["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 3, "{made}");
    for kid in ["kid-1", "kid-2", "kid-3"] {
        assert!(
            counts_on(&cove, kid) > then,
            "it goes on where the parent was"
        );
        assert_eq!(cove.ok(["exec", kid, "--", "hostname"]).trim(), kid);
    }
    // A copy of a copy, and of the snapshot itself.
    cove.ok(["fork", "kid-2", "--memory", "--name", "grandkid"]);
    counts_on(&cove, "grandkid");
    let from_disk = ["create", "--snapshot", "hot", "--name", "cold"];
    cove.ok(from_disk);
    let rest = counts(&cove, "cold").len();
    assert!(
        !cove.ok(["exec", "cold", "--", "ps"]).contains("sleep 0.05"),
        "without memory nothing runs"
    );
    assert_eq!(counts(&cove, "cold").len(), rest);

    cove.ok(["exec", "box", "--", "touch", "/since"]);
    let before = counts_on(&cove, "box");
    let done = cove.json(["rollback", "box", "hot", "--memory"]);
    let kept = done["kept"]["id"].as_str().unwrap().to_owned();
    assert_eq!(done["kept"]["memory"], true, "what ran is kept as it ran");
    let since = cove.run(["exec", "box", "--", "test", "-e", "/since"]);
    assert!(!since.status.success(), "what came later is gone");
    counts_on(&cove, "box");
    cove.ok(["rollback", "box", &kept, "--memory"]);
    assert!(counts_on(&cove, "box") > before, "the rollback is undone");

    let tree = cove.ok(["timeline", "box"]);
    for word in [
        "hot",
        "kid-1",
        "kid-3",
        "cold",
        "before the rollback",
        "◉ now: box",
    ] {
        assert!(tree.contains(word), "{word} is not in\n{tree}");
    }
    let kids = cove.ok(["timeline", "kid-2"]);
    assert!(
        kids.contains("grandkid") && kids.contains("◉ now: kid-2"),
        "{kids}"
    );
}

#[test]
fn an_idle_sandbox_goes_down_the_ladder_and_a_herd_wakes_it_once() {
    let Some(cove) = quick() else { return };
    cove.ok([
        "create", "busybox", "--name", "box", "--memory", "256M", "--disk", "1G",
    ]);
    let process = cove.ok(["exec", "--detach", "box", "-c", COUNTER]);
    counts_on(&cove, "box");
    let before = states(&cove, "box");
    cove.ok(["update", "box", "--freeze-after", "1s"]);
    wait_for("it is frozen", || {
        (state(&cove, "box") == "frozen").then_some(())
    });
    cove.ok([
        "update",
        "box",
        "--freeze-after",
        "1s",
        "--pause-after",
        "2s",
    ]);
    wait_for("it is paused", || {
        (state(&cove, "box") == "paused").then_some(())
    });
    let down = states(&cove, "box").split_off(before.len());
    assert_eq!(
        down,
        ["frozen", "pausing", "paused"],
        "rung after rung, each once"
    );
    let shown = cove.json(["show", "box"]);
    assert_eq!(shown["name"], "box");
    // It may not fall asleep again while it is looked at.
    cove.ok(["update", "box", "--keep"]);
    assert_eq!(
        state(&cove, "box"),
        "paused",
        "a change of policy wakes nobody"
    );

    let usage = || cove.json(["usage", "box"])["total"].clone();
    let asleep = usage();
    wait_for("the disk of a paused one is metered", || {
        let now = usage();
        assert_eq!(now["cpu_seconds"], asleep["cpu_seconds"]);
        assert_eq!(now["memory_gb_seconds"], asleep["memory_gb_seconds"]);
        let grown = now["disk_gb_hours"].as_f64() > asleep["disk_gb_hours"].as_f64();
        grown.then_some(())
    });

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = std::fs::read_to_string(cove.data_dir().join("url")).unwrap();
    let key = std::fs::read_to_string(cove.data_dir().join("root.key")).unwrap();
    let client = ClientConfig::new(url.trim(), Some(key.trim().to_owned()));
    let client = Client::new(client).unwrap();
    let asleep = states(&cove, "box").len();
    runtime.block_on(async {
        let herd: Vec<_> = (0..HERD)
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move {
                    let exec = Exec {
                        command: Some(format!("echo {n}")),
                        ..Exec::default()
                    };
                    (n, client.exec("box", &exec).await.unwrap())
                })
            })
            .collect();
        for one in herd {
            let (n, ran) = one.await.unwrap();
            assert_eq!(ran.stdout, format!("{n}\n"));
        }
    });
    let woken = states(&cove, "box").split_off(asleep);
    assert_eq!(woken, ["resuming", "running"], "{HERD} requests, one wake");
    counts_on(&cove, "box");
    let known = cove.json(["ps", "box"]);
    let known = known.as_array().unwrap();
    let counter = known.iter().find(|one| one["id"] == process.trim());
    assert!(
        counter.is_some(),
        "its process has the id it had: {known:?}"
    );
}

#[test]
fn a_paused_sandbox_outlives_the_server_and_wakes_only_where_it_may() {
    let Some(mut cove) = quick() else { return };
    counting(&cove, "box");
    cove.ok(["update", "box", "--no-auto-resume"]);
    let before = counts_on(&cove, "box");
    cove.ok(["pause", "box"]);
    cove.kill_server();
    cove.serve();
    assert_eq!(state(&cove, "box"), "paused");
    let refused = cove.run(["exec", "box", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("resume"), "it says what to do: {said}");
    assert_eq!(state(&cove, "box"), "paused");
    // Neither a fork nor a snapshot needs it awake.
    cove.ok(["fork", "box", "--memory", "--name", "kid"]);
    assert!(counts_on(&cove, "kid") >= before);
    assert_eq!(state(&cove, "box"), "paused");
    cove.ok(["resume", "box"]);
    assert!(counts_on(&cove, "box") >= before);
}

/// The key a host signs exports with.
fn export_key(cove: &Cove) -> String {
    let host = cove.json(["doctor"]);
    let findings = host[0]["findings"].as_array().unwrap();
    let told = findings
        .iter()
        .find(|one| one["name"] == "export key")
        .unwrap();
    let words = told["message"].as_str().unwrap();
    let key = words
        .split(|c: char| !c.is_ascii_hexdigit())
        .find(|word| word.len() == 64);
    key.unwrap().to_owned()
}

#[test]
fn memory_travels_to_another_host_only_when_its_key_is_trusted_there() {
    let Some(here) = quick() else { return };
    counting(&here, "box");
    here.ok(["snapshot", "box", "--memory", "--name", "hot"]);
    let file = here.scratch().join("hot.cove");
    let file = file.to_str().unwrap();
    here.ok(["snapshot", "export", "hot", file]);
    let key = export_key(&here);

    let Some(mut there) = quick() else { return };
    assert_ne!(export_key(&there), key);
    let taken = there.json(["snapshot", "import", file, "--name", "stranger"]);
    let why = taken["memory_refused"].as_str().unwrap();
    assert!(
        why.contains(&key) && why.contains("does not trust"),
        "{why}"
    );
    assert_eq!(
        there.json(["snapshot", "show", "stranger"])["memory"],
        false
    );
    let refused = there.run(["fork", &snapshot_id(&there, "stranger"), "--memory"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    // Its disk is there all the same.
    there.ok(["create", "--snapshot", "stranger", "--name", "cold"]);
    assert!(!counts(&there, "cold").is_empty());
    assert!(
        !there
            .ok(["exec", "cold", "--", "ps"])
            .contains("sleep 0.05")
    );

    there.stop();
    there.add_flags(&["--trusted-keys", &key]);
    there.serve();
    let taken = there.json(["snapshot", "import", file, "--name", "friend"]);
    assert_eq!(taken["memory_refused"], Value::Null, "{taken}");
    let friend = snapshot_id(&there, "friend");
    there.ok(["fork", &friend, "--memory", "--name", "warm"]);
    counts_on(&there, "warm");

    // Whoever changes a byte on the way is found out, wherever that byte is.
    let whole = std::fs::read(file).unwrap();
    let forged = there.scratch().join("forged.cove");
    for at in [whole.len() / 3, whole.len() / 2, whole.len() - 100] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x01;
        std::fs::write(&forged, &bytes).unwrap();
        let said = there.run(["--json", "snapshot", "import", forged.to_str().unwrap()]);
        if said.status.success() {
            let taken: Value = serde_json::from_slice(&said.stdout).unwrap();
            assert!(taken["memory_refused"].is_string(), "byte {at}: {taken}");
            assert_eq!(taken["snapshot"]["memory"], false, "byte {at}: {taken}");
        }
    }
}

fn snapshot_id(cove: &Cove, name: &str) -> String {
    let shown = cove.json(["snapshot", "show", name]);
    shown["id"].as_str().unwrap().to_owned()
}
