"""Images as a chain of steps: each is one instruction of a Dockerfile, and every argument is data in it."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional, Union

LocalPath = Union[str, "os.PathLike[str]"]

#: Where the archive has what ``copy`` takes; the names in it are made here.
COPIES = ".cove-copy"
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./:@%+=,-]*")
#: At least what the server takes for a directive that changes the escape character.
_ESCAPE = re.compile(r"(?im)^[^\w\n]*escape[^\w\n]*=[^\w\n]*`")
_SHELL = ("/bin/sh", "-c")
_APT = (
    "apt-get update && DEBIAN_FRONTEND=noninteractive"
    ' apt-get install -y --no-install-recommends -- "$@" && rm -rf /var/lib/apt/lists/*'
)
#: Debian's pip refuses to add to the packages of the system; in an image of its own that is what is wanted.
_PIP = ("env", "PIP_BREAK_SYSTEM_PACKAGES=1", "PIP_NO_CACHE_DIR=1", "python3", "-m", "pip", "install", "--")


def _text(what: str, value: Any, *, line: bool = False) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what}: a text, not {value!r}")
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError(f"{what}: {value!r} has a NUL or is not Unicode")
    if line and ("\n" in value or "\r" in value):
        raise ValueError(f"{what}: {value!r} has a line break, which this instruction of a Dockerfile cannot have")
    return value


def _filled(what: str, value: Any, *, line: bool = False) -> str:
    if _text(what, value, line=line) == "":
        raise ValueError(f"{what}: the text is empty")
    return str(value)


def _escaped(value: str) -> str:
    """For what reads words: quotes, backslashes and ``$`` stand for themselves."""
    return re.sub(r"""[\\"'$]""", r"\\\g<0>", value)


def _word(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else '"' + re.sub(r'[\\"$]', r"\\\g<0>", value) + '"'


def _array(words: Sequence[str]) -> str:
    # Two `<` would begin a here-document, wherever they stand.
    return json.dumps(list(words)).replace("<", "\\u003c")


def _command(what: str, command: Union[str, Sequence[str]]) -> str:
    if isinstance(command, str):
        return _array([*_SHELL, _filled(what, command)])
    words = [_text(what, word) for word in command]
    if not words or words[0] == "":
        raise ValueError(f"{what}: the command has no program")
    return _array(words)


def _all(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        raise ValueError(f"{what}: name at least one package")
    return [_filled(what, name) for name in names]


@dataclass(frozen=True)
class Image:
    """The steps that a template is built from. It never changes: every method returns a new image.
    Arguments are data: quotes, ``$``, backslashes and leading dashes reach the tool unchanged. An
    argument that a Dockerfile cannot express raises :class:`ValueError`. :meth:`Template.build` builds
    it.

    >>> image = Image.debian().workdir("/srv").run("echo made > note").env({"MODE": "fast"})
    >>> print(image.dockerfile, end="")
    FROM debian
    WORKDIR /srv
    RUN ["/bin/sh", "-c", "echo made > note"]
    ENV MODE=fast
    """

    #: The text that is built.
    dockerfile: str
    #: The directory that ``COPY`` takes files of; only an image from a Dockerfile has one.
    context: Optional[str] = None
    #: What of it is left out, as ``.dockerignore`` says it.
    ignore: Optional[str] = None
    #: Path in the archive and path on this machine of what ``copy`` takes.
    sources: tuple[tuple[str, str], ...] = ()

    @classmethod
    def debian(cls) -> Image:
        """Starts from the default image."""
        return cls.from_image("debian")

    @classmethod
    def from_image(cls, reference: str) -> Image:
        """Starts from an image of a registry or of the server, such as ``"python:3.12"``."""
        if not _REFERENCE.fullmatch(_text("from_image", reference)):
            raise ValueError(f"from_image: {reference!r} is not the name of an image")
        return cls(f"FROM {reference}\n")

    @classmethod
    def from_template(cls, template: Any) -> Image:
        """Starts from a template: the object, ``"name"``, ``"name:tag"``, ``"name:version"`` or its id."""
        name = template if isinstance(template, str) else template.id
        if not _REFERENCE.fullmatch(_text("from_template", name)):
            raise ValueError(f"from_template: {name!r} is not the name of a template")
        return cls(f"FROM template/{name}\n")

    @classmethod
    def from_dockerfile(cls, path: LocalPath, *, context: Optional[LocalPath] = None) -> Image:
        """Starts from a Dockerfile. ``context`` is the directory with the files for ``COPY`` (default:
        the Dockerfile's directory), except those that ``.dockerignore`` names. Later steps belong to its
        last stage.
        """
        path = os.path.abspath(path)
        directory = os.path.abspath(context) if context is not None else os.path.dirname(path)
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
        if _ESCAPE.search(text):
            raise ValueError(f"{path}: a Dockerfile with another escape character cannot be continued")
        lines = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
        if lines and lines[-1].rstrip().endswith("\\"):
            raise ValueError(f"{path}: the last line ends with a backslash, so that the next step would go on with it")
        ignore = None
        for name in (f"{path}.dockerignore", os.path.join(directory, ".dockerignore")):
            if ignore is None and os.path.exists(name):
                with open(name, encoding="utf-8-sig") as file:
                    ignore = file.read()
        return cls(text if text.endswith("\n") else text + "\n", directory, ignore)

    def _archived_ignore(self) -> Optional[str]:
        """What is left out of the archive that a build sends."""
        if self.context is None or not self.sources:
            return self.ignore
        if os.path.lexists(os.path.join(self.context, COPIES)):
            raise ValueError(f"the context has {COPIES}, which is the name for what copy takes")
        # What copy takes is wanted, whatever the patterns say of the context.
        return None if self.ignore is None else f"{self.ignore}\n!{COPIES}\n"

    def _then(self, instruction: str) -> Image:
        return replace(self, dockerfile=f"{self.dockerfile}{instruction}\n")

    def apt(self, *packages: str) -> Image:
        """Installs Debian or Ubuntu packages."""
        return self.run([*_SHELL, _APT, "apt", *_all("apt", packages)])

    def pip(self, *packages: str) -> Image:
        """Installs Python packages for all users, with the ``pip`` of the image's ``python3``."""
        return self.run([*_PIP, *_all("pip", packages)])

    def copy(self, source: LocalPath, target: str) -> Image:
        """Copies a file, or the content of a directory, of this machine. A file goes into ``target`` if
        that is a directory or ends with ``/``. Links below ``source`` are kept.
        """
        place = os.path.abspath(source)
        name = _text("copy", os.path.basename(place))
        _filled("copy", target)
        mode = os.stat(place).st_mode
        if name == "" or not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise ValueError(f"copy: {place!r} is neither a file nor a directory below /")
        entry = f"{COPIES}/{len(self.sources)}/{name}"
        # A source is a pattern, too.
        pattern = re.sub(r"[\\*?\[]", r"\\\g<0>", entry)
        step = self._then(f"COPY {_array([_escaped(pattern), _escaped(target)])}")
        return replace(step, sources=(*self.sources, (entry, place)))

    def run(self, command: Union[str, Sequence[str]]) -> Image:
        """Runs a command in the build: a string for ``/bin/sh``, or a program with its arguments."""
        return self._then(f"RUN {_command('run', command)}")

    def env(self, variables: Mapping[str, str]) -> Image:
        """Sets environment variables for later steps and for sandboxes. ``$NAME`` in a value is not
        replaced.
        """
        words = []
        for name, value in variables.items():
            if not _VARIABLE.fullmatch(_text("env", name)):
                raise ValueError(f"env: {name!r} is not the name of a variable")
            words.append(f"{name}={_word(_text(f'env {name}', value, line=True))}")
        return self._then(f"ENV {' '.join(words)}") if words else self

    def workdir(self, path: str) -> Image:
        """Sets the working directory of later steps and of commands in sandboxes, and creates it."""
        return self._then(f"WORKDIR {_word(_filled('workdir', path, line=True))}")

    def user(self, user: str) -> Image:
        """Sets the user of later steps and of commands in sandboxes: ``"app"``, ``"1000"`` or
        ``"app:staff"``.
        """
        if re.search(r"\s", _filled("user", user)):
            raise ValueError(f"user: {user!r} has a blank")
        return self._then(f"USER {_word(user)}")

    def cmd(self, command: Union[str, Sequence[str]]) -> Image:
        """Sets the server that ``ready`` of :meth:`Template.build` waits for: a string for ``/bin/sh``,
        or a program with its arguments. Without ``ready`` it is only recorded.
        """
        return self._then(f"CMD {_command('cmd', command)}")
