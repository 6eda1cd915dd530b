//! User ids, capabilities, resource limits and new privileges of the calling process. Everything here
//! must be called while there is one thread: later threads inherit it.

use std::io;

use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::check;

/// Capabilities the kernel may know; those it does not are skipped.
const CAPABILITIES: u32 = 64;

/// Closes whatever the parent had open and did not mean to hand on: all but the standard streams. Must be
/// the first thing a program does.
pub fn close_other_descriptors() -> io::Result<()> {
    // SAFETY: the program has just begun; nothing of it uses a descriptor besides the standard ones.
    check(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) })
}

/// Takes these ids in all their forms, without any supplementary group.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
}

/// As [`become_user`], for good: no capability is left, and nothing run later can have one. Fails when root
/// could be had back.
pub fn become_nobody(uid: u32, gid: u32) -> io::Result<()> {
    if uid == 0 || gid == 0 {
        return Err(io::Error::other("root is not an unprivileged user"));
    }
    bound_capabilities(CapabilitySet::empty())?;
    become_user(uid, gid)?;
    keep_capabilities(CapabilitySet::empty())?;
    forbid_new_rights()?;
    let root = Uid::from_raw(0);
    if rustix::thread::set_thread_res_uid(root, root, root).is_ok() {
        return Err(io::Error::other("root could be regained"));
    }
    Ok(())
}

/// Takes away what no program that is run later may ever get back, setuid or not: all but these.
pub fn bound_capabilities(kept: CapabilitySet) -> io::Result<()> {
    for number in 0..CAPABILITIES {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Lets the next change of ids leave the permitted capabilities, so that [`keep_capabilities`] can choose.
pub(crate) fn keep_across_ids() -> io::Result<()> {
    Ok(rustix::thread::set_keep_capabilities(true)?)
}

/// All that is left of the capabilities.
pub fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// No program that is run later gains rights, and neither others of the same ids nor a dump on disk can
/// read this process's memory.
pub fn forbid_new_rights() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    Ok(rustix::process::set_dumpable_behavior(
        DumpableBehavior::NotDumpable,
    )?)
}

/// Keeps what the process has in memory, and will have, out of swap. As much is counted as it can map, so its address
/// space must be limited first; pages are taken as they are used. Must be called while it is root.
pub fn lock_memory(max: u64) -> io::Result<()> {
    limit_resources(&[(Resource::Memlock, Some(max))])?;
    // SAFETY: it takes flags only, and changes no memory.
    check(i64::from(unsafe {
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT)
    }))
}

/// Sets both halves of each limit; `None` is no limit.
pub fn limit_resources(limits: &[(Resource, Option<u64>)]) -> io::Result<()> {
    for &(resource, limit) in limits {
        let limit = Rlimit {
            current: limit,
            maximum: limit,
        };
        rustix::process::setrlimit(resource, limit)?;
    }
    Ok(())
}
