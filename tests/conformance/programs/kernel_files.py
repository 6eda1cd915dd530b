# Nothing of the kernel's configuration or memory can be opened for writing, or read where it tells secrets.
import stat

# Files of the sandbox's own that are shown in these places.
OWN = {"/proc/meminfo", "/proc/cpuinfo", "/sys/devices/system/cpu/online"}


def walk(top, skip=()):
    for directory, names, files in os.walk(top):
        names[:] = [n for n in names if os.path.join(directory, n) not in skip and not os.path.islink(os.path.join(directory, n))]
        for file in files:
            yield os.path.join(directory, file)


opened, looked = [], 0
numbers = tuple(f"/proc/{e}" for e in os.listdir("/proc") if e.isdigit())
for path in [*walk("/proc", numbers), *walk("/sys", ("/sys/kernel/slab",)), *walk("/.cove/cgroup")]:
    if path in OWN or os.path.islink(path) or path.startswith(("/proc/self/", "/proc/thread-self/")):
        continue
    looked += 1
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        opened.append(path)
    except OSError:
        pass
for path in ["/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/timens_offsets"]:
    def remap(path=path):
        with open(path, "w") as file:
            file.write("0 0 1\n")
    attempt(f"write {path}", remap, errno.EPERM, errno.EACCES, errno.EINVAL)
check("nothing in /proc and /sys opens for writing", not opened, str(opened[:20]))
check("there was something to look at", looked > 200, str(looked))

for path in ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname",
             "/proc/sys/kernel/randomize_va_space", "/proc/sys/vm/overcommit_memory", "/proc/sys/fs/binfmt_misc/register",
             "/proc/sys/kernel/ns_last_pid", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/sys/power/state",
             "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/irq/default_smp_affinity", "/proc/sys/net/ipv4/ip_forward"]:
    def write(path=path):
        with open(path, "w") as file:
            file.write("|/tmp/evil\n")
    attempt(f"write {path}", write, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)

for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sysrq-trigger"]:
    check(f"{path} is empty", not os.path.exists(path) or open(path, "rb").read(64) == b"")
for path in ["/proc/acpi", "/proc/scsi", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/pressure", "/proc/driver",
             "/proc/sys/dev", "/sys/firmware", "/sys/fs/btrfs", "/sys/fs/ext4", "/sys/block", "/sys/module"]:
    check(f"{path} is empty", not os.path.exists(path) or os.listdir(path) == [])
for path in ["/proc/kmsg", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup", "/proc/vmallocinfo", "/proc/slabinfo",
             "/sys/kernel/debug/sched", "/sys/kernel/tracing/trace"]:
    def read(path=path):
        with open(path, "rb") as file:
            file.read(8)
    attempt(f"read {path}", read, errno.EPERM, errno.EACCES, errno.ENOENT)
addresses = {line.split()[0].strip("0") for line in open("/proc/kallsyms")} if os.path.exists("/proc/kallsyms") else set()
check("kernel addresses are hidden", addresses <= {""}, str(list(addresses)[:3]))
frames = open("/proc/self/pagemap", "rb")
frames.seek(ctypes.addressof(ctypes.create_string_buffer(b"x")) // 4096 * 8)
check("physical addresses are hidden", int.from_bytes(frames.read(8), "little") & ((1 << 55) - 1) == 0)
finish()
