# No device can be made, and those that are there are the harmless ones.
import stat

for what, kind, major, minor in [("sda", stat.S_IFBLK, 8, 0), ("loop", stat.S_IFBLK, 7, 0), ("mem", stat.S_IFCHR, 1, 1),
                                 ("kmem", stat.S_IFCHR, 1, 2), ("port", stat.S_IFCHR, 1, 4), ("kmsg", stat.S_IFCHR, 1, 11),
                                 ("null", stat.S_IFCHR, 1, 3), ("console", stat.S_IFCHR, 5, 1), ("fuse", stat.S_IFCHR, 10, 229),
                                 ("kvm", stat.S_IFCHR, 10, 232), ("tun", stat.S_IFCHR, 10, 200), ("loop-control", stat.S_IFCHR, 10, 237)]:
    for directory in ("/tmp", "/dev/shm", "/dev", "/root", "/.cove"):
        attempt(f"mknod {what} in {directory}", lambda: os.mknod(f"{directory}/{what}-made", kind | 0o666, os.makedev(major, minor)),
                errno.EPERM, errno.EACCES)
# The overlay's mark of a deleted file is a device in name only.
try:
    os.mknod("/tmp/whiteout", stat.S_IFCHR, os.makedev(0, 0))
except OSError as error:
    refused("whiteout", error.errno, errno.EPERM)
else:
    attempt("open a whiteout", lambda: os.open("/tmp/whiteout", os.O_RDONLY), errno.ENXIO, errno.EACCES, errno.ENOENT)

found = sorted(os.listdir("/dev"))
check("/dev", found == sorted(["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"]), str(found))
numbers = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
for directory, _, files in os.walk("/dev"):
    for file in files:
        seen = os.lstat(os.path.join(directory, file))
        check(f"{directory}/{file} is no block device", not stat.S_ISBLK(seen.st_mode))
        if directory == "/dev" and stat.S_ISCHR(seen.st_mode):
            check(file, (os.major(seen.st_rdev), os.minor(seen.st_rdev)) == numbers.get(file), str(seen))
devices = []
for top in ("/usr", "/etc", "/var", "/opt", "/srv", "/home", "/root", "/tmp", "/.cove"):
    for directory, _, files in os.walk(top):
        for file in files:
            mode = os.lstat(os.path.join(directory, file)).st_mode if os.path.lexists(os.path.join(directory, file)) else 0
            if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and os.lstat(os.path.join(directory, file)).st_rdev != 0):
                devices.append(os.path.join(directory, file))
check("no devices elsewhere", not devices, str(devices))
finish()
