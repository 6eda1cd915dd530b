//! What the process gives up before it reads a byte from a sandbox: its user, its capabilities, new
//! privileges, its parent's session, and every system call that serving does not need.

use std::io;

use cove_confine::rights;
use cove_confine::seccomp::{Otherwise, Threads, allow_only, calls};
use rustix::process::{Resource, getrlimit};

/// The process holds sockets and little else; this is far above what a full host needs.
const MAX_ADDRESS_SPACE: u64 = 8 << 30;
/// Of its log and its journal, the only files it can write to. Its own bound is lower: a signal comes
/// with this one.
const FILE_BYTES_MAX: u64 = 2 * cove_gateway::journal::FILE_BYTES_MAX;

/// What the runtime, the allocator and sockets need. Notably absent: anything that opens a file,
/// runs a program, changes an id, traces or mounts. `clone3` and `clone` are for threads.
const CALLS: &[&[libc::c_long]] = &[
    calls::BASE,
    calls::CONNECTIONS,
    &[
        libc::SYS_accept4,
        libc::SYS_splice,
        libc::SYS_pipe2,
        libc::SYS_fstat,
        // What `File::metadata` asks with. Without a path, since nothing can be opened, it tells little.
        libc::SYS_statx,
        libc::SYS_ftruncate,
        libc::SYS_eventfd2,
        libc::SYS_prlimit64,
        libc::SYS_rt_sigaction,
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_set_robust_list,
        libc::SYS_rseq,
        libc::SYS_prctl,
        libc::SYS_tgkill,
    ],
];

/// Must be called while there is one thread.
pub fn enter(uid: u32, gid: u32) -> io::Result<()> {
    // A session of its own, so that a terminal's signals do not reach it; already a leader is fine.
    let _ = rustix::process::setsid();
    rights::limit_resources(&[
        // As many descriptors as the parent could have had.
        (Resource::Nofile, getrlimit(Resource::Nofile).maximum),
        (Resource::As, Some(MAX_ADDRESS_SPACE)),
        (Resource::Core, Some(0)),
        (Resource::Fsize, Some(FILE_BYTES_MAX)),
    ])?;
    rustix::process::chdir("/")?;
    rights::become_nobody(uid, gid)?;
    Ok(rustix::thread::set_name(c"cove-gateway")?)
}

/// Installs the list of system calls for every thread there is and will be. Other calls fail instead of
/// killing: a library that tries something new finds another way, and nobody's connections die for it.
pub fn filter() -> io::Result<()> {
    allow_only(CALLS, Otherwise::Refuse, Threads::All)
}
