//! What a sandbox sees of the kernel in /proc and /sys.
//!
//! /sys is an allow list: a small tree of the sandbox's own with the few parts of sysfs that programs
//! read attached to it, over the whole of sysfs. What a newer kernel adds there stays out of sight.
//! /proc cannot be built that way, because its processes come and go; what tells of the host or of
//! other sandboxes is covered there by an empty file or directory. `tests/conformance/readable.txt`
//! lists everything that is left.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use cove_spawner::message::{Failure, Step};
use rustix::io::Errno;

use crate::mounts;

/// Files of /proc that tell about the host, its other users or its kernel's build, or reach it.
const COVERED_FILES: [&str; 30] = [
    "/proc/allocinfo",
    "/proc/bootconfig",
    "/proc/buddyinfo",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/lock_stat",
    "/proc/lockdep",
    "/proc/lockdep_chains",
    "/proc/lockdep_stats",
    "/proc/mdstat",
    "/proc/modules",
    "/proc/mtrr",
    "/proc/partitions",
    "/proc/sched_debug",
    "/proc/schedstat",
    "/proc/softirqs",
    "/proc/swaps",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmcore",
    "/proc/zoneinfo",
];
/// Directories of /proc likewise.
const COVERED_DIRS: [&str; 14] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/bus",
    "/proc/driver",
    "/proc/dynamic_debug",
    "/proc/fs",
    "/proc/ide",
    "/proc/irq",
    "/proc/mpt",
    "/proc/pressure",
    "/proc/scsi",
    "/proc/spl",
    "/proc/vz",
    "/proc/xen",
];
/// Files below /proc/sys; the tree is read-only by then.
const COVERED_SETTINGS: [&str; 1] = ["/proc/sys/kernel/core_pattern"];
const COVERED_SETTING_DIRS: [&str; 1] = ["/proc/sys/dev"];

/// Parts of sysfs that are shown: the CPUs, and the interfaces of the sandbox's own network, to which
/// the links of the class lead.
const SHOWN_SYS: [&str; 3] = [
    "/sys/class/net",
    "/sys/devices/system/cpu",
    "/sys/devices/virtual/net",
];
/// Directories of the tree over sysfs; those above come with it, as places to attach them.
const SYS_DIRS: [&str; 14] = [
    "block",
    "class",
    "class/net",
    "devices",
    "devices/system",
    "devices/system/cpu",
    "devices/virtual",
    "devices/virtual/net",
    "fs",
    "fs/cgroup",
    "kernel",
    "kernel/mm",
    "kernel/mm/transparent_hugepage",
    "module",
];
/// Settings that language runtimes and allocators read; copied, since counters lie beside them.
const HUGE_PAGES: &str = "kernel/mm/transparent_hugepage";
const HUGE_PAGE_FILES: [&str; 4] = ["enabled", "defrag", "shmem_enabled", "hpage_pmd_size"];

/// What of the above this host has, found out once per spawner and inherited by every child.
pub struct KernelFiles {
    files: Vec<&'static str>,
    dirs: Vec<&'static str>,
    settings: Vec<&'static str>,
    setting_dirs: Vec<&'static str>,
    shown: Vec<&'static str>,
    huge_pages: Vec<(&'static str, Vec<u8>)>,
    /// /proc/cgroups, which JVMs read, without the number of the host's groups.
    cgroups: Option<String>,
}

impl KernelFiles {
    pub fn of_this_host() -> Self {
        let present = |paths: &[&'static str]| -> Vec<&'static str> {
            let exists = |path: &&&str| Path::new(path).exists();
            paths.iter().filter(exists).copied().collect()
        };
        let huge_pages = HUGE_PAGE_FILES
            .into_iter()
            .filter_map(|name| Some((name, fs::read(format!("/sys/{HUGE_PAGES}/{name}")).ok()?)))
            .collect();
        Self {
            files: present(&COVERED_FILES),
            dirs: present(&COVERED_DIRS),
            settings: present(&COVERED_SETTINGS),
            setting_dirs: present(&COVERED_SETTING_DIRS),
            shown: present(&SHOWN_SYS),
            huge_pages,
            cgroups: fs::read_to_string("/proc/cgroups")
                .ok()
                .map(|text| own_groups(&text)),
        }
    }

    /// Once /proc and sysfs are attached in their places. `own` is the sandbox's tmpfs.
    pub fn narrow(&self, own: &str) -> Result<(), Failure> {
        let (empty, empty_dir) = (format!("{own}/empty"), format!("{own}/empty.d"));
        fs::write(&empty, "").step("make our files")?;
        fs::create_dir(&empty_dir).step("make our directories")?;
        // Read-only once and for all: what is copied from them below is so too.
        mounts::freeze(&empty).step("make the empty file read-only")?;
        mounts::freeze(&empty_dir).step("make the empty directory read-only")?;
        for path in &self.files {
            mounts::bind(&empty, path).step("cover a file of the host")?;
        }
        for path in &self.dirs {
            mounts::bind(&empty_dir, path).step("cover a directory of the host")?;
        }
        if let Some(text) = &self.cgroups {
            let file = format!("{own}/proc/cgroups");
            fs::write(&file, text).step("make our files")?;
            mounts::cover(&file, "/proc/cgroups").step("show the sandbox's own cgroups")?;
        }
        self.narrow_sys(own)
    }

    fn narrow_sys(&self, own: &str) -> Result<(), Failure> {
        let tree = format!("{own}/sys");
        fs::create_dir(&tree).step("make our directories")?;
        for dir in SYS_DIRS {
            fs::create_dir(format!("{tree}/{dir}")).step("make our directories")?;
        }
        for (name, content) in &self.huge_pages {
            fs::write(format!("{tree}/{HUGE_PAGES}/{name}"), content).step("make our files")?;
        }
        // Copied before they are out of sight.
        let shown: Vec<(&str, OwnedFd)> = self
            .shown
            .iter()
            .map(|path| Ok((*path, mounts::copy_of(path)?)))
            .collect::<Result<_, Errno>>()
            .step("copy a part of /sys")?;
        mounts::cover(&tree, "/sys").step("cover /sys")?;
        for (path, part) in shown {
            mounts::attach(&part, path).step("show a part of /sys")?;
        }
        Ok(())
    }

    /// Makes /proc/sys read-only and puts the sandbox's own boot id there. Last: the settings of the
    /// sandbox's own namespaces are written through it before.
    pub fn close_settings(&self, own: &str) -> Result<(), Failure> {
        mounts::freeze("/proc/sys").step("make the settings read-only")?;
        for path in &self.settings {
            mounts::bind(&format!("{own}/empty"), path).step("cover a setting of the host")?;
        }
        for path in &self.setting_dirs {
            mounts::bind(&format!("{own}/empty.d"), path).step("cover settings of the host")?;
        }
        let file = format!("{own}/{}", cove_spawner::boot_id::FILE);
        fs::write(&file, "").step("make our files")?;
        mounts::cover(&file, "/proc/sys/kernel/random/boot_id").step("show the sandbox's boot id")
    }
}

/// The table with one group in each hierarchy: how many the host has tells how many others there are.
fn own_groups(table: &str) -> String {
    table
        .lines()
        .map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
            [name, hierarchy, _, enabled] if !name.starts_with('#') => {
                format!("{name}\t{hierarchy}\t1\t{enabled}\n")
            }
            _ => format!("{line}\n"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_groups_is_not_told() {
        let table =
            "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t1204\t1\nmemory\t0\t77\t1\n";
        let told = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t1\t1\nmemory\t0\t1\t1\n";
        assert_eq!(own_groups(table), told);
    }
}
