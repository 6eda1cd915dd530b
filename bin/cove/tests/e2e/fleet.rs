//! A small fleet on one machine: a control plane and two nodes, each in a network namespace of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{program, wait_for};

/// Tests run beside each other: each fleet has names and addresses of its own.
fn number() -> u32 {
    std::process::id() % 60 * 4
}

fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {text}");
    output
}

/// A network namespace with one way out: to the namespace of the test.
struct Namespace {
    name: String,
    inside: String,
    outside: String,
}

impl Namespace {
    fn new(index: u32) -> Self {
        let name = format!("covefl{}x{index}", std::process::id());
        let (a, b) = (number() + index, 0);
        let (outside, inside) = (
            format!("10.213.{a}.{}", b + 1),
            format!("10.213.{a}.{}", b + 2),
        );
        let veth = format!("cf{}x{index}", std::process::id() % 100_000);
        run("ip", &["netns", "add", &name]);
        let made = Self {
            name: name.clone(),
            inside: inside.clone(),
            outside: outside.clone(),
        };
        run(
            "ip",
            &[
                "link", "add", &veth, "type", "veth", "peer", "name", "eth0", "netns", &name,
            ],
        );
        run(
            "ip",
            &["addr", "add", &format!("{outside}/30"), "dev", &veth],
        );
        run("ip", &["link", "set", &veth, "up"]);
        for args in [
            vec!["addr", "add", &format!("{inside}/30"), "dev", "eth0"],
            vec!["link", "set", "eth0", "up"],
            vec!["link", "set", "lo", "up"],
        ] {
            made.ip(&args);
        }
        made
    }

    fn ip(&self, args: &[&str]) {
        let mut whole = vec!["netns", "exec", &self.name, "ip"];
        whole.extend(args);
        run("ip", &whole);
    }

    /// For `nsenter`. `ip netns exec` would mount another /sys, without cgroups.
    fn enter(&self) -> String {
        format!("--net=/run/netns/{}", self.name)
    }

    /// Drops everything that comes and goes, until it is told otherwise.
    fn cut(&self, cut: bool) {
        let rules = match cut {
            true => {
                "add table inet cut; add chain inet cut in { type filter hook input priority -300; policy drop; }; \
                     add chain inet cut out { type filter hook output priority -300; policy drop; }"
            }
            false => "delete table inet cut",
        };
        run("ip", &["netns", "exec", &self.name, "nft", rules]);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        Command::new("ip")
            .args(["netns", "del", &self.name])
            .status()
            .ok();
    }
}

/// `cove control` or `cove node run`, ended with the test.
struct Process {
    child: Child,
}

impl Process {
    fn child_of(&self, role: &str) -> Option<Pid> {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(path).ok()?;
        children.split_whitespace().find_map(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            let is_it = line.contains(&format!("--role\0{role}"));
            is_it.then(|| Pid::from_raw(pid.parse().ok()?)).flatten()
        })
    }

    fn signal(&self, role: &str, signal: Signal) {
        let pid = wait_for("a child", || self.child_of(role));
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) else {
            return;
        };
        for role in ["relay", "runner", "control"] {
            if let Some(child) = self.child_of(role) {
                kill_process(child, Signal::CONT).ok();
            }
        }
        kill_process(pid, Signal::TERM).ok();
        self.child.wait().ok();
    }
}

struct Fleet {
    // Before the directory that they work in.
    processes: Vec<(String, Process)>,
    namespaces: Vec<Namespace>,
    dir: TempDir,
    url: String,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.processes.clear();
        for name in ["n1", "n2"] {
            let data = self.data(name);
            if data.exists() {
                Command::new(program())
                    .args(["destroy", "--yes", "--data-dir"])
                    .arg(&data)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status()
                    .ok();
            }
        }
    }
}

impl Fleet {
    /// A control plane, in the namespace of the test.
    fn start() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("cove-fleet-")
            .tempdir_in("/var/tmp")
            .unwrap();
        let mut fleet = Self {
            processes: Vec::new(),
            namespaces: vec![Namespace::new(1), Namespace::new(2)],
            dir,
            url: String::new(),
        };
        fleet.launch_control();
        fleet
    }

    fn launch_control(&mut self) {
        let objects = format!("file://{}", self.data("bucket").display());
        // Reached from both namespaces by the address at the test's end of each.
        let child = Command::new(program())
            .args([
                "control",
                "--listen",
                "0.0.0.0:0",
                "--preview-listen",
                "off",
            ])
            .args(["--ssh-listen", "off", "--objects", &objects, "--data-dir"])
            .arg(self.data("control"))
            .stdin(Stdio::null())
            .stderr(self.log("control"))
            .spawn()
            .unwrap();
        self.processes.push(("control".into(), Process { child }));
        self.url = wait_for("the control plane", || {
            let url = std::fs::read_to_string(self.data("control").join("url")).ok()?;
            let up = self.cove_unchecked(&["node", "ls"]);
            up.status.success().then(|| url.trim().to_owned())
        });
    }

    fn data(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self, name: &str) -> Stdio {
        let path = self.dir.path().join(format!("{name}.log"));
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(path);
        file.unwrap().into()
    }

    fn cove_unchecked(&self, args: &[&str]) -> Output {
        Command::new(program())
            .args(args)
            .env("COVE_DATA_DIR", self.data("control"))
            .output()
            .unwrap()
    }

    fn cove(&self, args: &[&str]) -> String {
        let output = self.cove_unchecked(args);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success(),
            "cove {args:?}: {text}\n{}",
            self.logs()
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = self.cove_unchecked(args);
        assert!(!output.status.success(), "cove {args:?} worked");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn json(&self, args: &[&str]) -> Value {
        let mut whole = args.to_vec();
        whole.push("--json");
        serde_json::from_str(&self.cove(&whole)).unwrap()
    }

    fn logs(&self) -> String {
        let mut text = String::new();
        for name in ["control", "n1", "n2"] {
            let path = self.dir.path().join(format!("{name}.log"));
            let log = std::fs::read_to_string(path).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(25).collect();
            text.push_str(&format!("--- {name}\n"));
            for line in last.iter().rev() {
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }

    fn url_from(&self, index: usize) -> String {
        let port = self.url.rsplit(':').next().unwrap();
        format!("http://{}:{port}", self.namespaces[index].outside)
    }

    fn join(&self, index: usize, name: &str, token: &str, data: &Path) -> Output {
        let namespace = &self.namespaces[index];
        let address = format!("{}:7071", namespace.inside);
        Command::new("nsenter")
            .args([&namespace.enter(), program()])
            .args(["node", "join", &self.url_from(index), "--token", token])
            .args(["--name", name, "--address", &address, "--data-dir"])
            .arg(data)
            .output()
            .unwrap()
    }

    fn launch_node(&mut self, index: usize, name: &str) {
        let child = Command::new("nsenter")
            .args([&self.namespaces[index].enter(), program()])
            .args(["node", "run", "--pool-mb", "4096", "--import-dirs"])
            .arg(self.data("control").join("import"))
            .arg("--data-dir")
            .arg(self.data(name))
            .stdin(Stdio::null())
            .stderr(self.log(name))
            .spawn()
            .unwrap();
        self.processes.push((name.into(), Process { child }));
    }

    fn process(&self, name: &str) -> &Process {
        let found = self.processes.iter().find(|(known, _)| known == name);
        &found.unwrap().1
    }

    fn end(&mut self, name: &str) {
        self.processes.retain(|(known, _)| known != name);
    }

    fn wait_for_state(&self, node: &str, state: &str) {
        wait_for(&format!("{node} is {state}"), || {
            let shown = self.cove_unchecked(&["node", "show", node, "--json"]);
            let shown: Value = serde_json::from_slice(&shown.stdout).ok()?;
            let known = shown["capacity"].is_object() || state == "away";
            (shown["state"] == state && known).then_some(())
        });
    }

    /// An image of one static program, on every node: an import goes to the first that takes something.
    fn import(&self) {
        let root = self.dir.path().join("busybox");
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::create_dir_all(root.join("tmp")).unwrap();
        std::fs::copy("/bin/busybox", root.join("bin/busybox"))
            .expect("the host has busybox-static");
        for applet in ["sh", "cat", "echo", "sleep", "true", "ls", "dd", "head"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
        let root = root.to_str().unwrap();
        for (other, name) in [("n2", "one"), ("n1", "two")] {
            self.cove(&["node", "cordon", other]);
            self.cove(&["image", "import", name, root]);
            self.cove(&["node", "uncordon", other]);
        }
        // Nodes tell every few seconds what they have.
        for name in ["one", "two"] {
            wait_for("the image is known", || {
                let made = self.cove_unchecked(&["create", "--image", name, "--name", name]);
                made.status.success().then_some(())
            });
        }
    }

    fn exec(&self, sandbox: &str, command: &[&str]) -> String {
        let mut args = vec!["exec", sandbox, "--"];
        args.extend(command);
        self.cove(&args)
    }
}

#[test]
fn a_fleet_of_two_nodes_from_nothing() {
    let mut fleet = Fleet::start();
    assert!(
        fleet
            .refused(&["create", "--image", "one"])
            .contains("no nodes yet")
    );

    // What is no token, one that was used, and one that has expired.
    let token = fleet.cove(&["node", "token"]);
    let told = |output: Output| {
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let (n1, n2) = (fleet.data("n1"), fleet.data("n2"));
    assert!(told(fleet.join(0, "n1", "covejoin_00", &n1)).contains("not a join token"));
    let mut forged = token.clone();
    forged.replace_range(30..34, "0000");
    assert!(told(fleet.join(0, "n1", &forged, &n1)).contains("does not know the join token"));
    let short = fleet.cove(&["node", "token", "--expires", "1s"]);
    std::thread::sleep(Duration::from_millis(1100));
    assert!(told(fleet.join(0, "n1", &short, &n1)).contains("expired"));
    let joined = fleet.join(0, "n1", &token, &n1);
    assert!(joined.status.success(), "{joined:?}\n{}", fleet.logs());
    assert!(told(fleet.join(1, "n2", &token, &n2)).contains("used already"));
    assert!(told(fleet.join(0, "n1", &token, &n1)).contains("joined the fleet already"));
    let second = fleet.cove(&["node", "token"]);
    assert!(told(fleet.join(1, "n1", &second, &n2)).contains("named n1"));
    let joined = fleet.join(1, "n2", &second, &n2);
    assert!(joined.status.success(), "{joined:?}");

    fleet.launch_node(0, "n1");
    fleet.launch_node(1, "n2");
    for node in ["n1", "n2"] {
        fleet.wait_for_state(node, "ready");
    }
    fleet.import();

    // Each image is on one node only, so the sandboxes are on two.
    let host = |name: &str| {
        let nodes = fleet.json(&["node", "ls"]);
        let on: Vec<Value> = nodes.as_array().unwrap().clone();
        let node = if name == "one" { "n1" } else { "n2" };
        on.into_iter().find(|shown| shown["name"] == node).unwrap()["capacity"].clone()
    };
    for name in ["one", "two"] {
        wait_for("the node tells of its sandbox", || {
            (host(name)["running"] == 1).then_some(())
        });
        assert_eq!(fleet.exec(name, &["echo", "hello"]), "hello");
        fleet.cove(&["exec", name, "--", "sh", "-c", "echo kept > /tmp/file"]);
        let big = fleet.exec(
            name,
            &["sh", "-c", "dd if=/dev/zero bs=1000 count=3000 2>/dev/null"],
        );
        assert_eq!(big.len(), 3_000_000);
    }
    // A file goes there and back.
    let local = fleet.dir.path().join("payload");
    std::fs::write(&local, vec![b'x'; 2_000_000]).unwrap();
    fleet.cove(&["cp", local.to_str().unwrap(), "two:/tmp/payload"]);
    let back = fleet.dir.path().join("back");
    fleet.cove(&["cp", "two:/tmp/payload", back.to_str().unwrap()]);
    assert_eq!(std::fs::read(&back).unwrap().len(), 2_000_000);
    // A snapshot travels as a file, which has a connection of its own.
    fleet.cove(&["snapshot", "two", "--name", "before"]);
    let fork = fleet.json(&["fork", "two", "--name", "fork"]);
    assert!(fork.to_string().contains("sbx_"), "{fork}");
    assert_eq!(fleet.exec("fork", &["cat", "/tmp/file"]), "kept");

    // A node away: its sandboxes say so, calls name it, others are as before.
    for cut in [
        "partition",
        "relay killed",
        "relay stopped",
        "runner killed",
    ] {
        match cut {
            "partition" => fleet.namespaces[1].cut(true),
            "relay killed" => fleet.process("n2").signal("relay", Signal::KILL),
            "relay stopped" => fleet.process("n2").signal("relay", Signal::STOP),
            _ => fleet.process("n2").signal("runner", Signal::KILL),
        }
        if ["partition", "relay stopped"].contains(&cut) {
            fleet.wait_for_state("n2", "away");
            let refused = fleet.refused(&["exec", "two", "--", "true"]);
            assert!(refused.contains("node n2 does not answer"), "{refused}");
            let shown = fleet.json(&["show", "two"]);
            assert!(
                shown.to_string().contains("node n2 does not answer"),
                "{shown}"
            );
            assert_eq!(fleet.exec("one", &["cat", "/tmp/file"]), "kept");
        }
        match cut {
            "partition" => fleet.namespaces[1].cut(false),
            "relay stopped" => fleet.process("n2").signal("relay", Signal::CONT),
            _ => {}
        }
        fleet.wait_for_state("n2", "ready");
        wait_for("commands work again", || {
            let kept = fleet.cove_unchecked(&["exec", "two", "--", "cat", "/tmp/file"]);
            (kept.stdout == b"kept\n").then_some(())
        });
    }
    // The control plane killed: the next one goes on.
    fleet.process("control").signal("control", Signal::KILL);
    wait_for("control works again", || {
        let kept = fleet.cove_unchecked(&["exec", "two", "--", "cat", "/tmp/file"]);
        (kept.stdout == b"kept\n").then_some(())
    });

    // A cordoned node takes nothing new.
    fleet.cove(&["node", "cordon", "n2"]);
    let refused = fleet.refused(&["create", "--image", "two"]);
    assert!(refused.contains("cordoned"), "{refused}");
    fleet.cove(&["node", "uncordon", "n2"]);
    let doctor = fleet.json(&["doctor"]);
    assert!(doctor.to_string().contains("node n2"), "{doctor}");

    // It is removed only when it is empty, or when it is lost. What object storage has goes on elsewhere.
    fleet.cove(&["snapshot", "two", "--name", "durable", "--durable"]);
    assert!(fleet.refused(&["node", "rm", "n2"]).contains("still has"));
    let lost = ["node", "rm", "n2", "--lost"];
    assert!(fleet.refused(&lost).contains("answers"));
    fleet.namespaces[1].cut(true);
    fleet.wait_for_state("n2", "away");
    let refused = fleet.refused(&["create", "--snapshot", "before"]);
    assert!(refused.contains("node n2 does not answer"), "{refused}");
    fleet.cove(&["create", "--snapshot", "durable", "--name", "elsewhere"]);
    assert_eq!(fleet.exec("elsewhere", &["cat", "/tmp/file"]), "kept");
    fleet.cove(&lost);
    assert!(fleet.refused(&["node", "show", "n2"]).contains("n2"));
    for gone in ["two", "fork"] {
        assert!(fleet.refused(&["show", gone]).contains(gone));
    }
    let left = fleet.json(&["snapshots"]);
    let names: Vec<_> = left
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].clone())
        .collect();
    assert_eq!(names, ["durable"]);
    fleet.cove(&["create", "--snapshot", "durable", "--name", "two"]);
    assert_eq!(fleet.exec("two", &["cat", "/tmp/file"]), "kept");
    assert_eq!(fleet.exec("one", &["echo", "still"]), "still");
    fleet.namespaces[1].cut(false);
    fleet.end("n2");
}
