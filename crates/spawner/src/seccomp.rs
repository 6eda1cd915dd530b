//! The system calls a sandbox may make, as a BPF program.
//!
//! An allow-list: what is not named answers ENOSYS, as an older kernel would, so that programs fall
//! back. What is known and refused answers EPERM. Some calls are looked at more closely.

use cove_confine::seccomp::{Otherwise, Rule, Test, Verdict, assemble};
use libc::*;

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

const ALLOW: Verdict<'static> = Verdict::Allow;
const REFUSE: Verdict<'static> = Verdict::Fail(EPERM);

/// No flag that makes a namespace, in the first argument.
const NO_NEW_NAMESPACES: Verdict<'static> = {
    let none = Test::Masked {
        mask: NAMESPACE_FLAGS,
        value: 0,
    };
    Verdict::When(0, none, &ALLOW, &REFUSE)
};

/// Address families and protocols that programs need and that cannot widen the border: unix; of the internet
/// the usual protocols (ICMP sockets need no rights beyond the group range the network sets); of netlink only
/// route, which is protocol 0.
const SOCKET: Verdict<'static> = {
    const UNKNOWN_FAMILY: Verdict<'static> = Verdict::Fail(EAFNOSUPPORT);
    const ROUTE: Verdict<'static> = Verdict::When(2, Test::OneOf(&[0]), &ALLOW, &UNKNOWN_FAMILY);
    const PROTOCOLS: &[u32] = &[
        0,
        IPPROTO_TCP as u32,
        IPPROTO_UDP as u32,
        IPPROTO_ICMP as u32,
        IPPROTO_ICMPV6 as u32,
    ];
    const INTERNET: Verdict<'static> = Verdict::When(
        2,
        Test::OneOf(PROTOCOLS),
        &ALLOW,
        &Verdict::Fail(EPROTONOSUPPORT),
    );
    const NETLINK: Verdict<'static> = Verdict::When(
        0,
        Test::OneOf(&[AF_NETLINK as u32]),
        &ROUTE,
        &UNKNOWN_FAMILY,
    );
    const INTERNET_OR_NETLINK: Verdict<'static> = Verdict::When(
        0,
        Test::OneOf(&[AF_INET as u32, AF_INET6 as u32]),
        &INTERNET,
        &NETLINK,
    );
    Verdict::When(
        0,
        Test::OneOf(&[AF_UNIX as u32]),
        &ALLOW,
        &INTERNET_OR_NETLINK,
    )
};

/// Only unix sockets come in pairs.
const SOCKET_PAIR: Verdict<'static> = Verdict::When(
    0,
    Test::OneOf(&[AF_UNIX as u32]),
    &ALLOW,
    &Verdict::Fail(EAFNOSUPPORT),
);

/// No pushing of input into a terminal that others read.
const IOCTL: Verdict<'static> = Verdict::When(
    1,
    Test::OneOf(&[TIOCSTI as u32, TIOCLINUX as u32]),
    &REFUSE,
    &Verdict::When(1, OF_BTRFS, &BTRFS, &ALLOW),
);

/// Calls of the pool's filesystem, which volumes of organisations let through: by the byte that tells their kind.
const OF_BTRFS: Test<'static> = Test::Masked {
    mask: 0xff00,
    value: 0x9400,
};

/// A subvolume made inside a volume would have no limit, a volume could be made read-only under its other users, and
/// figures of the whole pool be read. Files may share their bytes; the rest is not there, as on another filesystem.
const BTRFS: Verdict<'static> = Verdict::When(
    1,
    Test::OneOf(&[FICLONE, FICLONERANGE, FIDEDUPERANGE]),
    &ALLOW,
    &Verdict::Fail(ENOTTY),
);

/// All volumes are one filesystem, which charges shared bytes to the volume that wrote them alone: whoever filled a
/// volume, cloned its files into another and deleted the first could keep any amount. Programs copy instead, as they
/// do between filesystems.
const IOCTL_WITH_VOLUMES: Verdict<'static> = Verdict::When(
    1,
    Test::OneOf(&[FICLONE, FICLONERANGE, FIDEDUPERANGE]),
    &Verdict::Fail(EOPNOTSUPP),
    &IOCTL,
);
const COPY_WITH_VOLUMES: Verdict<'static> = Verdict::Fail(EXDEV);

const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;
const FIDEDUPERANGE: u32 = 0xc018_9436;

/// The query, and plain Linux with or without address randomisation (debuggers want it off).
const PERSONALITY: Verdict<'static> = {
    const PLAIN: Test<'static> = Test::Masked {
        mask: !(ADDR_NO_RANDOMIZE as u32),
        value: 0,
    };
    const SET: Verdict<'static> = Verdict::When(0, PLAIN, &ALLOW, &REFUSE);
    Verdict::When(0, Test::OneOf(&[u32::MAX]), &ALLOW, &SET)
};

/// Holes may be made, but no space reserved: reserved space counts as used at once but takes up the host's
/// disk only when it is written, and nothing can stop that later; two guests could fill the host under the
/// pool. As on other filesystems without it, the C library writes zeros instead.
const FALLOCATE: Verdict<'static> = Verdict::When(
    1,
    Test::OneOf(&[(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE) as u32]),
    &ALLOW,
    &Verdict::Fail(EOPNOTSUPP),
);

const LOOKED_AT: &[(c_long, Verdict<'static>)] = &[
    // The C library falls back to clone, whose flags a filter can see.
    (SYS_clone3, Verdict::Fail(ENOSYS)),
    (SYS_clone, NO_NEW_NAMESPACES),
    (SYS_unshare, NO_NEW_NAMESPACES),
    (SYS_socket, SOCKET),
    (SYS_socketpair, SOCKET_PAIR),
    (SYS_ioctl, IOCTL),
    (SYS_personality, PERSONALITY),
    (SYS_fallocate, FALLOCATE),
];

/// Instead of the rules of the same calls, in sandboxes that have volumes.
const WITH_VOLUMES: &[(c_long, Verdict<'static>)] = &[
    (SYS_ioctl, IOCTL_WITH_VOLUMES),
    (SYS_copy_file_range, COPY_WITH_VOLUMES),
];

fn rules(instead: &'static [(c_long, Verdict<'static>)]) -> Vec<Rule<'static>> {
    let is_kept = move |number: c_long| instead.iter().all(|(other, _)| *other != number);
    let allowed = [ALLOWED, ALLOWED_OLD, ALLOWED_NEW].into_iter().flatten();
    let allowed = allowed.filter(move |number| is_kept(**number));
    let refused = [REFUSED, REFUSED_OLD].into_iter().flatten();
    let looked_at = LOOKED_AT.iter().filter(move |(number, _)| is_kept(*number));
    allowed
        .map(|&number| Rule::allow(number))
        .chain(refused.map(|&number| Rule::fail(number, EPERM)))
        .chain(
            looked_at
                .chain(instead)
                .map(|&(number, verdict)| Rule::new(number, verdict)),
        )
        .collect()
}

pub struct Filters {
    pub plain: Vec<sock_filter>,
    pub with_volumes: Vec<sock_filter>,
}

pub fn programs() -> Filters {
    let assembled = |instead| {
        assemble(&rules(instead), Otherwise::Absent)
            .expect("the lists do not disagree, which a test shows")
    };
    Filters {
        plain: assembled(&[]),
        with_volumes: assembled(WITH_VOLUMES),
    }
}

#[cfg(test)]
mod tests {
    use cove_confine::seccomp::{SeenCall, answer};

    use super::*;

    /// Beyond the newest number any kernel has; all above do not exist.
    const NUMBERS: c_long = 600;

    fn program() -> Vec<sock_filter> {
        programs().plain
    }

    fn ask(number: c_long, arguments: [u64; 6]) -> u32 {
        answer(&program(), &SeenCall::new(number as u32, arguments)).unwrap()
    }

    const fn errno(errno: i32) -> u32 {
        SECCOMP_RET_ERRNO | errno as u32
    }

    #[test]
    fn every_number_gets_the_verdict_of_the_lists() {
        let program = program();
        let mut seen = 0;
        for number in 0..NUMBERS {
            let said = answer(&program, &SeenCall::new(number as u32, [0; 6])).unwrap();
            let among = |lists: &[&[c_long]]| lists.iter().any(|list| list.contains(&number));
            let expected = if LOOKED_AT.iter().any(|(looked_at, _)| *looked_at == number) {
                continue;
            } else if among(&[ALLOWED, ALLOWED_OLD, ALLOWED_NEW]) {
                seen += 1;
                SECCOMP_RET_ALLOW
            } else if among(&[REFUSED, REFUSED_OLD]) {
                errno(EPERM)
            } else {
                errno(ENOSYS)
            };
            assert_eq!(said, expected, "number {number}");
        }
        assert!(seen > 200, "{seen} are allowed");
    }

    #[test]
    fn files_cannot_share_bytes_where_there_are_volumes() {
        let programs = programs();
        let ask = |program: &[sock_filter], number: c_long, command: u32| {
            let arguments = [0, command.into(), 0, 0, 0, 0];
            answer(program, &SeenCall::new(number as u32, arguments)).unwrap()
        };
        for shares in [FICLONE, FICLONERANGE, FIDEDUPERANGE] {
            let (plain, there) = (&programs.plain, &programs.with_volumes);
            assert_eq!(ask(plain, SYS_ioctl, shares), SECCOMP_RET_ALLOW);
            assert_eq!(ask(there, SYS_ioctl, shares), errno(EOPNOTSUPP));
        }
        let there = &programs.with_volumes;
        assert_eq!(ask(there, SYS_copy_file_range, 0), errno(EXDEV));
        assert_eq!(ask(there, SYS_ioctl, TIOCSTI as u32), errno(EPERM));
        assert_eq!(ask(there, SYS_ioctl, 0x5000_940e), errno(ENOTTY));
        // Nothing else differs.
        for number in (0..NUMBERS).filter(|&number| number != SYS_copy_file_range) {
            let (plain, there) = (&programs.plain, &programs.with_volumes);
            assert_eq!(ask(plain, number, 0), ask(there, number, 0), "{number}");
        }
    }

    #[test]
    fn foreign_architectures_and_unknown_numbers_do_not_exist() {
        let foreign = SeenCall {
            architecture: 0x4000_0003,
            ..SeenCall::new(1, [0; 6])
        };
        assert_eq!(answer(&program(), &foreign), Some(errno(ENOSYS)));
        for number in [NUMBERS, 100_000, 0x4000_0000, 0x4000_0001, u32::MAX.into()] {
            assert_eq!(ask(number, [0; 6]), errno(ENOSYS), "{number}");
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
        for shares in [FICLONE, FICLONERANGE, FIDEDUPERANGE] {
            let asked = ask(SYS_ioctl, [0, shares.into(), 0, 0, 0, 0]);
            assert_eq!(asked, SECCOMP_RET_ALLOW);
        }
        // To make a subvolume or a snapshot, by the old call and the new; to freeze one; to read the pool's figures.
        for other in [
            0x5000_940e_u64,
            0x5000_9401,
            0x5000_9417,
            0x5000_9418,
            0x4008_941a,
            0x8400_941f,
        ] {
            let asked = ask(SYS_ioctl, [0, other, 0, 0, 0, 0]);
            assert_eq!(asked, errno(ENOTTY), "{other:x}");
        }
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
