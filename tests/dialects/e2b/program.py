"""Runs the checks over both faces of the SDK, and writes what they show.

    program.py [--only NAME] [--face sync|async] [--table FILE]
"""

import argparse
import sys
from importlib.metadata import version

import e2b
import e2b_code_interpreter
from e2b.sandbox_async.commands.command import Commands as AsyncCommands
from e2b.sandbox_async.commands.pty import Pty as AsyncPty
from e2b.sandbox_async.filesystem.filesystem import Filesystem as AsyncFilesystem
from e2b.sandbox_async.git import Git as AsyncGit
from e2b.sandbox_sync.commands.command import Commands
from e2b.sandbox_sync.commands.pty import Pty
from e2b.sandbox_sync.filesystem.filesystem import Filesystem
from e2b.sandbox_sync.git import Git

from checks import ALL
from facade import Face


class Sync:
    title = "sync"
    is_async = False
    Sandbox = e2b.Sandbox
    CodeSandbox = e2b_code_interpreter.Sandbox
    Template = e2b.Template
    Volume = e2b.Volume
    Secret = e2b.Secret
    classes = [
        ("Sandbox", e2b.Sandbox),
        ("Commands", Commands),
        ("CommandHandle", e2b.CommandHandle),
        ("Pty", Pty),
        ("Filesystem", Filesystem),
        ("WatchHandle", e2b.WatchHandle),
        ("Git", Git),
        ("Volume", e2b.Volume),
        ("Secret", e2b.Secret),
    ]


class Async:
    title = "async"
    is_async = True
    Sandbox = Face(e2b.AsyncSandbox)
    CodeSandbox = Face(e2b_code_interpreter.AsyncSandbox)
    Template = Face(e2b.AsyncTemplate)
    Volume = Face(e2b.AsyncVolume)
    Secret = Face(e2b.AsyncSecret)
    classes = [
        ("Sandbox", e2b.AsyncSandbox),
        ("Commands", AsyncCommands),
        ("CommandHandle", e2b.AsyncCommandHandle),
        ("Pty", AsyncPty),
        ("Filesystem", AsyncFilesystem),
        ("WatchHandle", e2b.AsyncWatchHandle),
        ("Git", AsyncGit),
        ("Volume", e2b.AsyncVolume),
        ("Secret", e2b.AsyncSecret),
    ]


def only_new(wider, narrower):
    """What a class adds to the one it is made from."""
    return type(wider.__name__, (), {n: getattr(wider, n) for n in dir(wider) if not hasattr(narrower, n)})


def only_asking(template):
    """The methods of templates that ask the server; the others write a template down."""
    asking = {n: getattr(template, n) for n in vars(template) if not n.startswith("_")}
    builders = set(dir(e2b.TemplateBase)) - set(vars(template))
    return type("Template", (), {n: v for n, v in asking.items() if n not in builders})


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--only")
    options.add_argument("--face", choices=["sync", "async"])
    options.add_argument("--table")
    options = options.parse_args()
    Sync.classes.append(("CodeSandbox", only_new(e2b_code_interpreter.Sandbox, e2b.Sandbox)))
    Async.classes.append(("CodeSandbox", only_new(e2b_code_interpreter.AsyncSandbox, e2b.AsyncSandbox)))
    Sync.classes.append(("Template", only_asking(e2b.Template)))
    Async.classes.append(("Template", only_asking(e2b.AsyncTemplate)))
    failed = []
    for sdk in (Sync, Async):
        if options.face not in (None, sdk.title):
            continue
        unsaid, unknown = ALL.missing(sdk.classes)
        if sdk is Async:
            # One of its handles tells changes as they come and so has nothing to be asked.
            unknown = [name for name in unknown if name != "WatchHandle.get_new_events"]
            unsaid = [name for name in unsaid if name not in ASYNC_ONLY]
        if unsaid or unknown:
            failed.append(f"{sdk.title}: nothing is said of {unsaid}, and there is no {unknown}")
        failed += ALL.run(sdk, options.only)
    if options.table:
        with open(options.table, "w") as file:
            packages = " and ".join(f"`{name}` {version(name)}" for name in ("e2b", "e2b-code-interpreter"))
            file.write(f"## Python: {packages}\n\nThe asynchronous classes are the same.\n\n{ALL.table(Sync.classes)}\n")
    for one in failed:
        print(one)
    sys.exit(1 if failed else 0)


ASYNC_ONLY = ("CommandHandle.stdout", "CommandHandle.stderr", "CommandHandle.error", "CommandHandle.exit_code")

if __name__ == "__main__":
    main()
