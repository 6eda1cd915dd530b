# System calls that configure the host, break capture or widen the border.
EPERM, ENOSYS = errno.EPERM, errno.ENOSYS
zeros = bytes(256)
for what, number, arguments in [
    ("bpf map", 321, (0, zeros, 72)), ("bpf program", 321, (5, zeros, 72)),
    ("perf_event_open", 298, (zeros, 0, -1, -1, 0)),
    ("add_key", 248, (b"user", b"x", b"y", 1, -3)), ("request_key", 249, (b"user", b"x", None, -3)),
    ("keyctl join", 250, (1, None)), ("keyctl read", 250, (11, -3, None, 0)),
    ("userfaultfd", 323, (0,)), ("userfaultfd user mode", 323, (1,)),
    ("io_uring_setup", 425, (8, zeros)), ("io_uring_enter", 426, (0, 0, 0, 0)), ("io_uring_register", 427, (0, 0, None, 0)),
    ("init_module", 175, (zeros, 256, b"")), ("finit_module", 313, (0, b"", 0)), ("delete_module", 176, (b"loop", 0)),
    ("kexec_load", 246, (0, 0, None, 0)), ("kexec_file_load", 320, (0, 0, 0, None, 0)),
    ("reboot", 169, (0xFEE1DEAD, 672274793, 0x4321FEDC, None)), ("syslog", 103, (3, zeros, 256)),
    ("settimeofday", 164, (zeros, None)), ("clock_settime", 227, (0, zeros)),
    ("sethostname", 170, (b"evil", 4)), ("setdomainname", 171, (b"evil", 4)),
    ("acct", 163, (None,)), ("vhangup", 153, ()), ("iopl", 172, (3,)), ("ioperm", 173, (0x80, 1, 1)),
    ("fanotify_init", 300, (0, 0)), ("mq_open", 240, (b"q", 0o100 | 2, 0o600, None)),
    ("move_pages", 279, (1, 0, None, None, None, 0)), ("migrate_pages", 256, (1, 0, None, None)),
    ("swapoff", 168, (b"/x",)), ("kcmp", 312, (1, 1, 0, 0, 0)), ("process_madvise", 440, (0, None, 0, 0, 0)),
    ("landlock", 444, (None, 0, 1)), ("memfd_secret", 447, (0,)), ("lookup_dcookie", 212, (0, zeros, 16)),
    ("modify_ldt", 154, (1, zeros, 16)), ("nfsservctl", 180, (0, None, None)), ("uselib", 134, (b"/x",)),
    ("_sysctl", 156, (zeros,)), ("create_module", 174, (b"x", 1)), ("lsm_get_self_attr", 459, (100, None, None, 0)),
    ("quotactl_fd", 443, (0, 0, 0, None)), ("io_setup", 206, (64, zeros)),
]:
    refused(what, call(number, *arguments), EPERM, ENOSYS)

# Numbers of the x32 interface and beyond every table do not exist.
for number in (0x40000000 + 39, 0x40000000 + 165, 1000, 0x7FFFFFFF):
    refused(f"call {number:#x}", call(number, 0, 0, 0, 0, 0), ENOSYS)

# Turning the screws of scheduling and limits.
attempt("real-time scheduling", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)), EPERM)
attempt("negative nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20), EPERM, errno.EACCES)
refused("real-time I/O", call(251, 1, 0, 1 << 13), EPERM)
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard * 2))
    check("raise the limit of open files", False, "success")
except (ValueError, OSError):
    check("raise the limit of open files", True)
def spare():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
attempt("be spared when memory runs out", spare, errno.EACCES, EPERM)
attempt("trusted attributes", lambda: os.setxattr("/tmp", "trusted.overlay.opaque", b"y"), EPERM)
refused("foreign personality", call(135, 0x0400000), EPERM)

# Pushing input into a terminal, with and without rubbish in the upper half of the number.
import pty
master, slave = pty.openpty()
for request in (0x5412, 0x100005412, 0x541C, 0xFFFFFFFF00005412 - (1 << 64)):
    refused(f"ioctl {request:#x}", call(16, slave, request, b"x"), EPERM)
finish()
