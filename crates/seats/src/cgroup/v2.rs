//! Version 2: one directory, all controllers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cove_isolation::Usage;

use super::{CPU_PERIOD_USEC, MemoryLimit, keyed, read_number, write};

/// Without all of these a sandbox could not be limited.
const NEEDED: [&str; 4] = ["memory", "cpu", "pids", "cpuset"];
/// Used when there.
const WANTED: [&str; 1] = ["io"];

#[derive(Debug)]
pub struct Hierarchy {
    parent: PathBuf,
    /// Controllers that sandboxes are limited with.
    used: Vec<&'static str>,
}

#[derive(Debug, Clone)]
pub struct Group {
    pub dir: PathBuf,
}

/// Microseconds of CPU time of a group and everything below it.
pub fn cpu_used(dir: &Path) -> io::Result<u64> {
    let stat = fs::read_to_string(dir.join("cpu.stat"))?;
    keyed(&stat, "usage_usec").ok_or_else(|| io::Error::other("cpu.stat has no usage"))
}

impl Hierarchy {
    pub fn open(mountinfo: &str, name: &str) -> io::Result<Self> {
        let root = mountinfo
            .lines()
            .filter_map(|line| line.split_once(" - "))
            .find(|(_, rest)| rest.starts_with("cgroup2 "))
            .and_then(|(mount, _)| mount.split(' ').nth(4))
            .map(PathBuf::from)
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::NotFound,
                    "no cgroup filesystem with the needed controllers is mounted",
                )
            })?;
        let available = fs::read_to_string(root.join("cgroup.controllers"))?;
        let has = |controller: &str| available.split_whitespace().any(|name| name == controller);
        if let Some(missing) = NEEDED.iter().find(|controller| !has(controller)) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the cgroup controller '{missing}' is not available"),
            ));
        }
        let hierarchy = Self {
            parent: root.join(name),
            used: NEEDED
                .into_iter()
                .chain(WANTED)
                .filter(|controller| has(controller))
                .collect(),
        };
        for controller in &hierarchy.used {
            delegate(&root, controller)?;
        }
        hierarchy.make_parent()?;
        Ok(hierarchy)
    }

    fn make_parent(&self) -> io::Result<()> {
        fs::create_dir_all(&self.parent)?;
        for controller in &self.used {
            delegate(&self.parent, controller)?;
        }
        Ok(())
    }

    pub fn parent(&self) -> &Path {
        &self.parent
    }

    pub fn cpus(&self) -> io::Result<String> {
        fs::read_to_string(self.parent.join("cpuset.cpus.effective"))
    }

    pub fn group(&self, name: &str) -> Group {
        Group {
            dir: self.parent.join(name),
        }
    }

    pub fn create(&self, name: &str) -> io::Result<Group> {
        let group = self.group(name);
        match fs::create_dir(&group.dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // Another engine took this one for dead and removed its empty group.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_parent()?;
                fs::create_dir(&group.dir)?;
            }
            other => other?,
        }
        Ok(group)
    }
}

/// Lets children of `dir` use a controller. Inside a container the top group holds processes, which
/// version 2 forbids for a group that delegates; they move to a leaf beside ours first.
fn delegate(dir: &Path, controller: &str) -> io::Result<()> {
    let control = dir.join("cgroup.subtree_control");
    let enable = || write(&control, &format!("+{controller}"));
    match enable() {
        Err(_) if !is_delegated(&control, controller) => {
            let leaf = dir.join("cove-others");
            fs::create_dir_all(&leaf)?;
            for pid in fs::read_to_string(dir.join("cgroup.procs"))?.lines() {
                // A process may have ended, and kernel threads do not move: what counts is the retry.
                let _ = fs::write(leaf.join("cgroup.procs"), pid);
            }
            enable()
        }
        other => other,
    }
}

fn is_delegated(control: &Path, controller: &str) -> bool {
    fs::read_to_string(control)
        .is_ok_and(|list| list.split_whitespace().any(|name| name == controller))
}

impl Group {
    pub fn set_memory(&self, limit: MemoryLimit) -> io::Result<()> {
        let swap = self.dir.join("memory.swap.max");
        if swap.exists() {
            write(&swap, "0")?;
        }
        // An elastic group is slowed at `high` while the engine grows it, and dies only at `max`.
        let high = if limit.may_grow() {
            limit.now_bytes.to_string()
        } else {
            "max".into()
        };
        write(
            &self.dir.join("memory.max"),
            &limit.ceiling_bytes.to_string(),
        )?;
        write(&self.dir.join("memory.high"), &high)
    }

    pub fn set_cpu(&self, quota_usec: u64, cpus: &str) -> io::Result<()> {
        write(
            &self.dir.join("cpu.max"),
            &format!("{quota_usec} {CPU_PERIOD_USEC}"),
        )?;
        write(&self.dir.join("cpuset.cpus"), cpus)
    }

    pub fn set_io(
        &self,
        (major, minor): (u32, u32),
        read: Option<u64>,
        write_bytes: Option<u64>,
    ) -> io::Result<()> {
        let show = |limit: Option<u64>| limit.map_or("max".into(), |bytes| bytes.to_string());
        write(
            &self.dir.join("io.max"),
            &format!(
                "{major}:{minor} rbps={} wbps={}",
                show(read),
                show(write_bytes)
            ),
        )
    }

    pub fn usage(&self) -> io::Result<Usage> {
        let cpu = fs::read_to_string(self.dir.join("cpu.stat"))?;
        let stat = fs::read_to_string(self.dir.join("memory.stat"))?;
        let events = fs::read_to_string(self.dir.join("memory.events"))?;
        let current = read_number(&self.dir.join("memory.current"))?;
        Ok(Usage {
            cpu_usec: keyed(&cpu, "usage_usec").unwrap_or(0),
            memory_bytes: current,
            memory_reclaimable_bytes: keyed(&stat, "inactive_file").unwrap_or(0)
                + keyed(&stat, "active_file").unwrap_or(0),
            // Kernels before 5.19 do not keep a peak.
            memory_peak_bytes: read_number(&self.dir.join("memory.peak")).unwrap_or(current),
            pids: read_number(&self.dir.join("pids.current"))?,
            oom_kills: keyed(&events, "oom_kill").unwrap_or(0),
            ..Usage::default()
        })
    }
}
