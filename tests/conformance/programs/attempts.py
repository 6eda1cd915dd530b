# Put before every program that attempts something: raw system calls, and a tally of what must fail.
import ctypes, errno, os, sys

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_tally = {"checked": 0, "wrong": []}


def call(number, *arguments):
    """The errno of a raw system call, 0 when it succeeded."""
    ctypes.set_errno(0)
    ready = [a if isinstance(a, (bytes, ctypes.Array, ctypes.Structure)) or a is None or hasattr(a, "_obj")
             else ctypes.c_long(a) for a in arguments]
    result = _libc.syscall(ctypes.c_long(number), *ready)
    return ctypes.get_errno() if result < 0 else 0


def name(code):
    return "success" if code == 0 else errno.errorcode.get(code, str(code))


def check(what, holds, detail=""):
    _tally["checked"] += 1
    if not holds:
        _tally["wrong"].append(f"{what}: {detail}")


def refused(what, code, *expected):
    """Counts an attempt whose outcome must be one of the expected errors (default: EPERM or ENOSYS)."""
    expected = expected or (errno.EPERM, errno.ENOSYS)
    check(what, code in expected, f"{name(code)}, wanted {'/'.join(map(name, expected))}")


def attempt(what, action, *expected):
    """The same for a Python call that raises OSError."""
    try:
        action()
        refused(what, 0, *expected)
    except OSError as error:
        refused(what, error.errno, *expected)


def finish():
    for line in _tally["wrong"]:
        print("WRONG", line)
    print("checked", _tally["checked"])
    sys.exit(1 if _tally["wrong"] else 0)
