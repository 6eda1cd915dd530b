# Every way to change what is mounted where, old interface and new, must be refused.
MOUNT, UMOUNT2, PIVOT_ROOT, OPEN_TREE, MOVE_MOUNT = 165, 166, 155, 428, 429
FSOPEN, FSCONFIG, FSMOUNT, FSPICK, MOUNT_SETATTR = 430, 431, 432, 433, 442
AT_FDCWD = -100

os.makedirs("/tmp/m/old", exist_ok=True)
for kind in [b"tmpfs", b"proc", b"sysfs", b"overlay", b"cgroup", b"cgroup2", b"devtmpfs", b"btrfs", b"fuse", b"bpf", b"debugfs"]:
    refused(f"mount {kind}", call(MOUNT, b"none", b"/tmp/m", kind, 0, None), errno.EPERM)
for what, flags in [("bind", 4096), ("recursive bind", 4096 | 16384), ("move", 8192), ("remount", 32), ("private", 1 << 18), ("shared", 1 << 20)]:
    refused(what, call(MOUNT, b"/proc/sys", b"/tmp/m", None, flags, None), errno.EPERM)
for target in [b"/proc/sys", b"/proc/meminfo", b"/.cove/bin", b"/.cove", b"/sys", b"/proc", b"/proc/kcore", b"/dev/shm", b"/"]:
    refused(f"remount {target} writable", call(MOUNT, None, target, None, 32 | 4096, None), errno.EPERM)
    for flags in (0, 1, 2, 8):
        refused(f"umount {target} {flags}", call(UMOUNT2, target, flags), errno.EPERM)
refused("pivot_root", call(PIVOT_ROOT, b"/tmp/m", b"/tmp/m/old"), errno.EPERM)
for flags in (0, 1, 1 | 0x8000):
    refused("open_tree", call(OPEN_TREE, AT_FDCWD, b"/", flags), errno.EPERM)
refused("fsopen", call(FSOPEN, b"tmpfs", 0), errno.EPERM)
refused("fsconfig", call(FSCONFIG, 0, 6, None, None, 0), errno.EPERM)
refused("fsmount", call(FSMOUNT, 0, 0, 0), errno.EPERM)
refused("fspick", call(FSPICK, AT_FDCWD, b"/", 0), errno.EPERM)
refused("move_mount", call(MOVE_MOUNT, AT_FDCWD, b"/proc", AT_FDCWD, b"/tmp/m", 0), errno.EPERM)
refused("mount_setattr", call(MOUNT_SETATTR, AT_FDCWD, b"/proc/sys", 0, bytes(32), 32), errno.EPERM)
for number in (457, 458, 467):
    refused(f"mount call {number}", call(number, 0, 0, 0, 0), errno.ENOSYS)
refused("quotactl", call(179, 0, None, 0, None), errno.EPERM)
refused("swapon", call(167, b"/tmp/m", 0), errno.EPERM)


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]


# The handle trick: a file handle of the root of any filesystem opens whatever the kernel can reach.
for where in ("/", "/.cove/bin", "/dev/shm"):
    handle, mount = Handle(128, 0), ctypes.c_int()
    call(303, AT_FDCWD, where.encode(), ctypes.byref(handle), ctypes.byref(mount), 0)
    directory = os.open(where, os.O_RDONLY)
    refused(f"open_by_handle_at {where}", call(304, directory, ctypes.byref(handle), 0), errno.EPERM)
    handle.bytes, handle.type = 8, 1
    handle.data[0] = 2
    refused(f"guessed handle {where}", call(304, directory, ctypes.byref(handle), 0), errno.EPERM)
finish()
