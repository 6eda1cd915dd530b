//! The terminator process of one organisation. It is started as root, takes its socket and its keys from its
//! parent over standard input, gives up everything it does not need, and serves.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use cove_confine::rights;
use cove_confine::seccomp::{Otherwise, Threads, allow_only, calls};
use cove_terminator::call::{self, Start};
use cove_terminator::program::{Config, serve};
use cove_wire::descriptor;
use rustix::process::{Resource, getrlimit};

/// Threads that encrypt.
const WORKERS_MAX: usize = 4;
/// What guests and servers can make it hold ends here, with this process alone.
const MAX_ADDRESS_SPACE: u64 = 1 << 30;
/// The kernel ends it before the processes of the host, whose protection it would inherit, and after those of
/// sandboxes.
const OOM_SCORE: &str = "200";

/// What the runtime, the allocator and sockets that are there already need. Notably absent: anything that opens a
/// file or makes a socket or connects one, runs a program, changes an id, traces, signals or mounts.
const CALLS: &[&[libc::c_long]] = &[
    calls::BASE,
    &[
        libc::SYS_accept4,
        libc::SYS_writev,
        libc::SYS_ioctl,
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
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_gettimeofday,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigaction,
        libc::SYS_restart_syscall,
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_set_robust_list,
        libc::SYS_rseq,
        libc::SYS_prctl,
        libc::SYS_prlimit64,
    ],
];

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            // The log may be on a full disk; the parent notices the end all the same.
            let _ = writeln!(io::stderr(), "cove-terminator: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    rights::close_other_descriptors()?;
    // A copy, since standard input is not ours to close.
    let fd = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    let mut engine = UnixStream::from(fd);
    let mut sockets: Vec<OwnedFd> = Vec::new();
    descriptor::receive(&engine, &mut [0], &mut sockets)?;
    let [listener, bell] = <[OwnedFd; 2]>::try_from(sockets)
        .map_err(|_| io::Error::other("the parent sent no two sockets"))?;
    let (listener, bell) = (UnixListener::from(listener), UnixStream::from(bell));
    let start: Start = call::read_blocking(&mut engine)?;
    std::fs::write("/proc/self/oom_score_adj", OOM_SCORE)?;
    // A session of its own, so that a terminal's signals do not reach it; already a leader is fine.
    let _ = rustix::process::setsid();
    rights::limit_resources(&[
        (Resource::Nofile, getrlimit(Resource::Nofile).maximum),
        (Resource::As, Some(MAX_ADDRESS_SPACE)),
        (Resource::Core, Some(0)),
        (Resource::Fsize, Some(1 << 20)),
    ])?;
    if let Err(error) = rights::lock_memory(MAX_ADDRESS_SPACE) {
        // It works all the same, so the host's owner decides: SECURITY.md says what this means.
        let _ = writeln!(
            io::stderr(),
            "cove-terminator: cannot lock memory; values of secrets can reach swap: {error}"
        );
    }
    rustix::process::chdir("/")?;
    rights::become_nobody(start.uid, start.gid)?;
    rustix::thread::set_name(c"cove-terminator")?;
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers.clamp(1, WORKERS_MAX))
        .thread_stack_size(512 * 1024)
        .enable_all()
        .build()?;
    allow_only(CALLS, Otherwise::Refuse, Threads::All)?;
    let config = Config::new(&start)?;
    drop(start);
    let served = runtime.block_on(async {
        listener.set_nonblocking(true)?;
        engine.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        let bell = tokio::net::UnixStream::from_std(bell)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let engine = tokio::net::UnixStream::from_std(engine)?;
        serve(config, listener, engine, bell).await
    });
    runtime.shutdown_background();
    served
}
