//! The system calls that the control side leaves itself before it reads a stranger's byte.
//!
//! What is absent matters most: nothing that runs a program, makes a process or a namespace, traces, mounts,
//! changes an id, signals others, loads code into the kernel, or reaches a kernel interface besides
//! files, sockets and memory. A call that is not on the list fails with EPERM and is told in the log by its
//! number: a library that tries something new finds another way, and an operator finds out.

use std::time::Duration;

use cove_seccomp::Rule::{Allow, AllowWhere, AllowWhereOrFail, AllowWithOrFail, Fail};
use cove_seccomp::{Otherwise, Refused, Rule, Threads, install, note_refused};

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
/// Names of threads and of memory, and what the kernel told the process at its start.
const PRCTLS: &[u32] = &[
    PR_GET_AUXV,
    libc::PR_SET_NAME as u32,
    libc::PR_GET_NAME as u32,
    libc::PR_SET_VMA as u32,
];

#[rustfmt::skip]
const RULES: &[Rule<'static>] = &[
    // Most frequent first: the list is gone through in order.
    Allow(libc::SYS_futex), Allow(libc::SYS_epoll_pwait), Allow(libc::SYS_epoll_ctl),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_epoll_wait),
    Allow(libc::SYS_read), Allow(libc::SYS_write), Allow(libc::SYS_readv), Allow(libc::SYS_writev),
    Allow(libc::SYS_recvfrom), Allow(libc::SYS_sendto), Allow(libc::SYS_recvmsg), Allow(libc::SYS_sendmsg),
    Allow(libc::SYS_sendmmsg), Allow(libc::SYS_recvmmsg),
    AllowWhereOrFail(libc::SYS_socket, 0, FAMILIES, libc::EAFNOSUPPORT),
    AllowWhere(libc::SYS_socketpair, 0, FAMILIES),
    Allow(libc::SYS_connect), Allow(libc::SYS_accept4), Allow(libc::SYS_bind), Allow(libc::SYS_shutdown),
    Allow(libc::SYS_getsockname), Allow(libc::SYS_getpeername),
    Allow(libc::SYS_getsockopt), Allow(libc::SYS_setsockopt),
    Allow(libc::SYS_close), Allow(libc::SYS_dup), Allow(libc::SYS_dup3), Allow(libc::SYS_pipe2),
    Allow(libc::SYS_fcntl), AllowWhere(libc::SYS_ioctl, 1, IOCTLS),
    Allow(libc::SYS_eventfd2), Allow(libc::SYS_epoll_create1), Allow(libc::SYS_ppoll), Allow(libc::SYS_pselect6),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_poll),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_select),
    Allow(libc::SYS_timerfd_create), Allow(libc::SYS_timerfd_settime),
    // Files: the database and its journals, secrets of its own, certificates, resolv.conf.
    Allow(libc::SYS_openat), Allow(libc::SYS_pread64), Allow(libc::SYS_pwrite64),
    Allow(libc::SYS_preadv), Allow(libc::SYS_pwritev), Allow(libc::SYS_lseek),
    Allow(libc::SYS_fstat), Allow(libc::SYS_newfstatat), Allow(libc::SYS_statx),
    Allow(libc::SYS_statfs), Allow(libc::SYS_fstatfs), Allow(libc::SYS_faccessat), Allow(libc::SYS_faccessat2),
    Allow(libc::SYS_getdents64), Allow(libc::SYS_readlinkat), Allow(libc::SYS_getcwd), Allow(libc::SYS_flock),
    Allow(libc::SYS_fsync), Allow(libc::SYS_fdatasync), Allow(libc::SYS_sync_file_range),
    Allow(libc::SYS_ftruncate), Allow(libc::SYS_fallocate), Allow(libc::SYS_fadvise64),
    Allow(libc::SYS_unlinkat), Allow(libc::SYS_renameat2), Allow(libc::SYS_renameat), Allow(libc::SYS_mkdirat),
    Allow(libc::SYS_fchmod), Allow(libc::SYS_utimensat), Allow(libc::SYS_umask),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_open),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_stat),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_lstat),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_access),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_readlink),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_unlink),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_rename),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_mkdir),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_rmdir),
    // Memory. Pages that are written and then run are for programs that compile; none here does.
    Allow(libc::SYS_mmap), Allow(libc::SYS_munmap), Allow(libc::SYS_mremap), Allow(libc::SYS_mprotect),
    Allow(libc::SYS_madvise), Allow(libc::SYS_brk), Allow(libc::SYS_membarrier), Allow(libc::SYS_mincore),
    // Keys of SSH connections are kept out of swap.
    Allow(libc::SYS_mlock), Allow(libc::SYS_mlock2), Allow(libc::SYS_munlock),
    // Time, randomness, and what it may know of itself.
    Allow(libc::SYS_clock_gettime), Allow(libc::SYS_clock_getres), Allow(libc::SYS_clock_nanosleep),
    Allow(libc::SYS_nanosleep), Allow(libc::SYS_gettimeofday), Allow(libc::SYS_getrandom),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_time),
    Allow(libc::SYS_getpid), Allow(libc::SYS_getppid), Allow(libc::SYS_gettid), Allow(libc::SYS_uname),
    Allow(libc::SYS_getuid), Allow(libc::SYS_geteuid), Allow(libc::SYS_getgid), Allow(libc::SYS_getegid),
    Allow(libc::SYS_sysinfo), Allow(libc::SYS_getrusage), Allow(libc::SYS_prlimit64),
    #[cfg(target_arch = "x86_64")] Allow(libc::SYS_getrlimit),
    Allow(libc::SYS_sched_yield), Allow(libc::SYS_sched_getaffinity), Allow(libc::SYS_getcpu),
    // Threads, never processes: the kernel does not let a filter see what clone3 is asked for, and the C
    // library goes on with clone where that is not known. A refused clone is not noted: the C library starts
    // programs with all signals blocked, where the signal of a note would end the process.
    AllowWithOrFail(libc::SYS_clone, 0, (libc::CLONE_VM | libc::CLONE_THREAD) as u32, libc::EPERM),
    Fail(libc::SYS_clone3, libc::ENOSYS),
    Allow(libc::SYS_set_robust_list), Allow(libc::SYS_set_tid_address), Allow(libc::SYS_rseq),
    AllowWhere(libc::SYS_prctl, 0, PRCTLS),
    // Signals to itself, for an abort; a process without privileges reaches nobody else's.
    Allow(libc::SYS_tgkill),
    Allow(libc::SYS_rt_sigaction), Allow(libc::SYS_rt_sigprocmask), Allow(libc::SYS_rt_sigreturn),
    Allow(libc::SYS_sigaltstack), Allow(libc::SYS_restart_syscall),
    Allow(libc::SYS_exit), Allow(libc::SYS_exit_group),
];

/// Calls that were refused, to be told in the log.
pub struct Refusals(Refused);

/// Leaves this thread and all it makes the calls on the list. New privileges must have been given up.
pub fn enter() -> Result<Refusals, ServeError> {
    let failed = |source| ServeError::io("cannot confine the control side", source);
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
                    "the control side was refused a system call that is not on its list"
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
