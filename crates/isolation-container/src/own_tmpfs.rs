//! Our own tmpfs inside a restored sandbox, reached by the host while no process of the sandbox runs.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstatfs, openat, openat2};

/// Where it is; /dev/shm is a part of it.
const INSIDE: &str = ".cove";
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Resolved without following anything that the sandbox put there.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    let root = openat(
        CWD,
        format!("/proc/{pid}/root"),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let place = openat2(
        &root,
        INSIDE,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )?;
    if fstatfs(&place)?.f_type as i64 != TMPFS_MAGIC {
        return Err(io::Error::other(
            "the sandbox's own tmpfs is not in its place",
        ));
    }
    Ok(place)
}
