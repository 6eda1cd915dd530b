"""Git in a sandbox, through the ``git`` of its image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Optional, Union

from .._wire import git_status
from ..types import GitStatus, Result

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox

#: Takes the credentials from the environment, so that they are in no command line and in no file.
_HELPER = '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$COVE_GIT_USER" "$COVE_GIT_PASSWORD"; }; f'


class AsyncGit:
    """``box.git``. ``path`` is a working tree. A failed git command raises :class:`~cove.CommandFailed`.

    >>> async with AsyncSandbox() as box:
    ...     await box.git.init("/srv/app")
    ...     await box.files.write("/srv/app/notes", "one")
    ...     [(file.path, file.index) for file in (await box.git.status("/srv/app")).files]
    ...     await box.git.add("/srv/app")
    ...     commit = await box.git.commit("/srv/app", "Begin", author="Ada <ada@example.com>")
    ...     (await box.git.status("/srv/app")).commit == commit
    3
    [('notes', '?')]
    True

    ``username`` and ``password`` are for remotes over HTTPS; the sandbox does not store them.
    """

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box

    async def _git(
        self,
        path: Optional[str],
        args: Sequence[str],
        *,
        user: Optional[str],
        timeout: Optional[float] = None,
        credentials: Optional[tuple[Optional[str], Optional[str]]] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> Result:
        command = ["git", *(["-C", path] if path else [])]
        variables = {"GIT_TERMINAL_PROMPT": "0", **(env or {})}
        name, password = credentials or (None, None)
        if name is not None or password is not None:
            command += ["-c", "credential.helper=", "-c", f"credential.helper={_HELPER}"]
            variables.update(COVE_GIT_USER=name or "git", COVE_GIT_PASSWORD=password or "")
        return await self._box.run([*command, *args], user=user, timeout=timeout, env=variables, check=True)

    async def init(self, path: str, *, branch: str = "main", user: Optional[str] = None) -> None:
        """Creates an empty repository."""
        await self._git(None, ["init", "--quiet", f"--initial-branch={branch}", "--", path], user=user)

    async def clone(
        self,
        url: str,
        path: str,
        *,
        branch: Optional[str] = None,
        depth: Optional[int] = None,
        username: Optional[str] = None,
        password: Optional[str] = None,
        timeout: Optional[float] = None,
        user: Optional[str] = None,
    ) -> None:
        """Clones a repository; the sandbox's network policy must allow its host."""
        args = ["clone", "--quiet", *([f"--branch={branch}"] if branch else [])]
        args += [*([f"--depth={depth}"] if depth else []), "--", url, path]
        await self._git(None, args, user=user, timeout=timeout, credentials=(username, password))

    async def status(self, path: str, *, user: Optional[str] = None) -> GitStatus:
        """Returns the branch and the changed files."""
        args = ["status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all"]
        return git_status((await self._git(path, args, user=user)).stdout)

    async def diff(self, path: str, *, staged: bool = False, user: Optional[str] = None) -> str:
        """Returns the unstaged changes; with ``staged``, the staged ones."""
        return (await self._git(path, ["diff", *(["--staged"] if staged else [])], user=user)).stdout

    async def add(
        self, path: str, files: Union[str, Sequence[str]] = ".", *, user: Optional[str] = None
    ) -> None:
        """Stages all changes, or those of the given files."""
        names = [files] if isinstance(files, str) else list(files)
        await self._git(path, ["add", "--all", "--", *names], user=user)

    async def commit(
        self,
        path: str,
        message: str,
        *,
        author: Optional[str] = None,
        allow_empty: bool = False,
        user: Optional[str] = None,
    ) -> str:
        """Commits the staged changes and returns the commit's id. ``author`` is ``Name <address>``."""
        env = {}
        if author is not None:
            name, _, address = author.partition("<")
            if not name.strip() or not address.strip().endswith(">"):
                raise ValueError(f"author must look like 'Name <address>', not {author!r}")
            for role in ("AUTHOR", "COMMITTER"):
                env[f"GIT_{role}_NAME"] = name.strip()
                env[f"GIT_{role}_EMAIL"] = address.strip()[:-1]
        args = ["commit", "--quiet", "-m", message, *(["--allow-empty"] if allow_empty else [])]
        await self._git(path, args, user=user, env=env)
        return (await self._git(path, ["rev-parse", "HEAD"], user=user)).stdout.strip()

    async def branches(self, path: str, *, user: Optional[str] = None) -> list[str]:
        """Returns the names of the branches."""
        args = ["branch", "--format=%(refname:short)"]
        return (await self._git(path, args, user=user)).stdout.split()

    async def checkout(
        self, path: str, branch: str, *, create: bool = False, user: Optional[str] = None
    ) -> None:
        """Checks out a branch or a commit; with ``create``, a new branch."""
        args = ["checkout", "--quiet", *(["-b"] if create else []), branch, *([] if create else ["--"])]
        await self._git(path, args, user=user)

    async def pull(
        self,
        path: str,
        *,
        username: Optional[str] = None,
        password: Optional[str] = None,
        timeout: Optional[float] = None,
        user: Optional[str] = None,
    ) -> None:
        """Pulls from upstream; fails if that needs a merge."""
        args = ["pull", "--quiet", "--ff-only"]
        await self._git(path, args, user=user, timeout=timeout, credentials=(username, password))

    async def push(
        self,
        path: str,
        *,
        remote: str = "origin",
        branch: Optional[str] = None,
        username: Optional[str] = None,
        password: Optional[str] = None,
        timeout: Optional[float] = None,
        user: Optional[str] = None,
    ) -> None:
        """Pushes the current branch, or another one, to a remote."""
        args = ["push", "--quiet", "--set-upstream", "--", remote, branch or "HEAD"]
        await self._git(path, args, user=user, timeout=timeout, credentials=(username, password))
