//! What the process gives up before it reads a byte from a sandbox: its user, its capabilities, new
//! privileges, its parent's session, and every system call that serving does not need.

use std::io;

use cove_seccomp::{Otherwise, Threads};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The process holds sockets and little else; this is far above what a full host needs.
const MAX_ADDRESS_SPACE: u64 = 8 << 30;

/// Must be called while there is one thread.
pub fn enter(uid: u32, gid: u32) -> io::Result<()> {
    // A session of its own, so that a terminal's signals do not reach it; already a leader is fine.
    let _ = rustix::process::setsid();
    limit()?;
    rustix::process::chdir("/")?;
    // SAFETY: plain id changes of the only thread; an empty group list reads no memory.
    unsafe {
        if libc::geteuid() == 0 {
            check(libc::setgroups(0, std::ptr::null()))?;
            check(libc::setresgid(gid, gid, gid))?;
            check(libc::setresuid(uid, uid, uid))?;
        }
    }
    if uid != 0 && rustix::process::geteuid().is_root() {
        return Err(io::Error::other("the process is still root"));
    }
    // SAFETY: plain flags; the unused arguments are zero as the kernel demands.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))?;
        check(libc::prctl(libc::PR_SET_NAME, c"cove-gateway".as_ptr()))?;
    }
    Ok(())
}

fn limit() -> io::Result<()> {
    // As many descriptors as the parent could have had.
    let most = getrlimit(Resource::Nofile).maximum;
    let limits = [
        (Resource::Nofile, most),
        (Resource::As, Some(MAX_ADDRESS_SPACE)),
        (Resource::Core, Some(0)),
        (Resource::Fsize, Some(FILE_BYTES_MAX)),
    ];
    for (resource, limit) in limits {
        let limit = Rlimit {
            current: limit,
            maximum: limit,
        };
        setrlimit(resource, limit)?;
    }
    Ok(())
}

/// Of its log and its journal, the only files it can write to. Its own bound is lower: a signal comes
/// with this one.
const FILE_BYTES_MAX: u64 = 2 * cove_gateway::journal::FILE_BYTES_MAX;

/// What the runtime, the allocator and sockets need. Notably absent: anything that opens a file,
/// runs a program, changes an id, traces or mounts. `clone3` and `clone` are for threads.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_splice,
    libc::SYS_pipe2,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    // What `File::metadata` asks with. Without a path, since nothing can be opened, it tells little.
    libc::SYS_statx,
    libc::SYS_ftruncate,
    libc::SYS_ioctl,
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_accept4,
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
    libc::SYS_eventfd2,
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
    libc::SYS_prlimit64,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_prctl,
    libc::SYS_restart_syscall,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Installs the list of system calls for every thread there is and will be. Other calls fail instead of
/// killing: a library that tries something new finds another way, and nobody's connections die for it.
pub fn filter() -> io::Result<()> {
    cove_seccomp::allow_only(ALLOWED, Otherwise::Refuse, Threads::All)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
