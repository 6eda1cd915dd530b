//! How the program locks itself in before it hears from anybody but its parent.
//!
//! ```text
//! parent (root) ── exec ──► stage 1: root, own namespaces; waits, and kills stage 2 when the
//!                              │      parent has closed its end of the socket
//!                              └─ fork ──► stage 2: PID 1 of its own, an empty read-only root directory,
//!                                          a uid that owns nothing, no capabilities, no new privileges,
//!                                          a list of system calls. It keeps the host's network.
//! ```

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cove_seccomp::{Otherwise, Threads};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, unmount,
};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions};

/// Certificates, manifests and four layers' buffers are a few tens of megabytes.
const MAX_ADDRESS_SPACE: u64 = 1 << 30;
/// Connections of one pull, and a few.
const MAX_OPEN_FILES: u64 = 128;

pub enum Stage {
    /// In stage 1, after stage 2 has ended: whether it ended well.
    Over(bool),
    /// In stage 2, not confined yet. The descriptor is readable once stage 1 is gone.
    Inside(OwnedFd),
}

fn step<T, E: std::fmt::Display>(step: &str, result: Result<T, E>) -> io::Result<T> {
    result.map_err(|error| io::Error::other(format!("{step}: {error}")))
}

/// Makes the namespaces and forks the process that goes in; in stage 1 waits for its end. `parent` is
/// the socket to the parent. Must be called while the program has one thread.
pub fn enter(parent: BorrowedFd<'_>) -> io::Result<Stage> {
    let flags = libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    // SAFETY: unshare takes flags only; the program has one thread and shares no state by them.
    step("namespaces", check(unsafe { libc::unshare(flags) }))?;
    let propagation = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    step("private mounts", mount_change("/", propagation))?;
    let own = rustix::process::getpid();
    let guardian = step(
        "process descriptor",
        rustix::process::pidfd_open(own, PidfdFlags::empty()),
    )?;
    // SAFETY: the program has one thread, so the child may go on using everything.
    let pid = unsafe { libc::fork() };
    match pid {
        ..0 => Err(io::Error::last_os_error()),
        0 => Ok(Stage::Inside(guardian)),
        _ => {
            let worker = Pid::from_raw(pid).ok_or(io::ErrorKind::Other)?;
            Ok(Stage::Over(guard(worker, parent)?))
        }
    }
}

/// Waits until the worker has ended, and ends it when the parent has gone.
fn guard(worker: Pid, parent: BorrowedFd<'_>) -> io::Result<bool> {
    let ended = rustix::process::pidfd_open(worker, PidfdFlags::empty())?;
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
            // Without events: a closed peer is always told.
            PollFd::from_borrowed_fd(parent, PollFlags::empty()),
        ];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        if fds[1].revents().contains(PollFlags::HUP) {
            let _ = rustix::process::kill_process(worker, Signal::KILL);
        }
        let status = rustix::process::waitpid(Some(worker), WaitOptions::NOHANG)?;
        if let Some((_, status)) = status {
            return Ok(status.exit_status() == Some(0));
        }
        if fds[1].revents().contains(PollFlags::HUP) {
            rustix::process::waitpid(Some(worker), WaitOptions::empty())?;
            return Ok(false);
        }
    }
}

/// Goes in. Afterwards only [`filter`] is missing, which must come once the runtime is there.
pub fn lock(guardian: OwnedFd, uid: u32) -> io::Result<()> {
    let root = step("an empty root", empty_root())?;
    step(
        "attaching the root",
        move_mount(&root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH),
    )?;
    step("entering the root", rustix::process::fchdir(&root))?;
    step("changing the root", rustix::process::pivot_root(".", "."))?;
    step("leaving the old root", unmount(".", UnmountFlags::DETACH))?;
    step("entering the new root", rustix::process::chdir("/"))?;
    drop(root);
    step("resource limits", limit_resources())?;
    step("ids", drop_ids(uid))?;
    // Only now: a change of ids clears the signal.
    step(
        "parent-death signal",
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)),
    )?;
    if is_readable(guardian.as_fd()) {
        return step("parent", Err("the parent is gone already"));
    }
    Ok(())
}

fn empty_root() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "size", "4k")?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn limit_resources() -> io::Result<()> {
    let limits = [
        (Resource::As, MAX_ADDRESS_SPACE),
        (Resource::Nofile, MAX_OPEN_FILES),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
        (Resource::Memlock, 0),
    ];
    for (resource, limit) in limits {
        let limit = Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        rustix::process::setrlimit(resource, limit)?;
    }
    Ok(())
}

fn drop_ids(uid: u32) -> io::Result<()> {
    if uid == 0 {
        return Err(io::Error::other("root is no uid that owns nothing"));
    }
    // SAFETY: plain id changes of the only thread; an empty group list reads no memory. Leaving uid 0
    // takes every capability along.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(uid, uid, uid))?;
        check(libc::setresuid(uid, uid, uid))?;
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut polled = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure, as the count says. When in doubt the parent counts as gone.
    unsafe { libc::poll(&raw mut polled, 1, 0) != 0 }
}

/// What one thread with sockets, TLS and the allocator needs. Notably absent: anything that opens a
/// file, makes a process or a thread, listens, changes an id, traces or mounts.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_epoll_ctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Any other call kills: what was to be read has taken the program over.
pub fn filter() -> io::Result<()> {
    cove_seccomp::allow_only(ALLOWED, Otherwise::Kill, Threads::This)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
