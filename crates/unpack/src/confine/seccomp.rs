//! The system calls left to a confined program, and those of the one that unpacks archives. Any other
//! one kills it.

use std::io;

use cove_seccomp::{Otherwise, Threads};

use super::check;

/// What reading standard input, writing files below the root and the allocator need. Notably
/// absent: anything that runs a program, makes a process or a socket, mounts, or makes devices.
pub(super) const ALLOWED: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_ftruncate,
    libc::SYS_mkdirat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fchmod,
    libc::SYS_utimensat,
    libc::SYS_fsetxattr,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_getrandom,
    libc::SYS_futex,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

pub(super) fn install(allowed: &[libc::c_long]) -> io::Result<()> {
    // SAFETY: plain flag; the unused arguments are zero as the kernel demands.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    cove_seccomp::allow_only(allowed, Otherwise::Kill, Threads::This)
}
