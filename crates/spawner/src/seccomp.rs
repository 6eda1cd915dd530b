//! The system calls a sandbox may make, as a BPF program.
//!
//! An allow-list: what is not named answers ENOSYS, as an older kernel would, so that programs fall
//! back. What is known and refused answers EPERM. Some calls are looked at more closely. The program
//! is a binary search over ranges of numbers, because the kernel walks it once per system call
//! number when it is installed and a linear list makes that cost as much as the clone itself.

use libc::*;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allow,
    Errno(u16),
    /// No flag that makes a namespace, in the first argument.
    NoNewNamespaces,
    /// Address families and protocols that programs need and that cannot widen the border.
    Socket,
    /// Only unix sockets come in pairs.
    SocketPair,
    /// No pushing of input into a terminal that others read.
    Ioctl,
    Personality,
    /// Holes may be made, but no space reserved.
    Fallocate,
}

const ENOSYS_ANSWER: Verdict = Verdict::Errno(ENOSYS as u16);
const EPERM_ANSWER: Verdict = Verdict::Errno(EPERM as u16);

const NAMESPACE_FLAGS: u32 = (CLONE_NEWNS
    | CLONE_NEWCGROUP
    | CLONE_NEWUTS
    | CLONE_NEWIPC
    | CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNET) as u32;

/// Refused in so many words: they break capture of memory, widen the border, or belong to the host.
#[rustfmt::skip]
const REFUSED: &[c_long] = &[
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick,
    SYS_open_tree, SYS_mount_setattr, SYS_setns, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd,
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
    SYS_keyctl, SYS_add_key, SYS_request_key,
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load,
    SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct, SYS_quotactl, SYS_syslog, SYS_open_by_handle_at,
    SYS_settimeofday, SYS_clock_settime, SYS_sethostname, SYS_setdomainname, SYS_vhangup, SYS_kcmp,
    SYS_fanotify_init, SYS_fanotify_mark, SYS_move_pages, SYS_migrate_pages, SYS_mq_open, SYS_mq_unlink,
    SYS_process_madvise,
];

/// Not among them: the old asynchronous I/O (io_setup and its kin), whose contexts come out of one small
/// number for the whole host; programs that use it fall back to threads.
#[rustfmt::skip]
const ALLOWED: &[c_long] = &[
    // Files
    SYS_read, SYS_write, SYS_close, SYS_fstat, SYS_lseek, SYS_pread64, SYS_pwrite64,
    SYS_readv, SYS_writev, SYS_dup, SYS_dup3, SYS_sendfile, SYS_fcntl, SYS_flock,
    SYS_fsync, SYS_fdatasync, SYS_truncate, SYS_ftruncate, SYS_getdents64, SYS_getcwd, SYS_chdir, SYS_fchdir,
    SYS_fchmod,
    SYS_fchown, SYS_umask, SYS_mknodat, SYS_statfs,
    SYS_fstatfs, SYS_sync, SYS_syncfs, SYS_chroot, SYS_readahead, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_getxattr,
    SYS_lgetxattr, SYS_fgetxattr, SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_removexattr, SYS_lremovexattr,
    SYS_fremovexattr, SYS_openat, SYS_openat2, SYS_mkdirat, SYS_fchownat, SYS_newfstatat, SYS_unlinkat, SYS_renameat,
    SYS_renameat2, SYS_linkat, SYS_symlinkat, SYS_readlinkat, SYS_fchmodat, SYS_faccessat, SYS_faccessat2,
    SYS_pselect6, SYS_ppoll, SYS_splice, SYS_tee, SYS_vmsplice, SYS_sync_file_range, SYS_utimensat,
    SYS_preadv, SYS_pwritev, SYS_preadv2, SYS_pwritev2, SYS_copy_file_range, SYS_statx, SYS_name_to_handle_at, SYS_close_range,
    SYS_fadvise64, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch, SYS_pipe2, SYS_ioprio_get,
    SYS_ioprio_set,
    // Memory
    SYS_mmap, SYS_mprotect, SYS_munmap, SYS_brk, SYS_mremap, SYS_msync, SYS_mincore, SYS_madvise, SYS_mlock, SYS_munlock,
    SYS_mlockall, SYS_munlockall, SYS_mlock2, SYS_remap_file_pages, SYS_memfd_create, SYS_membarrier, SYS_pkey_mprotect,
    SYS_pkey_alloc, SYS_pkey_free, SYS_mbind, SYS_set_mempolicy, SYS_get_mempolicy, SYS_shmget, SYS_shmat, SYS_shmctl, SYS_shmdt,
    SYS_semget, SYS_semop, SYS_semctl, SYS_semtimedop, SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl,
    // Processes and signals
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending, SYS_rt_sigtimedwait, SYS_rt_sigqueueinfo,
    SYS_rt_sigsuspend, SYS_rt_tgsigqueueinfo, SYS_sigaltstack, SYS_execve, SYS_execveat,
    SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_kill, SYS_tkill, SYS_tgkill, SYS_gettid, SYS_getpid, SYS_getppid,
    SYS_getpgid, SYS_setpgid, SYS_getsid, SYS_setsid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_setuid,
    SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_getresuid, SYS_getresgid, SYS_setfsuid,
    SYS_setfsgid, SYS_getgroups, SYS_setgroups, SYS_capget, SYS_capset, SYS_prctl, SYS_ptrace, SYS_seccomp,
    SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_open, SYS_pidfd_send_signal, SYS_pidfd_getfd, SYS_process_mrelease,
    SYS_set_tid_address, SYS_set_robust_list, SYS_get_robust_list, SYS_futex, SYS_futex_waitv, SYS_rseq, SYS_restart_syscall,
    SYS_sched_yield, SYS_sched_setparam, SYS_sched_getparam, SYS_sched_setscheduler, SYS_sched_getscheduler,
    SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval, SYS_sched_setaffinity,
    SYS_sched_getaffinity, SYS_sched_setattr, SYS_sched_getattr, SYS_getpriority, SYS_setpriority, SYS_getrlimit, SYS_setrlimit,
    SYS_prlimit64, SYS_getrusage, SYS_times, SYS_uname, SYS_sysinfo, SYS_getcpu, SYS_getrandom, SYS_signalfd4,
    // Time
    SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_clock_adjtime, SYS_adjtimex, SYS_gettimeofday,
    SYS_getitimer, SYS_setitimer, SYS_timer_create, SYS_timer_settime, SYS_timer_gettime,
    SYS_timer_getoverrun, SYS_timer_delete, SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime,
    // Sockets and events
    SYS_connect, SYS_accept, SYS_accept4, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg, SYS_recvmmsg,
    SYS_shutdown, SYS_bind, SYS_listen, SYS_getsockname, SYS_getpeername, SYS_setsockopt, SYS_getsockopt,
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2,
];

/// Calls that later architectures never had, because newer ones do the same.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_OLD: &[c_long] = &[
    SYS_open, SYS_stat, SYS_lstat, SYS_poll, SYS_access, SYS_pipe, SYS_select, SYS_dup2, SYS_getdents, SYS_rename,
    SYS_mkdir, SYS_rmdir, SYS_creat, SYS_link, SYS_unlink, SYS_symlink, SYS_readlink, SYS_chmod, SYS_chown, SYS_lchown,
    SYS_utime, SYS_utimes, SYS_futimesat, SYS_mknod, SYS_inotify_init, SYS_pause, SYS_fork, SYS_vfork, SYS_getpgrp, SYS_arch_prctl,
    SYS_signalfd, SYS_time, SYS_alarm, SYS_epoll_create, SYS_epoll_wait, SYS_eventfd,
];
#[cfg(target_arch = "x86_64")]
const REFUSED_OLD: &[c_long] = &[SYS_ustat, SYS_sysfs, SYS_iopl, SYS_ioperm];
#[cfg(target_arch = "aarch64")]
const ALLOWED_OLD: &[c_long] = &[];
#[cfg(target_arch = "aarch64")]
const REFUSED_OLD: &[c_long] = &[];

/// Calls newer than the C library's table, by number (the same on every architecture since 424).
const ALLOWED_NEW: &[c_long] = &[
    448, // process_mrelease
    449, // futex_waitv
    451, // cachestat
    452, // fchmodat2
    454, // futex_wake
    455, // futex_wait
    456, // futex_requeue
    462, // mseal
    463, // setxattrat
    464, // getxattrat
    465, // listxattrat
    466, // removexattrat
];

/// Beyond the newest number any kernel has; all above answer ENOSYS.
const NUMBERS: usize = 600;

/// How the kernel tells the filter which table of numbers a call means.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

fn verdicts() -> Vec<Verdict> {
    let mut table = vec![ENOSYS_ANSWER; NUMBERS];
    for &number in ALLOWED.iter().chain(ALLOWED_OLD).chain(ALLOWED_NEW) {
        table[number as usize] = Verdict::Allow;
    }
    for &number in REFUSED.iter().chain(REFUSED_OLD) {
        table[number as usize] = EPERM_ANSWER;
    }
    // The C library falls back to clone, whose flags a filter can see.
    table[SYS_clone3 as usize] = ENOSYS_ANSWER;
    table[SYS_clone as usize] = Verdict::NoNewNamespaces;
    table[SYS_unshare as usize] = Verdict::NoNewNamespaces;
    table[SYS_socket as usize] = Verdict::Socket;
    table[SYS_socketpair as usize] = Verdict::SocketPair;
    table[SYS_ioctl as usize] = Verdict::Ioctl;
    table[SYS_personality as usize] = Verdict::Personality;
    table[SYS_fallocate as usize] = Verdict::Fallocate;
    table
}

const LOAD: u16 = (BPF_LD | BPF_W | BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (BPF_JMP | BPF_JEQ | BPF_K) as u16;
const JUMP_AT_LEAST: u16 = (BPF_JMP | BPF_JGE | BPF_K) as u16;
const JUMP_ANY_BIT: u16 = (BPF_JMP | BPF_JSET | BPF_K) as u16;
const JUMP: u16 = (BPF_JMP | BPF_JA) as u16;
const AND: u16 = (BPF_ALU | BPF_AND | BPF_K) as u16;
const RETURN: u16 = (BPF_RET | BPF_K) as u16;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;

fn argument_low(index: u32) -> u32 {
    16 + 8 * index
}

fn op(code: u16, k: u32) -> sock_filter {
    sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn allow() -> sock_filter {
    op(RETURN, SECCOMP_RET_ALLOW)
}

fn refuse(errno: i32) -> sock_filter {
    op(RETURN, SECCOMP_RET_ERRNO | errno as u32)
}

pub fn program() -> Vec<sock_filter> {
    let mut code = vec![
        op(LOAD, OFFSET_ARCHITECTURE),
        jump(JUMP_EQUAL, ARCHITECTURE, 1, 0),
        refuse(ENOSYS),
        op(LOAD, OFFSET_NUMBER),
    ];
    let table = verdicts();
    let mut ranges: Vec<(u32, Verdict)> = Vec::new();
    for (number, &verdict) in table.iter().enumerate() {
        if ranges.last().is_none_or(|&(_, last)| last != verdict) {
            ranges.push((number as u32, verdict));
        }
    }
    // Everything above, the x32 numbers included.
    if ranges
        .last()
        .is_some_and(|&(_, last)| last != ENOSYS_ANSWER)
    {
        ranges.push((NUMBERS as u32, ENOSYS_ANSWER));
    }
    search(&ranges, &mut code);
    code
}

/// Emits a search for the range that holds the number in the accumulator.
fn search(ranges: &[(u32, Verdict)], code: &mut Vec<sock_filter>) {
    if let [(_, verdict)] = ranges {
        code.extend(leaf(*verdict));
        return;
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    // A conditional jump reaches 255 instructions, a plain one anywhere.
    code.push(jump(JUMP_AT_LEAST, high[0].0, 0, 1));
    let hop = code.len();
    code.push(op(JUMP, 0));
    search(low, code);
    code[hop].k = (code.len() - hop - 1) as u32;
    search(high, code);
}

fn leaf(verdict: Verdict) -> Vec<sock_filter> {
    match verdict {
        Verdict::Allow => vec![allow()],
        Verdict::Errno(errno) => vec![refuse(errno.into())],
        Verdict::NoNewNamespaces => {
            vec![
                op(LOAD, argument_low(0)),
                jump(JUMP_ANY_BIT, NAMESPACE_FLAGS, 0, 1),
                refuse(EPERM),
                allow(),
            ]
        }
        Verdict::Ioctl => vec![
            op(LOAD, argument_low(1)),
            jump(JUMP_EQUAL, TIOCSTI as u32, 2, 0),
            jump(JUMP_EQUAL, TIOCLINUX as u32, 1, 0),
            allow(),
            refuse(EPERM),
        ],
        Verdict::SocketPair => {
            vec![
                op(LOAD, argument_low(0)),
                jump(JUMP_EQUAL, AF_UNIX as u32, 0, 1),
                allow(),
                refuse(EAFNOSUPPORT),
            ]
        }
        Verdict::Personality => vec![
            op(LOAD, argument_low(0)),
            // The query, and plain Linux with or without address randomisation (debuggers want it off).
            jump(JUMP_EQUAL, u32::MAX, 2, 0),
            op(AND, !(ADDR_NO_RANDOMIZE as u32)),
            jump(JUMP_EQUAL, 0, 0, 1),
            allow(),
            refuse(EPERM),
        ],
        // Space that is reserved counts as used at once but takes up the host's disk only when it is
        // written, and nothing can stop that later: two guests could fill the host under the pool. As
        // on other filesystems without it, the C library writes zeros instead.
        Verdict::Fallocate => vec![
            op(LOAD, argument_low(1)),
            jump(
                JUMP_EQUAL,
                (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE) as u32,
                0,
                1,
            ),
            allow(),
            refuse(EOPNOTSUPP),
        ],
        Verdict::Socket => vec![
            op(LOAD, argument_low(0)),
            jump(JUMP_EQUAL, AF_UNIX as u32, 9, 0),
            jump(JUMP_EQUAL, AF_INET as u32, 4, 0),
            jump(JUMP_EQUAL, AF_INET6 as u32, 3, 0),
            jump(JUMP_EQUAL, AF_NETLINK as u32, 0, 7),
            // Of netlink only route, which is protocol 0; of the internet the usual protocols.
            op(LOAD, argument_low(2)),
            jump(JUMP_EQUAL, 0, 4, 5),
            op(LOAD, argument_low(2)),
            jump(JUMP_EQUAL, IPPROTO_TCP as u32, 2, 0),
            jump(JUMP_EQUAL, IPPROTO_UDP as u32, 1, 0),
            jump(JUMP_EQUAL, 0, 0, 2),
            allow(),
            refuse(EAFNOSUPPORT),
            // ICMP sockets need no rights beyond the group range the network sets.
            jump(JUMP_EQUAL, IPPROTO_ICMP as u32, 1, 0),
            jump(JUMP_EQUAL, IPPROTO_ICMPV6 as u32, 0, 1),
            allow(),
            refuse(EPROTONOSUPPORT),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tiny interpreter of the few instructions used, to ask the program what it would say.
    fn verdict(
        program: &[sock_filter],
        architecture: u32,
        number: u32,
        arguments: [u64; 6],
    ) -> u32 {
        let load = |offset: u32| match offset {
            OFFSET_NUMBER => number,
            OFFSET_ARCHITECTURE => architecture,
            o => (arguments[((o - 16) / 8) as usize] >> (8 * ((o - 16) % 8))) as u32,
        };
        let (mut pc, mut a) = (0usize, 0u32);
        for _ in 0..200 {
            let i = &program[pc];
            pc += 1;
            let branch = |taken: bool| if taken { i.jt as usize } else { i.jf as usize };
            match i.code {
                LOAD => a = load(i.k),
                AND => a &= i.k,
                JUMP => pc += i.k as usize,
                JUMP_EQUAL => pc += branch(a == i.k),
                JUMP_AT_LEAST => pc += branch(a >= i.k),
                JUMP_ANY_BIT => pc += branch(a & i.k != 0),
                RETURN => return i.k,
                other => panic!("instruction {other:#x} is not used"),
            }
        }
        panic!("the program does not end");
    }

    fn ask(number: c_long, arguments: [u64; 6]) -> u32 {
        verdict(&program(), ARCHITECTURE, number as u32, arguments)
    }

    const fn errno(errno: i32) -> u32 {
        SECCOMP_RET_ERRNO | errno as u32
    }

    #[test]
    fn every_number_gets_the_verdict_of_the_table() {
        let program = program();
        for (number, expected) in verdicts().into_iter().enumerate() {
            let said = verdict(&program, ARCHITECTURE, number as u32, [0; 6]);
            match expected {
                Verdict::Allow => assert_eq!(said, SECCOMP_RET_ALLOW, "number {number}"),
                Verdict::Errno(e) => assert_eq!(said, errno(e.into()), "number {number}"),
                _ => {}
            }
        }
    }

    #[test]
    fn foreign_architectures_and_unknown_numbers_do_not_exist() {
        let program = program();
        assert_eq!(verdict(&program, 0x4000_0003, 1, [0; 6]), errno(ENOSYS));
        for number in [600, 100_000, 0x4000_0000, 0x4000_0001, u32::MAX] {
            assert_eq!(
                verdict(&program, ARCHITECTURE, number, [0; 6]),
                errno(ENOSYS)
            );
        }
    }

    #[test]
    fn namespaces_cannot_be_made() {
        for flag in [CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID] {
            assert_eq!(
                ask(SYS_clone, [flag as u64 | 17, 0, 0, 0, 0, 0]),
                errno(EPERM)
            );
            assert_eq!(ask(SYS_unshare, [flag as u64, 0, 0, 0, 0, 0]), errno(EPERM));
        }
        assert_eq!(ask(SYS_clone, [0x3d0f00, 0, 0, 0, 0, 0]), SECCOMP_RET_ALLOW);
        assert_eq!(ask(SYS_clone3, [0; 6]), errno(ENOSYS));
    }

    #[test]
    fn only_ordinary_sockets_can_be_made() {
        let socket = |family: i32, protocol: i32| {
            ask(SYS_socket, [family as u64, 1, protocol as u64, 0, 0, 0])
        };
        for (family, protocol) in [
            (AF_UNIX, 0),
            (AF_INET, 0),
            (AF_INET, IPPROTO_TCP),
            (AF_INET6, IPPROTO_UDP),
            (AF_INET, IPPROTO_ICMP),
            (AF_INET6, IPPROTO_ICMPV6),
            (AF_NETLINK, 0),
        ] {
            assert_eq!(
                socket(family, protocol),
                SECCOMP_RET_ALLOW,
                "{family} {protocol}"
            );
        }
        for (family, protocol) in [
            (AF_VSOCK, 0),
            (AF_PACKET, 3),
            (AF_ALG, 0),
            (AF_NETLINK, 12),
            (40, 0),
            (0, 0),
        ] {
            assert_eq!(
                socket(family, protocol),
                errno(EAFNOSUPPORT),
                "{family} {protocol}"
            );
        }
        assert_eq!(socket(AF_INET, IPPROTO_SCTP), errno(EPROTONOSUPPORT));
        assert_eq!(socket(AF_INET, IPPROTO_RAW), errno(EPROTONOSUPPORT));
    }

    #[test]
    fn space_cannot_be_reserved_but_holes_can_be_made() {
        let fallocate = |mode: i32| ask(SYS_fallocate, [0, mode as u64, 0, 0, 0, 0]);
        for mode in [0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE] {
            assert_eq!(fallocate(mode), errno(EOPNOTSUPP), "mode {mode}");
        }
        assert_eq!(
            fallocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE),
            SECCOMP_RET_ALLOW
        );
    }

    #[test]
    fn terminals_cannot_be_typed_into_and_personalities_stay_plain() {
        assert_eq!(ask(SYS_ioctl, [0, TIOCSTI, 0, 0, 0, 0]), errno(EPERM));
        assert_eq!(
            ask(SYS_ioctl, [0, TIOCGWINSZ, 0, 0, 0, 0]),
            SECCOMP_RET_ALLOW
        );
        assert_eq!(
            ask(SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0]),
            SECCOMP_RET_ALLOW
        );
        assert_eq!(
            ask(SYS_personality, [0x0040_0000, 0, 0, 0, 0, 0]),
            errno(EPERM)
        );
        assert_eq!(
            ask(SYS_personality, [ADDR_NO_RANDOMIZE as u64, 0, 0, 0, 0, 0]),
            SECCOMP_RET_ALLOW
        );
    }
}
