//! What one engine has left on the host: found by its name and its directory, so that engines of
//! other tests are never counted and never touched.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

const CLAIMS: &str = "/run/cove/uids";
/// How indices of ranges, and with them names of interfaces, follow from blocks of claims.
const FIRST_RANGE: u32 = 0x7000;
const BLOCK_RANGES: u32 = 256;
/// How long killed processes may hold their group when cleaning up by hand.
const EMPTY_DEADLINE: Duration = Duration::from_secs(120);

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Traces {
    /// Mount points below the engine's directory.
    pub mounts: Vec<PathBuf>,
    /// Loop devices on files below it, but for those that only a mount namespace of somebody else
    /// still holds: a copy of the host's mounts keeps every filesystem in it until it goes.
    pub loops: Vec<PathBuf>,
    /// The engine's own groups, one in each hierarchy.
    pub parents: Vec<PathBuf>,
    /// Groups of sandboxes and seats by name, with every directory each has.
    pub groups: BTreeMap<String, Vec<PathBuf>>,
    /// Processes in any of those groups, zombies not counted, and the gateway.
    pub processes: BTreeSet<i32>,
    /// Blocks of uid ranges claimed in the engine's name.
    pub claims: Vec<PathBuf>,
    /// Interfaces of the claimed ranges, in the test's own network namespace.
    pub interfaces: Vec<String>,
    /// The engine's packet filter table, likewise.
    pub tables: Vec<String>,
    /// The gateway's address as the engine's own, likewise.
    pub routes: Vec<String>,
    pub records: BTreeSet<String>,
    /// Volumes of sandboxes.
    pub volumes: BTreeSet<String>,
    /// Volumes and records of snapshots.
    pub snapshots: BTreeSet<String>,
    pub snapshot_records: BTreeSet<String>,
    /// Volumes that only exist while something is being made or deleted.
    pub unfinished: BTreeSet<String>,
}

/// Files of records; what was flushed before a record's newest content belongs to it.
fn records(dir: &Path) -> BTreeSet<String> {
    let all: BTreeSet<String> = names(dir).into_iter().collect();
    let belongs = |name: &String| {
        name.strip_suffix(".flushed")
            .is_some_and(|record| all.contains(&format!("{record}.json")))
    };
    all.iter().filter(|name| !belongs(name)).cloned().collect()
}

impl Traces {
    pub fn find(instance: &str, dir: &Path) -> Self {
        let mut traces = Self::default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
        for line in mounts.lines() {
            let at = Path::new(line.split(' ').nth(4).unwrap_or_default());
            if at.starts_with(dir) {
                traces.mounts.push(at.to_owned());
            }
            let kind = line
                .split_once(" - ")
                .and_then(|(_, rest)| rest.split(' ').next());
            if !instance.is_empty() && matches!(kind, Some("cgroup" | "cgroup2")) {
                let parent = at.join(format!("cove-{instance}"));
                if parent.is_dir() {
                    traces.parents.push(parent);
                }
            }
        }
        for parent in &traces.parents {
            for name in names(parent) {
                let group = parent.join(&name);
                if !group.is_dir() {
                    continue;
                }
                let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
                traces
                    .processes
                    .extend(listed.lines().filter_map(|line| line.parse::<i32>().ok()));
                traces.groups.entry(name).or_default().push(group);
            }
        }
        for name in names(Path::new("/sys/block")) {
            let file = Path::new("/sys/block")
                .join(&name)
                .join("loop/backing_file");
            let backing = fs::read_to_string(file).unwrap_or_default();
            let device = Path::new("/dev").join(name);
            if Path::new(backing.trim_end()).starts_with(dir) {
                traces.loops.push(device);
            }
        }
        if traces.mounts.is_empty() && !traces.loops.is_empty() {
            let elsewhere = mounted_elsewhere();
            traces.loops.retain(|device| !elsewhere.contains(device));
        }
        for name in names(Path::new(CLAIMS)) {
            let path = Path::new(CLAIMS).join(name);
            let ours = fs::read(&path)
                .ok()
                .and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok())
                .is_some_and(|claim| claim["instance"] == instance);
            if ours {
                traces.claims.push(path);
            }
        }
        traces.find_network(instance);
        let data = dir.join("data");
        let gateway = fs::read_to_string(data.join("gateway/process")).unwrap_or_default();
        let gateway = gateway
            .split_whitespace()
            .next()
            .and_then(|pid| pid.parse::<i32>().ok());
        traces.processes.extend(gateway.filter(|pid| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.starts_with(b"cove-gateway"))
        }));
        traces.records = records(&data.join("records"));
        traces.volumes = names(&data.join("pool/sandboxes")).into_iter().collect();
        traces.snapshots = names(&data.join("pool/snapshots")).into_iter().collect();
        traces.snapshot_records = records(&data.join("snapshots"));
        for folder in ["staging", "trash", "partial"] {
            traces.unfinished.extend(
                names(&data.join("pool").join(folder))
                    .into_iter()
                    .map(|name| format!("{folder}/{name}")),
            );
        }
        traces
    }

    /// Whether the host is as if the engine had never been.
    pub fn on_host_is_empty(&self) -> bool {
        self.mounts.is_empty()
            && self.loops.is_empty()
            && self.parents.is_empty()
            && self.processes.is_empty()
            && self.claims.is_empty()
            && self.interfaces.is_empty()
            && self.tables.is_empty()
            && self.routes.is_empty()
    }

    fn find_network(&mut self, instance: &str) {
        let blocks: Vec<u32> = self
            .claims
            .iter()
            .filter_map(|claim| claim.file_name()?.to_str()?.parse().ok())
            .collect();
        self.interfaces = names(Path::new("/sys/class/net"))
            .into_iter()
            .filter(|name| {
                name.strip_prefix("cv")
                    .and_then(|index| index.parse::<u32>().ok())
                    .and_then(|index| index.checked_sub(FIRST_RANGE))
                    .is_some_and(|index| blocks.contains(&(index / BLOCK_RANGES)))
            })
            .collect();
        let metric = u32::from_str_radix(instance, 16).map(|metric| format!("metric {metric}"));
        let local = std::process::Command::new("ip")
            .args(["route", "show", "table", "local"])
            .output();
        let local = local.map(|output| output.stdout).unwrap_or_default();
        self.routes = String::from_utf8_lossy(&local)
            .lines()
            .map(|line| line.trim().to_owned())
            .filter(|line| {
                metric
                    .as_ref()
                    .is_ok_and(|metric| line.ends_with(metric.as_str()))
            })
            .collect();
        // Without the program to ask, nothing is known.
        let listed = std::process::Command::new("nft")
            .args(["list", "tables"])
            .output();
        let listed = listed.map(|output| output.stdout).unwrap_or_default();
        self.tables = String::from_utf8_lossy(&listed)
            .lines()
            .filter(|line| !instance.is_empty() && line.contains(&format!("cove-{instance}")))
            .map(str::to_owned)
            .collect();
    }

    /// The last resort of a failed test.
    pub fn remove_from_host(&self) {
        let deadline = Instant::now() + EMPTY_DEADLINE;
        // What is frozen does not die, in version 1 of control groups.
        for dir in self.groups.values().flatten() {
            let _ = fs::write(dir.join("freezer.state"), "THAWED");
        }
        for pid in &self.processes {
            if let Some(pid) = Pid::from_raw(*pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        for dir in self.groups.values().flatten().chain(&self.parents) {
            while fs::remove_dir(dir).is_err() && dir.exists() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        for mount in self.mounts.iter().rev() {
            let _ = unmount(mount, UnmountFlags::DETACH);
        }
        for device in &self.loops {
            let _ = std::process::Command::new("losetup")
                .arg("--detach")
                .arg(device)
                .output();
        }
        for name in &self.interfaces {
            let _ = std::process::Command::new("ip")
                .args(["link", "del", name])
                .output();
        }
        for table in &self.tables {
            let words = format!("delete {table}");
            let _ = std::process::Command::new("nft")
                .args(words.split(' '))
                .output();
        }
        for route in &self.routes {
            let words = format!("route del table local {route}");
            let _ = std::process::Command::new("ip")
                .args(words.split_whitespace())
                .output();
        }
        for claim in &self.claims {
            let _ = fs::remove_file(claim);
        }
    }
}

/// Every device that is mounted in the mount namespace of any process.
fn mounted_elsewhere() -> BTreeSet<PathBuf> {
    let tables = names(Path::new("/proc"))
        .into_iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok());
    let mut devices = BTreeSet::new();
    for table in tables {
        devices.extend(table.lines().filter_map(|line| {
            let (_, rest) = line.split_once(" - ")?;
            rest.split(' ').nth(1).map(PathBuf::from)
        }));
    }
    devices
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
