//! The system calls left to the program while it reads the archive. Any other one kills it.

use std::io;

use super::check;

/// What reading standard input, writing files below the root and the allocator need. Notably
/// absent: anything that runs a program, makes a process or a socket, mounts, or makes devices.
const ALLOWED: &[libc::c_long] = &[
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

fn program() -> Vec<libc::sock_filter> {
    let kill = instruction(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0);
    let mut program = vec![
        instruction(LOAD, OFFSET_ARCHITECTURE, 0, 0),
        instruction(JUMP_EQUAL, ARCHITECTURE, 1, 0),
        kill,
        instruction(LOAD, OFFSET_NUMBER, 0, 0),
    ];
    for number in ALLOWED {
        program.push(instruction(JUMP_EQUAL, *number as u32, 0, 1));
        program.push(instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    }
    program.push(kill);
    program
}

pub(super) fn install() -> io::Result<()> {
    let mut program = program();
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).expect("the list is far shorter"),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: plain flag; the unused arguments are zero as the kernel demands.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the filter points to `program`, which outlives the call; the kernel copies it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const filter,
        )
    };
    check(result as libc::c_int)
}
