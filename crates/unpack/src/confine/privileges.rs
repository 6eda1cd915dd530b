//! Ids, capabilities, resource limits and the idmapped mount: the system calls behind
//! [`super::lock`] that have no safe wrapper.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::check;

/// A zstd window is at most 128 MiB; the rest is small.
const MAX_ADDRESS_SPACE: u64 = 1 << 30;
/// One per level of a directory tree being deleted, and a few.
const MAX_OPEN_FILES: u64 = 1024;

const CAP_CHOWN: u32 = 0;
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_FOWNER: u32 = 3;
const CAP_FSETID: u32 = 4;
const CAP_SETFCAP: u32 = 31;
pub(super) const KEPT: u32 =
    1 << CAP_CHOWN | 1 << CAP_DAC_OVERRIDE | 1 << CAP_FOWNER | 1 << CAP_FSETID | 1 << CAP_SETFCAP;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

const MOUNT_ATTR_RDONLY: u64 = 0x01;
const MOUNT_ATTR_NOSUID: u64 = 0x02;
const MOUNT_ATTR_NODEV: u64 = 0x04;
const MOUNT_ATTR_NOEXEC: u64 = 0x08;
const MOUNT_ATTR_ATIME: u64 = 0x70;
const MOUNT_ATTR_NOATIME: u64 = 0x10;
const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

pub(super) fn map_mount(
    tree: BorrowedFd<'_>,
    user_namespace: BorrowedFd<'_>,
    read_only: bool,
) -> io::Result<()> {
    set_attributes(tree, Some(user_namespace), read_only)
}

/// A mount that only the caller has, which nobody can change anything through.
pub(super) fn seal_mount(tree: BorrowedFd<'_>) -> io::Result<()> {
    set_attributes(tree, None, true)
}

fn set_attributes(
    tree: BorrowedFd<'_>,
    user_namespace: Option<BorrowedFd<'_>>,
    read_only: bool,
) -> io::Result<()> {
    let read_only = match read_only {
        true => MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOATIME,
        false => 0,
    };
    let safe = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
    let attributes = MountAttr {
        set: safe | read_only | user_namespace.map_or(0, |_| MOUNT_ATTR_IDMAP),
        // How times of access are kept is a field of its own in the set.
        clear: if read_only == 0 { 0 } else { MOUNT_ATTR_ATIME },
        propagation: 0,
        user_namespace: user_namespace.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    // SAFETY: the path is a NUL-terminated empty string and the structure has the size given; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    check(result as libc::c_int)
}

pub(super) fn join(user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: setns takes a descriptor and a flag.
    check(unsafe { libc::setns(user_namespace.as_raw_fd(), libc::CLONE_NEWUSER) })
}

pub(super) fn become_root_inside() -> io::Result<()> {
    // SAFETY: plain id changes of the only thread; an empty group list reads no memory.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(0, 0, 0))?;
        check(libc::setresuid(0, 0, 0))?;
        // The archive's modes must arrive as they are.
        libc::umask(0);
    }
    Ok(())
}

/// An unprivileged user of the host, who may still take up what is left of root's capabilities.
pub(super) fn become_user(uid: u32) -> io::Result<()> {
    // SAFETY: plain id changes of the only thread; an empty group list reads no memory.
    unsafe {
        check(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0))?;
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(uid, uid, uid))?;
        check(libc::setresuid(uid, uid, uid))
    }
}

pub(super) fn limit_resources(file_bytes: u64) -> io::Result<()> {
    let limits = [
        (Resource::As, MAX_ADDRESS_SPACE),
        (Resource::Nofile, MAX_OPEN_FILES),
        (Resource::Fsize, file_bytes),
        (Resource::Core, 0),
        (Resource::Memlock, 0),
    ];
    for (resource, limit) in limits {
        setrlimit(
            resource,
            Rlimit {
                current: Some(limit),
                maximum: Some(limit),
            },
        )?;
    }
    Ok(())
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

pub(super) fn keep(capabilities: u32) -> io::Result<()> {
    let header = CapabilityHeader {
        version: CAPABILITY_VERSION_3,
        pid: 0,
    };
    let low = CapabilityData {
        effective: capabilities,
        permitted: capabilities,
        inheritable: 0,
    };
    let high = CapabilityData {
        effective: 0,
        permitted: 0,
        inheritable: 0,
    };
    let data = [low, high];
    // SAFETY: version 3 reads one header and two data structures; both outlive the call.
    check(
        unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) } as libc::c_int,
    )
}

pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // When in doubt the parent counts as gone.
    poll(&mut fds, Some(&now)).map_or(true, |ready| ready > 0)
}
