//! Version 1: a directory per controller.

mod attaching;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cove_isolation::Usage;
use cove_spawner::message::CgroupEntry;

use super::{CPU_PERIOD_USEC, MemoryLimit, join_all, keyed, read_number, text, write};

/// Without all of these a sandbox could not be limited.
const NEEDED: [&str; 5] = ["memory", "cpu", "cpuacct", "pids", "cpuset"];

/// How often a group that grows while it is being held is held anew.
const HOLD_TRIES: u32 = 50;

/// Socket buffers may take this part of a sandbox's memory on top of it.
const SOCKETS_SHARE: u64 = 4;

/// A kernel without the file counts them with the rest.
fn limit_sockets(memory: &Path, bytes: &str) -> io::Result<()> {
    let file = memory.join("memory.kmem.tcp.limit_in_bytes");
    match file.exists() {
        true => write(&file, bytes),
        false => Ok(()),
    }
}

#[derive(Debug)]
pub struct Hierarchy {
    /// Controller to this engine's parent directory in its hierarchy.
    parents: BTreeMap<String, PathBuf>,
}

#[derive(Debug, Clone)]
pub struct Group {
    pub memory: PathBuf,
    pub pids: PathBuf,
    cpu: PathBuf,
    pub cpuacct: PathBuf,
    cpuset: PathBuf,
    blkio: Option<PathBuf>,
    /// Only for stopping and going on; no task inside can see it.
    pub freezer: Option<PathBuf>,
}

/// Bytes in use, and those of them the kernel can take back.
#[derive(Debug, Clone, Copy)]
pub struct MemoryUse {
    pub all: u64,
    pub reclaimable: u64,
}

impl MemoryUse {
    pub fn needed(&self) -> u64 {
        self.all.saturating_sub(self.reclaimable)
    }
}

/// Nanoseconds of CPU time of a group and everything below it.
pub fn cpu_used(cpuacct: &Path) -> io::Result<u64> {
    read_number(&cpuacct.join("cpuacct.usage"))
}

impl Hierarchy {
    /// Mount points by controller, when the needed ones are mounted as version 1.
    pub fn find(mountinfo: &str) -> Option<BTreeMap<String, PathBuf>> {
        let mut found = BTreeMap::new();
        for line in mountinfo.lines() {
            let Some((mount, rest)) = line.split_once(" - ") else {
                continue;
            };
            let mut rest = rest.split(' ');
            if rest.next() != Some("cgroup") {
                continue;
            }
            let (Some(at), Some(options)) = (mount.split(' ').nth(4), rest.nth(1)) else {
                continue;
            };
            for option in options.split(',') {
                found
                    .entry(option.to_owned())
                    .or_insert_with(|| PathBuf::from(at));
            }
        }
        NEEDED
            .iter()
            .all(|name| found.contains_key(*name))
            .then_some(found)
    }

    pub fn open(mounts: BTreeMap<String, PathBuf>, name: &str) -> io::Result<Self> {
        let wanted = NEEDED.iter().chain(&["blkio", "freezer"]);
        let parents: BTreeMap<String, PathBuf> = wanted
            .filter_map(|controller| {
                Some((
                    (*controller).to_owned(),
                    mounts.get(*controller)?.join(name),
                ))
            })
            .collect();
        let hierarchy = Self { parents };
        hierarchy.make_parents()?;
        // Best effort: an older kernel does not know the option.
        let _ = attaching::quicken();
        Ok(hierarchy)
    }

    fn make_parents(&self) -> io::Result<()> {
        for (controller, parent) in &self.parents {
            match fs::create_dir(parent) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => other?,
            }
            if controller == "cpuset" {
                let root = parent.parent().expect("joined above");
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    write(
                        &parent.join(file),
                        fs::read_to_string(root.join(file))?.trim(),
                    )?;
                }
                // Children start with the parent's sets, so that tasks may enter at once.
                write(&parent.join("cgroup.clone_children"), "1")?;
            }
            if controller == "memory" {
                // Inherited by every child; there is no swap for sandboxes.
                write(&parent.join("memory.swappiness"), "0")?;
                // Counting socket buffers is switched on in the kernel's code by the first group that
                // limits them and off by the last; a parent that never goes keeps it on.
                limit_sockets(parent, "-1")?;
            }
        }
        Ok(())
    }

    pub fn parents(&self) -> Vec<PathBuf> {
        self.parents.values().cloned().collect()
    }

    /// Of a controller that is always there.
    pub fn parent(&self, controller: &str) -> &Path {
        &self.parents[controller]
    }

    pub fn cpus(&self) -> io::Result<String> {
        fs::read_to_string(self.parents["cpuset"].join("cpuset.cpus"))
    }

    pub fn group(&self, name: &str) -> Group {
        let dir = |controller: &str| self.parents[controller].join(name);
        Group {
            memory: dir("memory"),
            pids: dir("pids"),
            cpu: dir("cpu"),
            cpuacct: dir("cpuacct"),
            cpuset: dir("cpuset"),
            blkio: self.parents.get("blkio").map(|parent| parent.join(name)),
            freezer: self.parents.get("freezer").map(|parent| parent.join(name)),
        }
    }

    pub fn create(&self, name: &str) -> io::Result<Group> {
        let group = self.group(name);
        for dir in group.entered() {
            match fs::create_dir(&dir) {
                // Left by a crash: its limits are set anew before anything runs in it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // Another engine took this one for dead and removed its empty groups.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.make_parents()?;
                    fs::create_dir(&dir)?;
                }
                other => other?,
            }
        }
        Ok(group)
    }
}

impl Group {
    /// The directories every task of the group is in. cpu and cpuacct are often one.
    fn entered(&self) -> Vec<PathBuf> {
        let mut dirs = vec![
            &self.memory,
            &self.pids,
            &self.cpu,
            &self.cpuacct,
            &self.cpuset,
        ]
        .into_iter()
        .chain(&self.freezer)
        .cloned()
        .collect::<Vec<_>>();
        dirs.sort();
        dirs.dedup();
        dirs
    }

    pub fn dirs(&self) -> Vec<PathBuf> {
        self.entered()
            .into_iter()
            .chain(self.blkio.clone())
            .collect()
    }

    pub fn entry(&self) -> CgroupEntry {
        CgroupEntry::V1 {
            procs: join_all(&self.entered(), "cgroup.procs")
                .iter()
                .map(|path| text(path))
                .collect(),
            shown: vec![
                (text(&self.memory), "memory".into()),
                (text(&self.cpuacct), "cpuacct".into()),
            ],
        }
    }

    /// The kernel's limit is where an elastic group may grow to. It cannot be where the group stands
    /// now: a group that may not be killed there fails system calls in the middle (a large read comes
    /// back short), so growth is called for by use crossing a mark instead.
    pub fn set_memory(&self, limit: MemoryLimit) -> io::Result<()> {
        self.set_kernel_limit(limit.ceiling_bytes)?;
        // Socket buffers are counted apart from the rest, and not at all unless they have a limit.
        limit_sockets(&self.memory, &(limit.now_bytes / SOCKETS_SHARE).to_string())
    }

    /// The same for a group that may use more already. The kernel does not take a limit below use, so
    /// the group is held at its use: the next page it asks for has to be taken from itself.
    pub fn hold_memory(&self, limit: MemoryLimit) -> io::Result<()> {
        let mut tries = 0;
        let mut wanted = limit;
        loop {
            match self.set_memory(wanted) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < HOLD_TRIES => {
                    // It may have grown since it was looked at.
                    let used = read_number(&self.memory.join("memory.usage_in_bytes"))?;
                    wanted.ceiling_bytes = used.max(limit.ceiling_bytes);
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    fn set_kernel_limit(&self, bytes: u64) -> io::Result<()> {
        let text = bytes.to_string();
        let memory = self.memory.join("memory.limit_in_bytes");
        let with_swap = self.memory.join("memory.memsw.limit_in_bytes");
        let set_with_swap = || {
            if with_swap.exists() {
                write(&with_swap, &text)
            } else {
                Ok(())
            }
        };
        // Memory alone may never exceed memory and swap together, so the order depends on the direction.
        if read_number(&memory)? < bytes {
            set_with_swap()?;
            write(&memory, &text)
        } else {
            write(&memory, &text)?;
            set_with_swap()
        }
    }

    pub fn set_cpu(&self, quota_usec: u64, cpus: &str) -> io::Result<()> {
        write(
            &self.cpu.join("cpu.cfs_period_us"),
            &CPU_PERIOD_USEC.to_string(),
        )?;
        write(&self.cpu.join("cpu.cfs_quota_us"), &quota_usec.to_string())?;
        write(&self.cpuset.join("cpuset.cpus"), cpus)
    }

    /// Only reads: version 1 does not see who caused buffered writes.
    pub fn set_io_read(
        &self,
        (major, minor): (u32, u32),
        read_bytes: Option<u64>,
        pid: i32,
    ) -> io::Result<()> {
        let Some(dir) = &self.blkio else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the blkio controller is not mounted",
            ));
        };
        let Some(read_bytes) = read_bytes else {
            return Ok(());
        };
        if !dir.exists() {
            fs::create_dir(dir)?;
        }
        write(
            &dir.join("blkio.throttle.read_bps_device"),
            &format!("{major}:{minor} {read_bytes}"),
        )?;
        write(&dir.join("cgroup.procs"), &pid.to_string())
    }

    pub fn memory_use(&self) -> io::Result<MemoryUse> {
        let stat = fs::read_to_string(self.memory.join("memory.stat"))?;
        Ok(MemoryUse {
            all: read_number(&self.memory.join("memory.usage_in_bytes"))?,
            reclaimable: keyed(&stat, "total_inactive_file").unwrap_or(0)
                + keyed(&stat, "total_active_file").unwrap_or(0),
        })
    }

    pub fn usage(&self) -> io::Result<Usage> {
        let memory = self.memory_use()?;
        let control = fs::read_to_string(self.memory.join("memory.oom_control"))?;
        Ok(Usage {
            cpu_usec: read_number(&self.cpuacct.join("cpuacct.usage"))? / 1000,
            memory_bytes: memory.all,
            memory_reclaimable_bytes: memory.reclaimable,
            memory_peak_bytes: read_number(&self.memory.join("memory.max_usage_in_bytes"))?,
            pids: read_number(&self.pids.join("pids.current"))?,
            oom_kills: keyed(&control, "oom_kill").unwrap_or(0),
            ..Usage::default()
        })
    }
}
