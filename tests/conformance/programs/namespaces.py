# No namespace can be made or entered, in any combination.
NEW = {"time": 0x80, "mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000,
       "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
SIGCHLD = 17


def raw_clone(flags):
    ctypes.set_errno(0)
    pid = _libc.syscall(ctypes.c_long(56), ctypes.c_long(flags), None, None, None, None)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
        return 0
    return ctypes.get_errno()


check("a plain clone works", raw_clone(SIGCHLD) == 0)
for what, flag in NEW.items():
    refused(f"unshare {what}", call(272, flag), errno.EPERM)
    refused(f"unshare user and {what}", call(272, flag | NEW["user"]), errno.EPERM)
    if what != "time":
        refused(f"clone {what}", raw_clone(flag | SIGCHLD), errno.EPERM)
        refused(f"clone user and {what}", raw_clone(flag | NEW["user"] | SIGCHLD), errno.EPERM)
    arguments = (ctypes.c_uint64 * 11)(flag, 0, 0, 0, SIGCHLD)
    refused(f"clone3 {what}", call(435, arguments, 88), errno.ENOSYS, errno.EPERM)
arguments = (ctypes.c_uint64 * 11)(0x200000000, 0, 0, 0, SIGCHLD)
refused("clone3 into a cgroup", call(435, arguments, 88), errno.ENOSYS, errno.EPERM)
for kind in os.listdir("/proc/self/ns"):
    fd = os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)
    refused(f"setns {kind}", call(308, fd, 0), errno.EPERM)
    # NS_GET_USERNS and NS_GET_PARENT lead to namespaces of the host.
    if kind in ("user", "pid"):
        refused(f"parent of {kind}", call(16, fd, 0xB702), errno.EPERM)
fd = os.open("/proc/self/ns/user", os.O_RDONLY)
refused("owner of the user namespace", call(16, fd, 0xB701), errno.EPERM)
finish()
