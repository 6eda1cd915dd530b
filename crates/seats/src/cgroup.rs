//! Resource limits by cgroups, of whichever version this host runs. Which one is decided once, when
//! the tier opens; a hybrid host counts as version 1 when that is where the controllers are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cove_isolation::{IsolationError, MemoryEvent, Usage, slots};
use cove_model::Resources;
use cove_spawner::message::CgroupEntry;

mod abandoned;
mod freeze;
mod v1;
mod v2;
mod watch;

pub use watch::MemoryWatch;

/// Length of the period CPU time is counted over.
const CPU_PERIOD_USEC: u64 = 100_000;

/// The part of its limit that an elastic group has left when it is grown.
const MARK_DIVISOR: u64 = 8;

#[derive(Debug)]
pub enum Cgroups {
    V1(v1::Hierarchy),
    V2(v2::Hierarchy),
}

/// One sandbox's cgroup.
#[derive(Debug, Clone)]
pub enum Group {
    V1(v1::Group),
    V2(v2::Group),
}

/// How much memory the kernel lets the group have, and when it may grow.
#[derive(Debug, Clone, Copy)]
pub struct MemoryLimit {
    pub now_bytes: u64,
    /// Above `now_bytes`: the group is elastic, and the kernel kills only here.
    pub ceiling_bytes: u64,
}

impl MemoryLimit {
    pub fn of(limits: &Resources, now_mb: u64) -> Self {
        Self {
            now_bytes: now_mb << 20,
            ceiling_bytes: limits.memory_ceiling_mb() << 20,
        }
    }

    /// No use of memory calls for growth.
    pub const NO_MARK: u64 = u64::MAX;

    fn may_grow(&self) -> bool {
        self.now_bytes < self.ceiling_bytes
    }

    /// In use beyond this, what cannot be taken back calls for growth: a little below the limit.
    pub fn mark(&self) -> u64 {
        match self.may_grow() {
            true => self.now_bytes - self.now_bytes / MARK_DIVISOR,
            false => Self::NO_MARK,
        }
    }
}

impl Cgroups {
    /// Finds the controllers and makes this engine's own parent group, called `name`.
    pub fn open(name: &str) -> Result<Self, IsolationError> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")
            .map_err(IsolationError::failed("read the mount table"))?;
        match v1::Hierarchy::find(&mounts) {
            Some(found) => v1::Hierarchy::open(found, name).map(Self::V1),
            None => v2::Hierarchy::open(&mounts, name).map(Self::V2),
        }
        .map_err(IsolationError::failed("set up cgroups"))
    }

    pub fn version(&self) -> u8 {
        match self {
            Self::V1(_) => 1,
            Self::V2(_) => 2,
        }
    }

    pub fn create(&self, name: &str) -> io::Result<Group> {
        match self {
            Self::V1(hierarchy) => hierarchy.create(name).map(Group::V1),
            Self::V2(hierarchy) => hierarchy.create(name).map(Group::V2),
        }
    }

    /// A group that exists already, or what is left of one.
    pub fn existing(&self, name: &str) -> Group {
        match self {
            Self::V1(hierarchy) => Group::V1(hierarchy.group(name)),
            Self::V2(hierarchy) => Group::V2(hierarchy.group(name)),
        }
    }

    pub fn list(&self) -> io::Result<Vec<String>> {
        let mut names = std::collections::BTreeSet::new();
        for parent in self.parents() {
            for entry in fs::read_dir(parent)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    names.insert(entry.file_name().to_string_lossy().into_owned());
                }
            }
        }
        Ok(names.into_iter().collect())
    }

    /// Groups of sandboxes, by the one hierarchy that lists their processes.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let parent = match self {
            Self::V1(hierarchy) => hierarchy.parent("memory"),
            Self::V2(hierarchy) => hierarchy.parent(),
        };
        let mut names = Vec::new();
        for entry in fs::read_dir(parent)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if slots::number_of_name(&name).is_some() {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// CPU time of everything in this engine's groups, in a unit of the version's own.
    pub fn cpu_used(&self) -> io::Result<u64> {
        match self {
            Self::V1(hierarchy) => v1::cpu_used(hierarchy.parent("cpuacct")),
            Self::V2(hierarchy) => v2::cpu_used(hierarchy.parent()),
        }
    }

    fn parents(&self) -> Vec<PathBuf> {
        match self {
            Self::V1(hierarchy) => hierarchy.parents(),
            Self::V2(hierarchy) => vec![hierarchy.parent().to_owned()],
        }
    }

    /// Removes the engine's own parent groups, when nothing is below them.
    pub fn remove_parent(&self) {
        for parent in self.parents() {
            let _ = fs::remove_dir(parent);
        }
    }

    /// The CPUs this engine may hand out.
    pub fn cpus(&self) -> io::Result<Vec<u32>> {
        let text = match self {
            Self::V1(hierarchy) => hierarchy.cpus()?,
            Self::V2(hierarchy) => hierarchy.cpus()?,
        };
        Ok(parse_cpu_list(&text))
    }
}

impl Group {
    pub fn entry(&self) -> CgroupEntry {
        match self {
            Self::V1(group) => group.entry(),
            Self::V2(group) => CgroupEntry::V2 {
                dir: text(&group.dir),
            },
        }
    }

    pub fn set_memory(&self, limit: MemoryLimit) -> io::Result<()> {
        match self {
            Self::V1(group) => group.set_memory(limit),
            Self::V2(group) => group.set_memory(limit),
        }
    }

    /// Sets it also below use: where the kernel refuses that, the group is held at its use.
    pub fn hold_memory(&self, limit: MemoryLimit) -> io::Result<()> {
        match self {
            Self::V1(group) => group.hold_memory(limit),
            Self::V2(group) => group.set_memory(limit),
        }
    }

    pub fn set_cpu(&self, cpu: f64, cpus: &[u32]) -> io::Result<()> {
        let quota = (cpu * CPU_PERIOD_USEC as f64).round().max(1000.0) as u64;
        let list = cpus
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(",");
        match self {
            Self::V1(group) => group.set_cpu(quota, &list),
            Self::V2(group) => group.set_cpu(quota, &list),
        }
    }

    pub fn set_pids(&self, pids: u64) -> io::Result<()> {
        let file = match self {
            Self::V1(group) => group.pids.join("pids.max"),
            Self::V2(group) => group.dir.join("pids.max"),
        };
        write(&file, &pids.to_string())
    }

    /// Limits reading and writing on the device that holds the pool.
    pub fn set_io(
        &self,
        device: (u32, u32),
        read: Option<u64>,
        write: Option<u64>,
        pid: i32,
    ) -> io::Result<()> {
        match self {
            Self::V1(group) => group.set_io_read(device, read, pid),
            Self::V2(group) => group.set_io(device, read, write),
        }
    }

    /// CPU time, in a unit of the version's own: only to tell whether anything ran.
    pub fn cpu_used(&self) -> io::Result<u64> {
        match self {
            Self::V1(group) => v1::cpu_used(&group.cpuacct),
            Self::V2(group) => v2::cpu_used(&group.dir),
        }
    }

    pub fn usage(&self) -> io::Result<Usage> {
        match self {
            Self::V1(group) => group.usage(),
            Self::V2(group) => group.usage(),
        }
    }

    /// `mark` tells where use calls for growth, now and when it moves.
    pub fn watch(&self, mark: tokio::sync::watch::Receiver<u64>) -> io::Result<MemoryWatch> {
        match self {
            Self::V1(group) => MemoryWatch::v1(group, mark),
            Self::V2(group) => MemoryWatch::v2(group, mark),
        }
    }

    /// Removes it; everything in it must have ended. What is gone already is fine.
    pub fn remove(&self) -> io::Result<()> {
        let dirs = match self {
            Self::V1(group) => group.dirs(),
            Self::V2(group) => vec![group.dir.clone()],
        };
        for dir in dirs {
            match fs::remove_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Every process in it, for a sweep that has nothing else to go by.
    pub fn processes(&self) -> Vec<i32> {
        let dir = match self {
            Self::V1(group) => &group.memory,
            Self::V2(group) => &group.dir,
        };
        let listed = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        listed
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect()
    }
}

/// Reads what the kernel says changed about memory since the last look.
fn memory_event(kills_before: &mut u64, kills_now: u64, pressure: bool) -> Option<MemoryEvent> {
    if kills_now > *kills_before {
        *kills_before = kills_now;
        return Some(MemoryEvent::OomKilled { kills: kills_now });
    }
    pressure.then_some(MemoryEvent::Pressure)
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::write(path, value).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("write '{value}' to {}: {error}", path.display()),
        )
    })
}

fn read_number(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    // Version 2 says "max" for no limit.
    Ok(text.trim().parse().unwrap_or(u64::MAX))
}

/// The number after `key` in a file of `key value` lines.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

fn parse_cpu_list(text: &str) -> Vec<u32> {
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
        })
        .flatten()
        .collect()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn join_all(bases: &[PathBuf], name: &str) -> Vec<PathBuf> {
    bases.iter().map(|base| base.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_cpu_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_cpu_list("0\n"), [0]);
        assert!(parse_cpu_list("\n").is_empty());
    }

    #[test]
    fn keyed_files_are_matched_by_the_whole_key() {
        let text = "oom 1\noom_kill 3\noom_group_kill 0\n";
        assert_eq!(keyed(text, "oom_kill"), Some(3));
        assert_eq!(keyed(text, "oom"), Some(1));
        assert_eq!(keyed(text, "high"), None);
    }
}
