//! Audit records of a real server: none is missing for what was acknowledged, whatever is killed; and
//! records changed by hand are named.

use std::collections::HashMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;

use super::cluster::Cluster;
use super::harness::{Cove, signal, wait_for};

/// Commands acknowledged between two faults.
const BETWEEN_FAULTS: usize = 25;

struct Load {
    end: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Vec<String>>>,
    callers: Vec<std::thread::JoinHandle<()>>,
}

/// One command over HTTP; the id of the request if it was answered as done.
fn exec(url: &str, key: &str) -> Option<String> {
    let output = Command::new("curl")
        .args([
            "--silent",
            "--max-time",
            "30",
            "--dump-header",
            "-",
            "--output",
            "/dev/null",
        ])
        .args(["-H", &format!("Authorization: Bearer {key}")])
        .args([
            "-H",
            "Content-Type: application/json",
            "-d",
            r#"{"argv": ["true"]}"#,
        ])
        .arg(format!("{url}/v1/sandboxes/box/exec"))
        .output()
        .unwrap();
    let head = String::from_utf8_lossy(&output.stdout).to_lowercase();
    let mut lines = head.lines();
    let done = lines.next()?.contains(" 200");
    let id = lines.find_map(|line| line.strip_prefix("x-request-id: ").map(str::to_owned))?;
    done.then_some(id)
}

impl Load {
    fn start(cove: &Cove) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let acknowledged: Arc<Mutex<Vec<String>>> = Arc::default();
        let read = |name: &str| {
            let text = std::fs::read_to_string(cove.data_dir().join(name)).unwrap();
            text.trim().to_owned()
        };
        let (url, key) = (read("url"), read("root.key"));
        let callers = (0..3)
            .map(|_| {
                let (end, acknowledged) = (Arc::clone(&end), Arc::clone(&acknowledged));
                let (url, key) = (url.clone(), key.clone());
                std::thread::spawn(move || {
                    while !end.load(Ordering::Relaxed) {
                        match exec(&url, &key) {
                            Some(id) => acknowledged.lock().unwrap().push(id),
                            None => std::thread::sleep(Duration::from_millis(20)),
                        }
                    }
                })
            })
            .collect();
        Self {
            end,
            acknowledged,
            callers,
        }
    }

    fn grow(&self) {
        let wanted = self.acknowledged.lock().unwrap().len() + BETWEEN_FAULTS;
        wait_for("commands are answered", || {
            (self.acknowledged.lock().unwrap().len() >= wanted).then_some(())
        });
    }

    fn finish(self) -> Vec<String> {
        self.end.store(true, Ordering::Relaxed);
        self.callers
            .into_iter()
            .for_each(|caller| caller.join().unwrap());
        self.acknowledged.lock().unwrap().clone()
    }
}

#[test]
fn every_acknowledged_command_has_one_record_whatever_is_killed() {
    let mut cluster = Cluster::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = runtime.block_on(cluster.database("books"));
    let cove = Cove::start_with(&["--database", &address]);
    cove.sandbox("box");
    let load = Load::start(&cove);
    for _ in 0..2 {
        load.grow();
        signal(cove.role_pid("control"), Signal::KILL);
        load.grow();
        cluster.kill();
        cluster.start_again();
        load.grow();
        cluster.signal_all(Signal::STOP);
        std::thread::sleep(Duration::from_millis(200));
        cluster.signal_all(Signal::CONT);
    }
    load.grow();
    let acknowledged = load.finish();
    wait_for("the server is ready", || {
        cove.run(["doctor"]).status.success().then_some(())
    });
    let file = cove.scratch().join("audit.ndjson");
    cove.ok(["audit", "export", "--output", file.to_str().unwrap()]);
    let mut done: HashMap<String, u32> = HashMap::new();
    for line in std::fs::read_to_string(&file).unwrap().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        if line["action"] == "process.exec" && line["result"] == "ok" {
            *done
                .entry(line["request_id"].as_str().unwrap().to_owned())
                .or_default() += 1;
        }
    }
    for id in &acknowledged {
        assert_eq!(
            done.get(id),
            Some(&1),
            "{id} of {} acknowledged",
            acknowledged.len()
        );
    }
    cove.ok(["audit", "verify"]);
    cove.ok(["audit", "verify", file.to_str().unwrap()]);
    cove.ok(["rm", "box"]);
}

#[test]
fn records_changed_in_the_database_or_in_an_export_are_named() {
    let cove = Cove::start_with(&[]);
    for name in ["one", "two", "three"] {
        cove.ok(["key", "create", name, "--scope", "read"]);
    }
    let file = cove.scratch().join("audit.ndjson");
    let path = file.to_str().unwrap();
    cove.ok(["audit", "export", "--output", path]);
    let head = cove.json(["audit", "verify", path])[0].clone();
    let kept = format!("{}:{}", head["sequence"], head["hash"].as_str().unwrap());
    cove.ok(["audit", "verify", path, "--head", &kept]);
    let other = format!("{}:{}", head["sequence"], "0".repeat(64));
    assert!(
        !cove
            .run(["audit", "verify", path, "--head", &other])
            .status
            .success()
    );

    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        text.replace("\"target\":\"two\"", "\"target\":\"six\""),
    )
    .unwrap();
    let told = cove.run(["--json", "audit", "verify", path]);
    assert!(!told.status.success());
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    let at = told[0]["broken_at"].as_u64().unwrap();
    assert!(
        text.lines()
            .nth(usize::try_from(at).unwrap())
            .unwrap()
            .contains("two"),
        "{told}"
    );

    let database = cove.data_dir().join("control/cove.db");
    let changed = Command::new("sqlite3")
        .arg(&database)
        .arg("UPDATE audit SET target = 'six' WHERE target = 'two'")
        .status()
        .unwrap();
    assert!(changed.success());
    let doctor = cove.run(["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        !doctor.status.success() && said.contains(&format!("record {at} was changed")),
        "{said}"
    );
}
