//! What the guest does first in a sandbox that has a kernel of its own (gVisor): what the spawner does for a
//! container from outside. Rights that it needs for this are given up here, before any command runs.

use std::fs;
use std::io;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::thread::CapabilitySet;

/// What that kernel puts there without being asked. Files in `/tmp` belong on the disk, where snapshots and the
/// disk's limit find them.
const UNASKED: &str = "/tmp";
/// Where the groups of that kernel are.
const GROUPS: &str = "/sys/fs/cgroup";
/// Tasks that those do not count: the guest itself, and what began before it was in a group.
const UNCOUNTED: u64 = 4;
/// Only for setting up.
const GIVEN_UP: CapabilitySet = CapabilitySet::SYS_ADMIN;
/// What that kernel tells of a program whose process on the host was killed for memory.
pub const ENDED_CODE: i32 = 1;

pub fn set_up(pids: u64) -> Result<(), String> {
    if is_mount(UNASKED) {
        unmount(UNASKED, UnmountFlags::DETACH)
            .map_err(|error| format!("cannot unmount {UNASKED}: {error}"))?;
    }
    limit_processes(pids).map_err(|error| format!("cannot limit processes: {error}"))?;
    give_up().map_err(|error| format!("cannot give up rights: {error}"))
}

fn is_mount(path: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(path))
}

/// By the groups of that kernel, which count for as long as they are mounted; then they are covered, so that
/// nobody changes them on the way. Whoever does all the same meets the wider limit that the host has for it.
fn limit_processes(pids: u64) -> io::Result<()> {
    let pids = pids.saturating_sub(UNCOUNTED).max(1);
    fs::write(format!("{GROUPS}/pids/pids.max"), pids.to_string())?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("none", GROUPS, "tmpfs", flags, c"mode=555")?)
}

fn give_up() -> io::Result<()> {
    rustix::thread::remove_capability_from_bounding_set(GIVEN_UP)?;
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective.remove(GIVEN_UP);
    sets.permitted.remove(GIVEN_UP);
    sets.inheritable.remove(GIVEN_UP);
    Ok(rustix::thread::set_capabilities(None, sets)?)
}
