//! The system calls that the control side leaves itself before it reads an untrusted byte.
//!
//! What is absent matters most: nothing that runs a program, makes a process or a namespace, traces, mounts,
//! changes an id, signals others, loads code into the kernel, or reaches a kernel interface besides
//! files, sockets and memory. A call that is not on the list fails with EPERM and is reported in the log by its
//! number: a library that tries something new finds another way, and an operator finds out.

use std::time::Duration;

use cove_confine::seccomp::{
    Otherwise, Refused, Rule, Test, Threads, Verdict, install, note_refused,
};

use super::ServeError;

/// How often refused calls are looked at, for the log.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The kinds of sockets there are: to clients and the database, to the runner and guests. The C library
/// would ask the kernel for interfaces before it looks a name up, and does without where it cannot.
const FAMILIES: &[u32] = &[
    libc::AF_UNIX as u32,
    libc::AF_INET as u32,
    libc::AF_INET6 as u32,
];
/// Not-blocking, how much can be read, and whether something is a terminal: nothing that types into one.
const IOCTLS: &[u32] = &[
    libc::FIONBIO as u32,
    libc::FIONREAD as u32,
    libc::TCGETS as u32,
    libc::TIOCGWINSZ as u32,
];
/// Reads the process's own auxiliary vector, which is how rustix finds the vDSO.
const PR_GET_AUXV: u32 = 0x4155_5856;
/// Names of threads and of memory, and what the kernel gave the process at its start.
const PRCTLS: &[u32] = &[
    PR_GET_AUXV,
    libc::PR_SET_NAME as u32,
    libc::PR_GET_NAME as u32,
    libc::PR_SET_VMA as u32,
];

const SOCKET: Verdict<'static> = Verdict::When(
    0,
    Test::OneOf(FAMILIES),
    &Verdict::Allow,
    &Verdict::Fail(libc::EAFNOSUPPORT),
);
const THREAD_FLAGS: u32 = (libc::CLONE_VM | libc::CLONE_THREAD) as u32;
const THREADS: Verdict<'static> = Verdict::When(
    0,
    Test::Masked {
        mask: THREAD_FLAGS,
        value: THREAD_FLAGS,
    },
    &Verdict::Allow,
    &Verdict::Fail(libc::EPERM),
);

const fn allow(number: libc::c_long) -> Rule<'static> {
    Rule::allow(number)
}

#[rustfmt::skip]
const RULES: &[Rule<'static>] = &[
    allow(libc::SYS_futex), allow(libc::SYS_epoll_pwait), allow(libc::SYS_epoll_ctl),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_epoll_wait),
    allow(libc::SYS_read), allow(libc::SYS_write), allow(libc::SYS_readv), allow(libc::SYS_writev),
    allow(libc::SYS_recvfrom), allow(libc::SYS_sendto), allow(libc::SYS_recvmsg), allow(libc::SYS_sendmsg),
    allow(libc::SYS_sendmmsg), allow(libc::SYS_recvmmsg),
    Rule::new(libc::SYS_socket, SOCKET), Rule::allow_where(libc::SYS_socketpair, 0, FAMILIES),
    allow(libc::SYS_connect), allow(libc::SYS_accept4), allow(libc::SYS_bind), allow(libc::SYS_shutdown),
    allow(libc::SYS_getsockname), allow(libc::SYS_getpeername),
    allow(libc::SYS_getsockopt), allow(libc::SYS_setsockopt),
    allow(libc::SYS_close), allow(libc::SYS_dup), allow(libc::SYS_dup3), allow(libc::SYS_pipe2),
    allow(libc::SYS_fcntl), Rule::allow_where(libc::SYS_ioctl, 1, IOCTLS),
    allow(libc::SYS_eventfd2), allow(libc::SYS_epoll_create1), allow(libc::SYS_ppoll), allow(libc::SYS_pselect6),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_poll),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_select),
    allow(libc::SYS_timerfd_create), allow(libc::SYS_timerfd_settime),
    // Files: the database and its journals, secrets of its own, certificates, resolv.conf.
    allow(libc::SYS_openat), allow(libc::SYS_pread64), allow(libc::SYS_pwrite64),
    allow(libc::SYS_preadv), allow(libc::SYS_pwritev), allow(libc::SYS_lseek),
    allow(libc::SYS_fstat), allow(libc::SYS_newfstatat), allow(libc::SYS_statx),
    allow(libc::SYS_statfs), allow(libc::SYS_fstatfs), allow(libc::SYS_faccessat), allow(libc::SYS_faccessat2),
    allow(libc::SYS_getdents64), allow(libc::SYS_readlinkat), allow(libc::SYS_getcwd), allow(libc::SYS_flock),
    allow(libc::SYS_fsync), allow(libc::SYS_fdatasync), allow(libc::SYS_sync_file_range),
    allow(libc::SYS_ftruncate), allow(libc::SYS_fallocate), allow(libc::SYS_fadvise64),
    allow(libc::SYS_unlinkat), allow(libc::SYS_renameat2), allow(libc::SYS_renameat), allow(libc::SYS_mkdirat),
    allow(libc::SYS_fchmod), allow(libc::SYS_utimensat), allow(libc::SYS_umask),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_open),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_stat),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_lstat),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_access),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_readlink),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_unlink),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_rename),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_mkdir),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_rmdir),
    // Memory. Pages that are written and then run are for programs that compile; none here does.
    allow(libc::SYS_mmap), allow(libc::SYS_munmap), allow(libc::SYS_mremap), allow(libc::SYS_mprotect),
    allow(libc::SYS_madvise), allow(libc::SYS_brk), allow(libc::SYS_membarrier), allow(libc::SYS_mincore),
    // Keys of SSH connections are kept out of swap.
    allow(libc::SYS_mlock), allow(libc::SYS_mlock2), allow(libc::SYS_munlock),
    // Time, randomness, and what it may know of itself.
    allow(libc::SYS_clock_gettime), allow(libc::SYS_clock_getres), allow(libc::SYS_clock_nanosleep),
    allow(libc::SYS_nanosleep), allow(libc::SYS_gettimeofday), allow(libc::SYS_getrandom),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_time),
    allow(libc::SYS_getpid), allow(libc::SYS_getppid), allow(libc::SYS_gettid), allow(libc::SYS_uname),
    allow(libc::SYS_getuid), allow(libc::SYS_geteuid), allow(libc::SYS_getgid), allow(libc::SYS_getegid),
    allow(libc::SYS_sysinfo), allow(libc::SYS_getrusage), allow(libc::SYS_prlimit64),
    #[cfg(target_arch = "x86_64")] allow(libc::SYS_getrlimit),
    allow(libc::SYS_sched_yield), allow(libc::SYS_sched_getaffinity), allow(libc::SYS_getcpu),
    // Threads, never processes: the kernel does not let a filter see what clone3 is asked for, and the C
    // library goes on with clone where that is not known. A refused clone is not noted: the C library starts
    // programs with all signals blocked, where the signal of a note would end the process.
    Rule::new(libc::SYS_clone, THREADS), Rule::fail(libc::SYS_clone3, libc::ENOSYS),
    allow(libc::SYS_set_robust_list), allow(libc::SYS_set_tid_address), allow(libc::SYS_rseq),
    Rule::allow_where(libc::SYS_prctl, 0, PRCTLS),
    // Signals to itself, for an abort; a process without privileges reaches nobody else's.
    allow(libc::SYS_tgkill),
    allow(libc::SYS_rt_sigaction), allow(libc::SYS_rt_sigprocmask), allow(libc::SYS_rt_sigreturn),
    allow(libc::SYS_sigaltstack), allow(libc::SYS_restart_syscall),
    allow(libc::SYS_exit), allow(libc::SYS_exit_group),
];

/// Calls that were refused, to be reported in the log.
pub struct Refusals(Refused);

/// Leaves this thread and all it makes the calls on the list. New privileges must have been given up.
pub fn enter() -> Result<Refusals, ServeError> {
    let failed = |source| ServeError::io("cannot confine control", source);
    let refused = note_refused().map_err(failed)?;
    install(RULES, Otherwise::RefuseNoted, Threads::This).map_err(failed)?;
    Ok(Refusals(refused))
}

impl Refusals {
    pub async fn tell(self) {
        loop {
            tokio::time::sleep(TELL_EVERY).await;
            for call in self.0.take() {
                tracing::error!(
                    call,
                    "control was refused a system call that is not on its list"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketType, socket};

    use super::*;

    /// Runs in a thread that is confined as the control side is.
    fn confined<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            enter().unwrap();
            work()
        });
        thread.join().unwrap()
    }

    #[test]
    fn no_program_namespace_or_odd_socket_is_to_be_had() {
        confined(|| {
            let refused = |what: &str, error: std::io::Error| {
                assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{what}: {error}");
            };
            refused("a program", Command::new("true").spawn().unwrap_err());
            for family in [
                AddressFamily::NETLINK,
                AddressFamily::PACKET,
                AddressFamily::VSOCK,
            ] {
                let error = socket(family, SocketType::RAW, None).unwrap_err();
                assert_eq!(error, Errno::AFNOSUPPORT, "{family:?}");
            }
            let here = rustix::fs::CWD;
            let name = c"none";
            let mounted = rustix::mount::mount(
                name,
                c"/mnt",
                c"tmpfs",
                rustix::mount::MountFlags::empty(),
                None,
            );
            assert_eq!(mounted.unwrap_err(), Errno::PERM);
            let pid = rustix::process::getpid();
            let killed = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
            assert_eq!(killed.unwrap_err(), Errno::PERM);
            let linked = rustix::fs::linkat(
                here,
                c"/etc/passwd",
                here,
                c"/tmp/p",
                rustix::fs::AtFlags::empty(),
            );
            assert_eq!(linked.unwrap_err(), Errno::PERM);
        });
    }

    #[test]
    fn what_serving_needs_works() {
        confined(|| {
            let dir = tempfile::tempdir().unwrap();
            let mut file = std::fs::File::create(dir.path().join("file")).unwrap();
            file.write_all(b"x").unwrap();
            file.sync_all().unwrap();
            std::fs::rename(dir.path().join("file"), dir.path().join("other")).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0");
            // Its listening sockets are handed to it; it can make none.
            assert_eq!(listener.unwrap_err().raw_os_error(), Some(libc::EPERM));
            UdpSocket::bind("127.0.0.1:0").unwrap();
            UnixStream::pair().unwrap();
            let nobody = TcpStream::connect("127.0.0.1:1").unwrap_err();
            assert_eq!(nobody.kind(), std::io::ErrorKind::ConnectionRefused);
            std::thread::spawn(|| ()).join().unwrap();
        });
    }
}
