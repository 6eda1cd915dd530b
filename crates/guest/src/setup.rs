//! What the process does to itself once, before the first call.

use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::ptr;

/// The listening socket that the spawner leaves to us.
const LISTENER: RawFd = 3;
/// Allocations from this size on are given back to the kernel when freed: full rings and the
/// buffers of file calls, but not those of single frames, which would cost a page fault a page.
const MMAP_THRESHOLD: libc::c_int = 192 * 1024;
/// Handled by the runtime to tell stack overflows; handlers do not survive into commands.
const FAULTS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
const FILE_MODE_MASK: libc::mode_t = 0o022;

pub fn prepare_process() -> Result<(), String> {
    // SAFETY: settings of this process, made while it has one thread.
    unsafe {
        // One arena and a fixed threshold keep the guest small after a flood of output.
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD);
        libc::umask(FILE_MODE_MASK);
        // Root inside may not trace PID 1 or read its memory.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        if libc::getpid() != 1 && libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 {
            return Err(last_error("cannot adopt orphans"));
        }
        // Dispositions that were ignored before would stay ignored in every command. The C library
        // would not touch two signals it keeps for itself, so the kernel is asked directly: an
        // all-zero action is the default one.
        let default = [0_u64; 4];
        for signal in (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)) {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                ptr::null::<u8>(),
                size_of::<u64>(),
            );
        }
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
    Ok(())
}

/// The limit commands get, which is what the guest was given; the guest itself takes all it may.
pub fn raise_open_files() -> libc::rlimit {
    let mut given = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: reads into and writes from local structs.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut given);
        let raised = libc::rlimit {
            rlim_cur: given.rlim_max,
            ..given
        };
        libc::setrlimit(libc::RLIMIT_NOFILE, &raised);
    }
    given
}

/// What commands get after a restore, which may have given the guest another limit than `given`.
pub fn open_files_now(given: libc::rlimit) -> libc::rlimit {
    let mut now = given;
    // SAFETY: reads into a local struct.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut now) };
    match now.rlim_max == given.rlim_max {
        true => given,
        false => libc::rlimit {
            rlim_cur: now.rlim_max,
            ..now
        },
    }
}

/// The socket left as descriptor 3, or one bound in `directory`.
pub fn listener(directory: Option<&Path>) -> Result<UnixListener, String> {
    let listener = match directory {
        Some(directory) => UnixListener::bind(directory.join("sock"))
            .map_err(|error| format!("cannot listen in {}: {error}", directory.display()))?,
        None => inherited_listener()?,
    };
    listener
        .set_nonblocking(true)
        .map_err(|error| format!("cannot use the socket: {error}"))?;
    Ok(listener)
}

fn inherited_listener() -> Result<UnixListener, String> {
    let mut listening: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: asks about a descriptor number into a local of the right size.
    let answer = unsafe {
        libc::getsockopt(
            LISTENER,
            libc::SOL_SOCKET,
            libc::SO_ACCEPTCONN,
            ptr::from_mut(&mut listening).cast(),
            &mut size,
        )
    };
    if answer != 0 || listening == 0 {
        return Err(format!("descriptor {LISTENER} is not a listening socket"));
    }
    // SAFETY: the descriptor is open and was left for us; nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(LISTENER) };
    rustix::io::fcntl_setfd(socket.as_fd(), rustix::io::FdFlags::CLOEXEC)
        .map_err(|error| format!("cannot use the socket: {error}"))?;
    Ok(UnixListener::from(socket))
}

/// A descriptor that becomes readable when the signal came.
pub fn signals(signal: libc::c_int) -> Result<OwnedFd, String> {
    // SAFETY: the set is local; blocking the signal before any thread exists keeps it for signalfd,
    // whose fresh descriptor is owned by nobody else.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut());
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(last_error("cannot watch signals"));
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn last_error(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}
