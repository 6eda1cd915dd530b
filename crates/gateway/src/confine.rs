//! What the process gives up before it reads a byte from a sandbox: its user, its capabilities, new
//! privileges, its parent's session, and every system call that serving does not need.

use std::io;

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
        (Resource::Fsize, Some(LOG_BYTES_MAX)),
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

/// Its log file, the only file it can write to.
const LOG_BYTES_MAX: u64 = 1 << 20;

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

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Offsets in the kernel's `seccomp_data`.
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn instruction(code: u16, value: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: if_true,
        jf: if_false,
        k: value,
    }
}

/// Other calls fail instead of killing: a library that tries something new finds another way, and
/// nobody's connections die for it.
fn program() -> Vec<libc::sock_filter> {
    let denied = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut program = vec![
        instruction(LOAD, OFFSET_ARCHITECTURE, 0, 0),
        instruction(JUMP_EQUAL, ARCHITECTURE, 1, 0),
        instruction(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        instruction(LOAD, OFFSET_NUMBER, 0, 0),
    ];
    for number in ALLOWED {
        program.push(instruction(JUMP_EQUAL, *number as u32, 0, 1));
        program.push(instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    }
    program.push(instruction(RETURN, denied, 0, 0));
    program
}

/// Installs the list of system calls for every thread there is and will be.
pub fn filter() -> io::Result<()> {
    let mut program = program();
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the filter points to `program`, which outlives the call; the kernel copies it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const filter,
        )
    };
    check(result as libc::c_int)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
