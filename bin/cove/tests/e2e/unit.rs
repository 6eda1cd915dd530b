//! The shipped unit under a real systemd, whose database goes away.
//!
//! The manager is one for a user, in a mount namespace and cgroups of its own, so that it needs no host that was booted
//! by systemd. It reads the unit as it is shipped; a drop-in says only which program to run, with which data.
//! `scripts/soak` has the database away for ten minutes (`COVE_UNIT_AWAY_S`).

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::cluster::Cluster;
use super::harness::{Cove, DEADLINE, program, signal, wait_for};

const UNIT: &str = "cove.service";
/// How long the database is away when nobody says.
const AWAY: Duration = Duration::from_secs(8);
/// More starts than systemd allows a unit that sets no limit of its own: five within ten seconds.
const STARTS: u32 = 8;
const POLL: Duration = Duration::from_millis(200);
/// Units that every other one refers to.
const TARGETS: [&str; 2] = ["basic.target", "shutdown.target"];

/// Makes the namespace look booted by systemd, goes into the cgroups, and becomes the manager.
const BECOME: &str = r#"
mkdir -p /run/systemd && mount -t tmpfs tmpfs /run/systemd && mkdir /run/systemd/system || exit 1
for group in "$@"; do echo $$ > "$group/cgroup.procs" || exit 1; done
exec /lib/systemd/systemd --user --unit=basic.target
"#;

/// A systemd of its own, with the unit.
struct Manager {
    process: Child,
    folder: PathBuf,
    groups: Vec<PathBuf>,
}

impl Manager {
    fn start(cove: &Cove) -> Self {
        let folder = cove.scratch().join("systemd");
        let units = folder.join("units");
        let extra = units.join(format!("{UNIT}.d"));
        std::fs::create_dir_all(&extra).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
        let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/cove.service");
        std::fs::copy(shipped, units.join(UNIT)).unwrap();
        for target in TARGETS {
            std::fs::write(units.join(target), "[Unit]\nDefaultDependencies=no\n").unwrap();
        }
        let log = cove.scratch().join("log");
        // In the mounts of this test, not of the manager, as a host's own would be.
        let drop_in = format!(
            "[Service]\nExecStart=\nExecStart=/usr/bin/nsenter --mount=/proc/{}/ns/mnt -- {} {}\n\
             StandardError=append:{}\n",
            std::process::id(),
            program(),
            cove.arguments().join(" ").replace('%', "%%"),
            log.display(),
        );
        std::fs::write(extra.join("test.conf"), drop_in).unwrap();
        let groups = groups();
        for group in &groups {
            std::fs::create_dir(group).unwrap();
        }
        let process = Command::new("unshare")
            .args(["--mount", "sh", "-c", BECOME, "sh"])
            .args(&groups)
            .env("XDG_RUNTIME_DIR", &folder)
            .env("SYSTEMD_UNIT_PATH", &units)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut manager = Self {
            process,
            folder,
            groups,
        };
        wait_for("systemd answers", || {
            let ended = manager.process.try_wait().unwrap();
            assert!(ended.is_none(), "systemd ended: {ended:?}");
            let asked = manager.systemctl(&["show", UNIT, "-p", "LoadState", "--value"]);
            (asked.trim() == "loaded").then_some(())
        });
        manager
    }

    fn systemctl(&self, arguments: &[&str]) -> String {
        let output = Command::new("systemctl")
            .arg("--user")
            .args(arguments)
            .env("XDG_RUNTIME_DIR", &self.folder)
            .stdin(Stdio::null())
            .output()
            .expect("scripts/setup installs systemd");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn show(&self, property: &str) -> String {
        let told = self.systemctl(&["show", UNIT, "-p", property, "--value"]);
        told.trim().to_owned()
    }

    fn main_pid(&self) -> Option<i32> {
        self.show("MainPID").parse().ok().filter(|pid| *pid != 0)
    }

    fn restarts(&self) -> u32 {
        self.show("NRestarts").parse().unwrap()
    }

    /// Ends the server without a word, and waits until systemd has started another one.
    fn kill_server(&self) {
        let before = self.restarts();
        let pid = wait_for("a server runs", || self.main_pid());
        signal(pid, Signal::KILL);
        wait_for("systemd starts another server", || {
            let state = self.show("ActiveState");
            assert_ne!(state, "failed", "systemd gave up: {}", self.show("Result"));
            let next = self.main_pid()?;
            (next != pid && self.restarts() > before).then_some(())
        });
    }

    /// A server runs and has not said that it is ready.
    fn assert_waiting(&self) {
        assert_eq!(self.show("ActiveState"), "activating");
        assert_ne!(self.show("SubState"), "failed");
    }

    /// As `systemctl stop` of an operator, then the manager itself.
    fn end(&mut self) {
        self.systemctl(&["stop", UNIT]);
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // What it started has ended by now, or is on its way.
        for group in &self.groups {
            let started = Instant::now();
            while !removed(group) && started.elapsed() < DEADLINE {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn removed(group: &Path) -> bool {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            removed(&entry.path());
        }
    }
    std::fs::remove_dir(group).is_ok() || !group.exists()
}

/// One in each hierarchy that systemd could keep its units in.
fn groups() -> Vec<PathBuf> {
    let hierarchies = [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/systemd",
    ];
    let there = hierarchies.map(PathBuf::from).into_iter();
    let there = there.filter(|path| path.join("cgroup.procs").exists());
    let name = format!("cove-e2e-unit-{}", std::process::id());
    let groups: Vec<_> = there.map(|path| path.join(&name)).collect();
    assert!(
        !groups.is_empty(),
        "there is no cgroup hierarchy for systemd"
    );
    groups
}

/// Ended in this order: the server, what it left running, the manager's cgroups.
struct Installation {
    cove: Cove,
    manager: Manager,
}

impl Drop for Installation {
    fn drop(&mut self) {
        self.manager.end();
    }
}

fn away() -> Duration {
    let told = std::env::var("COVE_UNIT_AWAY_S").ok();
    told.map_or(AWAY, |text| {
        Duration::from_secs(text.parse().expect("a number of seconds"))
    })
}

#[test]
fn the_shipped_unit_recovers_from_a_database_that_is_away() {
    let mut cluster = Cluster::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = runtime.block_on(cluster.database("unit"));
    cluster.kill();
    let cove = Cove::prepare(&["--database", &address], None);
    let manager = Manager::start(&cove);
    let mut under = Installation { cove, manager };

    // From the first start on there is no database, and servers end again and again.
    under.manager.systemctl(&["start", "--no-block", UNIT]);
    for _ in 0..STARTS {
        under.manager.kill_server();
        under.manager.assert_waiting();
    }
    cluster.start_again();
    under.becomes_ready();
    under.cove.import_busybox();
    under.cove.sandbox("box");
    let count = "n=0; while :; do n=$((n+1)); echo $n > /n; sleep 0.1; done";
    under.cove.ok(["exec", "--detach", "box", "-c", count]);
    let counted = || {
        let told = under.cove.ok(["exec", "box", "--", "cat", "/n"]);
        told.trim().parse::<u64>().ok()
    };
    let before = wait_for("the sandbox counts", counted);

    // It goes away under a server that runs: that one stays, and says so to whoever asks.
    cluster.kill();
    let (started, away) = (Instant::now(), away());
    let pid = under.manager.main_pid();
    wait_for("requests are refused", || {
        let asked = under.cove.run(["exec", "box", "--", "true"]);
        (!asked.status.success()).then_some(())
    });
    assert_eq!(under.manager.main_pid(), pid, "{}", under.cove.log());
    assert_eq!(under.manager.show("ActiveState"), "active");
    // One that is killed then is followed by one that waits, for as long as it takes.
    let (mut kills, restarts) = (0, under.manager.restarts());
    while started.elapsed() < away {
        under.manager.kill_server();
        kills += 1;
        let next = started + away * kills / STARTS;
        while Instant::now() < next.min(started + away) {
            under.manager.assert_waiting();
            std::thread::sleep(POLL);
        }
    }
    under.manager.assert_waiting();
    let restarts = under.manager.restarts() - restarts;
    println!(
        "away for {:?}, {kills} servers killed meanwhile, {restarts} started again",
        started.elapsed()
    );
    // None ended by itself, but for those that found the one before them on its way out.
    assert!(restarts <= 4 * kills, "{restarts} starts for {kills} kills");
    cluster.start_again();
    let returned = Instant::now();
    under.becomes_ready();
    println!(
        "ready {:?} after the database came back",
        returned.elapsed()
    );
    // The sandbox ran through all of it.
    let after = wait_for("the sandbox counts", || {
        let told = under.cove.run(["exec", "box", "--", "cat", "/n"]);
        String::from_utf8_lossy(&told.stdout)
            .trim()
            .parse::<u64>()
            .ok()
    });
    assert!(after > before + away.as_secs(), "{before}, then {after}");
}

impl Installation {
    /// Says so to systemd, and takes work.
    fn becomes_ready(&mut self) {
        wait_for("the unit is active", || {
            (self.manager.show("ActiveState") == "active").then_some(())
        });
        wait_for("the server takes work", || {
            self.cove.run(["doctor"]).status.success().then_some(())
        });
    }
}
