"""Which public methods of the SDKs are checked, and how: the table in docs/compat is made from this."""

import inspect
import time
import traceback

DEADLINE = 300.0


class Registry:
    def __init__(self):
        self.works = {}
        self.refuses = {}
        self.checks = []

    def covers(self, *names):
        """The check shows that these methods work."""

        def mark(check):
            for name in names:
                self.works.setdefault(name, check.__name__)
            self.checks.append(check)
            return check

        return mark

    def refused(self, reason, *names):
        """The check shows that these methods are refused, for this reason."""

        def mark(check):
            for name in names:
                assert name not in self.refuses, name
                self.refuses[name] = reason
            self.checks.append(check)
            return check

        return mark

    def missing(self, classes):
        """Public methods nobody has said anything about, and names that no class has."""
        there = {f"{title}.{name}" for title, one in classes for name in methods(one)}
        said = set(self.works) | set(self.refuses)
        return sorted(there - said), sorted(said - there)

    def run(self, sdk, only=None):
        """Runs every check; the names of those that failed."""
        failed = []
        for check in self.checks:
            if only and only not in check.__name__:
                continue
            started = time.monotonic()
            try:
                check(sdk)
                print(f"ok      {sdk.title} {check.__name__} ({time.monotonic() - started:.2f} s)", flush=True)
            except Exception:
                traceback.print_exc()
                print(f"FAILED  {sdk.title} {check.__name__}", flush=True)
                failed.append(f"{sdk.title} {check.__name__}")
        return failed

    def table(self, classes):
        lines = ["| method | |", "|---|---|"]
        for title, one in classes:
            for name in methods(one):
                full = f"{title}.{name}"
                if full in self.refuses and full in self.works:
                    lines.append(f"| `{full}` | works; {self.refuses[full]} |")
                elif full in self.refuses:
                    lines.append(f"| `{full}` | refused: {self.refuses[full]} |")
                else:
                    lines.append(f"| `{full}` | works |")
        return "\n".join(lines)


def methods(one):
    """Public methods and properties, as they are written in the class or what it is made from."""
    found = []
    for name in dir(one):
        if name.startswith("_"):
            continue
        value = inspect.getattr_static(one, name)
        kinds = (staticmethod, classmethod, property)
        if isinstance(value, kinds) or callable(value) or hasattr(value, "__get__"):
            found.append(name)
    return found


def wait_for(what, look):
    """Waits for a state of the world; says which one when it does not come."""
    started = time.monotonic()
    while time.monotonic() - started < DEADLINE:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited in vain: {what}")


def raises(kinds, call, saying=""):
    """The exception the call ends with, which must be of exactly one of these classes."""
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    try:
        result = call()
    except Exception as error:
        assert type(error) in kinds, f"{type(error).__name__}: {error}"
        assert saying in str(error), str(error)
        return error
    raise AssertionError(f"nothing was raised, but {result!r} came back")
