# A process that runs the guest's program is stopped at its first instruction, and what it runs is held
# by a descriptor while it runs and after it is gone, as in CVE-2019-5736.
import signal

O_PATH = 0o10000000
WRITES = (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND)
DENIED = (errno.EROFS, errno.ETXTBSY, errno.EACCES, errno.EPERM)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

pid = os.fork()
if pid == 0:
    _libc.ptrace(0, 0, None, None)
    try:
        os.execv("/.cove/bin/guest", ["guest"])
    finally:
        os._exit(1)
stopped = os.WIFSTOPPED(os.waitpid(pid, 0)[1])
check("it stops at exec", stopped)
exe = f"/proc/{pid}/exe"
check("it runs the guest's program", stopped and os.path.samefile(exe, "/.cove/bin/guest"))
held = os.open(exe, O_PATH)
readable = os.open(exe, os.O_RDONLY)
for flags in WRITES:
    attempt(f"write it while it runs ({flags:#o})", lambda: os.open(exe, flags), *DENIED)
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
# Nothing runs it as this pid any more, so that being busy is no protection; PID 1's copy is the same file.
for fd in (held, readable):
    for flags in WRITES:
        attempt(f"write it afterwards ({flags:#o})", lambda: os.open(f"/proc/self/fd/{fd}", flags), *DENIED)
    attempt("chmod it", lambda: os.chmod(f"/proc/self/fd/{fd}", 0o777), *DENIED)
attempt("shorten it", lambda: os.ftruncate(readable, 0), errno.EINVAL, *DENIED)
finish()
