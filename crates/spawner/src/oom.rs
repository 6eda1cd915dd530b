//! Which processes the kernel ends first when memory runs out: those of sandboxes before everything of
//! the host, and in a sandbox its commands before its PID 1.
//!
//! A process may always raise its own score. How far it may lower it is its minimum, which children
//! inherit and which only a writer with CAP_SYS_RESOURCE over the host sets. With that right a write
//! here pins the minimum for everything that descends from PID 1; without it scores that were lowered
//! have to be raised again (`cove-isolation-container`, `oom.rs`).

use std::fs;
use std::io;

use rustix::thread::CapabilitySet;

/// Of PID 1, and the least that any process in a sandbox may have. Commands begin higher: the guest
/// sets that for each of them (`cove-guest`, `process/spawn.rs`).
pub const FIRST: i32 = 300;

fn file(pid: i32) -> String {
    format!("/proc/{pid}/oom_score_adj")
}

pub fn get(pid: i32) -> io::Result<i32> {
    let text = fs::read_to_string(file(pid))?;
    text.trim().parse().map_err(io::Error::other)
}

/// Sets a score and, where this thread has the right to, the minimum. A host that gave all its
/// processes a higher score than `score`, and no right to lower it, leaves it there.
pub fn set(pid: i32, score: i32) -> io::Result<()> {
    match fs::write(file(pid), score.to_string()) {
        Err(_) if get(pid).is_ok_and(|now| now >= score) => Ok(()),
        other => other,
    }
}

/// Sets a score and leaves the minimum as it is.
pub fn raise(pid: i32, score: i32) -> io::Result<()> {
    let before = rustix::thread::capabilities(None)?;
    let mut without = before;
    without.effective.remove(CapabilitySet::SYS_RESOURCE);
    // Rights are the thread's own, so no other thread goes without in between.
    rustix::thread::set_capabilities(None, without)?;
    let written = set(pid, score);
    rustix::thread::set_capabilities(None, before)?;
    written
}

/// Whether minimums are pinned by this thread's writes.
pub fn can_pin() -> bool {
    let able = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE));
    // In a user namespace of its own a process has every right, but none over the host.
    let whole = fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    able && whole
}
