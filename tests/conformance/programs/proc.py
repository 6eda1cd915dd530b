# What /proc shows must be this sandbox's, and PID 1 must be closed to everybody inside.
DENIED = (errno.EACCES, errno.EPERM)
root = os.stat("/")
pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
check("pids are the sandbox's own", 1 in pids and max(pids) < 5000 and len(pids) < 20, str(pids))
for pid in pids:
    status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status").read().splitlines() if ":" in line)
    check(f"pid {pid} lives in no other pid namespace we can see", len(status["NSpid"].split()) == 1, status["NSpid"])
    if pid != 1:
        try:
            seen = os.stat(f"/proc/{pid}/root/")
            check(f"root of {pid}", (seen.st_dev, seen.st_ino) == (root.st_dev, root.st_ino))
        except OSError as error:
            refused(f"root of {pid}", error.errno, *DENIED, errno.ENOENT)
for link in ["root", "cwd", "exe", "ns/user", "ns/mnt", "ns/net", "ns/pid"]:
    attempt(f"readlink /proc/1/{link}", lambda: os.readlink(f"/proc/1/{link}"), *DENIED)
    attempt(f"stat /proc/1/{link}", lambda: os.stat(f"/proc/1/{link}"), *DENIED)
    attempt(f"open /proc/1/{link}", lambda: os.open(f"/proc/1/{link}", os.O_RDONLY), *DENIED)
for directory in ["map_files", "fdinfo"]:
    attempt(f"list /proc/1/{directory}", lambda: os.listdir(f"/proc/1/{directory}"), *DENIED)
# Root may count PID 1's descriptors; what they are and lead to stays closed.
for number in range(0, 64):
    attempt(f"open /proc/1/fd/{number}", lambda: os.open(f"/proc/1/fd/{number}", os.O_RDONLY), *DENIED, errno.ENOENT)
    attempt(f"readlink /proc/1/fd/{number}", lambda: os.readlink(f"/proc/1/fd/{number}"), *DENIED, errno.ENOENT)
attempt("open /proc/1/fd/0", lambda: os.open("/proc/1/fd/0", os.O_RDONLY), *DENIED)
for name_, flags in [("mem", os.O_RDWR), ("mem", os.O_RDONLY), ("environ", os.O_RDONLY), ("maps", os.O_RDONLY),
                     ("auxv", os.O_RDONLY), ("stack", os.O_RDONLY), ("syscall", os.O_RDONLY)]:
    def read(name_=name_, flags=flags):
        fd = os.open(f"/proc/1/{name_}", flags)
        os.read(fd, 1)
    attempt(f"/proc/1/{name_}", read, *DENIED, errno.EIO)

PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
refused("ptrace attach PID 1", call(101, PTRACE_ATTACH, 1, 0, 0), errno.EPERM)
refused("ptrace seize PID 1", call(101, PTRACE_SEIZE, 1, 0, 0), errno.EPERM)


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


buffer = ctypes.create_string_buffer(16)
local = Iovec(ctypes.addressof(buffer), 16)
remote = Iovec(0x400000, 16)
for number in (310, 311):
    refused(f"process_vm {number} of PID 1", call(number, 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0), errno.EPERM)
pidfd = os.pidfd_open(1)
for number in (0, 3, 4, 5):
    refused(f"pidfd_getfd {number} of PID 1", call(438, pidfd, number, 0), errno.EPERM)
refused("setns into PID 1", call(308, pidfd, 0x20000000), errno.EPERM)
refused("kcmp with PID 1", call(312, 1, os.getpid(), 2, 0, 0), errno.EPERM)
finish()
