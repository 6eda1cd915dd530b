//! The sandbox's own cgroup, whichever version shows it.

use std::path::{Path, PathBuf};

use super::{field, read_number, read_text};

const UNIFIED: &str = "/sys/fs/cgroup";

pub enum Cgroup {
    Unified(PathBuf),
    Split { memory: PathBuf, cpu: PathBuf },
    Hidden,
}

/// Bytes, all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// The machine's memory where the sandbox has no limit.
    pub limit: u64,
    pub current: u64,
    pub peak: u64,
    pub oom_kills: u64,
    pub anonymous: u64,
    pub file: u64,
    pub shared: u64,
    pub mapped: u64,
    pub dirty: u64,
    pub active_anonymous: u64,
    pub inactive_anonymous: u64,
    pub active_file: u64,
    pub inactive_file: u64,
    pub slab_reclaimable: u64,
    pub slab_unreclaimable: u64,
    pub kernel_stack: u64,
    pub page_tables: u64,
}

impl Cgroup {
    /// `split` is where cgroup v1 hierarchies are shown, if they are, or the one of a sandbox with a kernel of
    /// its own.
    pub fn find(split: &Path) -> Self {
        if split.join("memory").is_dir() || split.join("cpuacct").is_dir() {
            return Self::Split {
                memory: split.join("memory"),
                cpu: split.join("cpuacct"),
            };
        }
        // A sandbox with a kernel of its own is shown the host's group beside our files.
        if split.join("memory.current").exists() {
            return Self::Unified(split.to_owned());
        }
        let unified = Path::new(UNIFIED);
        if unified.join("memory.current").exists() || unified.join("cpu.stat").exists() {
            return Self::Unified(unified.to_owned());
        }
        Self::Hidden
    }

    pub fn oom_kills(&self) -> u64 {
        match self {
            Self::Unified(path) => {
                read_text(&path.join("memory.events")).and_then(|text| field(&text, "oom_kill"))
            }
            Self::Split { memory, .. } => read_text(&memory.join("memory.oom_control"))
                .and_then(|text| field(&text, "oom_kill")),
            Self::Hidden => None,
        }
        .unwrap_or(0)
    }

    pub fn cpu_usec(&self) -> u64 {
        match self {
            Self::Unified(path) => {
                read_text(&path.join("cpu.stat")).and_then(|text| field(&text, "usage_usec"))
            }
            Self::Split { cpu, .. } => {
                read_number(&cpu.join("cpuacct.usage")).map(|nanoseconds| nanoseconds / 1000)
            }
            Self::Hidden => None,
        }
        .unwrap_or(0)
    }

    pub fn memory(&self) -> Memory {
        let machine = machine_memory();
        let mut memory = match self {
            Self::Unified(path) => unified(path),
            Self::Split { memory, .. } => split(memory),
            Self::Hidden => None,
        }
        .unwrap_or(Memory {
            limit: machine.0,
            current: machine.0.saturating_sub(machine.1),
            ..Memory::default()
        });
        memory.limit = memory.limit.min(machine.0);
        memory.peak = memory.peak.max(memory.current);
        memory.oom_kills = self.oom_kills();
        memory
    }
}

fn unified(path: &Path) -> Option<Memory> {
    let stat = read_text(&path.join("memory.stat")).unwrap_or_default();
    let value = |name| field(&stat, name).unwrap_or(0);
    Some(Memory {
        current: read_number(&path.join("memory.current"))?,
        // "max" is no number.
        limit: read_number(&path.join("memory.max")).unwrap_or(u64::MAX),
        peak: read_number(&path.join("memory.peak")).unwrap_or(0),
        oom_kills: 0,
        anonymous: value("anon"),
        file: value("file"),
        shared: value("shmem"),
        mapped: value("file_mapped"),
        dirty: value("file_dirty"),
        active_anonymous: value("active_anon"),
        inactive_anonymous: value("inactive_anon"),
        active_file: value("active_file"),
        inactive_file: value("inactive_file"),
        slab_reclaimable: value("slab_reclaimable"),
        slab_unreclaimable: value("slab_unreclaimable"),
        kernel_stack: value("kernel_stack"),
        page_tables: value("pagetables"),
    })
}

fn split(path: &Path) -> Option<Memory> {
    let stat = read_text(&path.join("memory.stat")).unwrap_or_default();
    let value = |name| field(&stat, name).unwrap_or(0);
    Some(Memory {
        current: read_number(&path.join("memory.usage_in_bytes"))?,
        limit: read_number(&path.join("memory.limit_in_bytes")).unwrap_or(u64::MAX),
        peak: read_number(&path.join("memory.max_usage_in_bytes")).unwrap_or(0),
        oom_kills: 0,
        anonymous: value("total_rss"),
        file: value("total_cache"),
        shared: value("total_shmem"),
        mapped: value("total_mapped_file"),
        dirty: value("total_dirty"),
        active_anonymous: value("total_active_anon"),
        inactive_anonymous: value("total_inactive_anon"),
        active_file: value("total_active_file"),
        inactive_file: value("total_inactive_file"),
        slab_reclaimable: 0,
        slab_unreclaimable: 0,
        kernel_stack: 0,
        page_tables: 0,
    })
}

/// Total and free bytes of the machine underneath.
fn machine_memory() -> (u64, u64) {
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit.max(1));
    (info.totalram * unit, info.freeram * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_hierarchy_is_read() {
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("memory");
        std::fs::create_dir(&memory).unwrap();
        for (name, text) in [
            ("memory.usage_in_bytes", "5000\n"),
            ("memory.limit_in_bytes", "1048576\n"),
            ("memory.max_usage_in_bytes", "9000\n"),
            (
                "memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            ),
            ("memory.stat", "cache 1\ntotal_cache 4096\ntotal_rss 904\n"),
        ] {
            std::fs::write(memory.join(name), text).unwrap();
        }
        let found = Cgroup::find(root.path()).memory();
        assert_eq!(
            (found.current, found.limit, found.peak),
            (5000, 1_048_576, 9000)
        );
        assert_eq!(
            (found.oom_kills, found.file, found.anonymous),
            (3, 4096, 904)
        );
    }

    #[test]
    fn without_a_cgroup_the_machine_is_told() {
        let memory = Cgroup::Hidden.memory();
        assert!(memory.limit > 0 && memory.current <= memory.limit);
    }
}
