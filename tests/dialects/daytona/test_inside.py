"""What is done inside a sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import queue
import time
from typing import Any

import pytest
import websocket
from conftest import ask
from daytona import (
    CodeRunParams,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaError,
    DaytonaFileNotFoundError,
    DaytonaNotFoundError,
    DaytonaProcessExecutionTimeoutError,
    DaytonaSessionEndedError,
    DaytonaTimeoutError,
    FileDownloadRequest,
    FileUpload,
    Sandbox,
    SessionExecuteRequest,
)
from daytona.common.errors import (
    DaytonaConflictError,
    DaytonaGitAuthFailedError,
    DaytonaGitBranchExistsError,
    DaytonaGitBranchNotFoundError,
    DaytonaGitDirtyWorktreeError,
    DaytonaGitPushRejectedError,
    DaytonaGitRepoNotFoundError,
    DaytonaInvalidFilePathError,
)
from daytona.common.pty import PtySize
from daytona.handle.pty_handle import PtyHandle


def test_commands_say_and_end_as_they_do(box: Sandbox) -> None:
    answer = box.process.exec("pwd; echo $A; echo to stderr >&2; exit 3", cwd="/tmp", env={"A": "b"})
    assert (answer.exit_code, answer.result) == (3, "/tmp\nb\nto stderr\n")
    with pytest.raises(DaytonaProcessExecutionTimeoutError):
        box.process.exec("sleep 1000", timeout=1)
    assert box.get_work_dir() == box.get_user_home_dir() == box.get_user_root_dir() == "/home/daytona"
    assert box.user == "daytona" and box.process.exec("id -un; sudo -n id -un").result == "daytona\nroot\n"
    box.process.exec("mkdir -p below")
    assert box.process.exec("pwd", cwd="below").result == "/home/daytona/below\n"


def test_code_runs_and_leaves_nothing_behind(box: Sandbox) -> None:
    answer = box.process.code_run("import sys, os\nprint(6 * 7, sys.argv[1:], os.environ['A'])", CodeRunParams(argv=["x"], env={"A": "b"}))
    assert (answer.exit_code, answer.result) == (0, "42 ['x'] b\n")
    failed = box.process.code_run("raise ValueError('no')")
    assert failed.exit_code == 1 and "ValueError: no" in failed.result
    # The SDK passes this one on as its generated client raises it.
    with pytest.raises(Exception, match="PROCESS_EXECUTION_TIMEOUT"):
        box.process.code_run("import time; time.sleep(1000)", timeout=1)
    assert box.process.exec("ls /tmp | grep tmp").result == ""


@pytest.mark.parametrize(
    ("language", "code"),
    [("typescript", "const n: number = 6 * 7; console.log(n)"), ("javascript", "console.log(6 * 7)")],
)
def test_other_languages_run(client: Daytona, language: str, code: str) -> None:
    box = client.create(CreateSandboxFromSnapshotParams(language=language))
    try:
        assert box.process.code_run(code).result == "42\n"
    finally:
        box.delete()


def test_sessions_keep_their_state(box: Sandbox) -> None:
    process = box.process

    def say(command: str, **more: bool) -> object:
        return process.execute_session_command("one", SessionExecuteRequest(command=command, **more))

    process.create_session("one")
    with pytest.raises(DaytonaConflictError):
        process.create_session("one")
    say("cd /tmp && export KEPT=5")
    answer = say("pwd; echo $KEPT; echo bad >&2; false")
    assert (answer.exit_code, answer.stdout, answer.stderr) == (1, "/tmp\n5\n", "bad\n")
    assert say("cat <<EOF\nkept $KEPT\nEOF").stdout == "kept 5\n"
    assert say("sleep 1000 >/dev/null 2>&1 & echo begun").stdout == "begun\n"
    assert say(r"printf '\001\001\001\377 odd\n'").stdout == "\x01\x01\x01\ufffd odd\n"

    begun = say("read line; echo got $line; echo last >&2", run_async=True)
    assert process.get_session_command("one", begun.cmd_id).exit_code is None
    process.send_session_command_input("one", begun.cmd_id, "this")
    out: list[str] = []
    err: list[str] = []
    asyncio.run(process.get_session_command_logs_async("one", begun.cmd_id, out.append, err.append))
    assert ("".join(out), "".join(err)) == ("got this\n", "last\n")
    assert process.get_session_command("one", begun.cmd_id).exit_code == 0
    logs = process.get_session_command_logs("one", begun.cmd_id)
    assert (logs.stdout, logs.stderr) == ("got this\n", "last\n")
    with pytest.raises(DaytonaError, match="ended"):
        process.send_session_command_input("one", begun.cmd_id, "too late")

    assert process.get_session("one").commands[0].command == "cd /tmp && export KEPT=5"
    assert [session.session_id for session in process.list_sessions()] == ["one"]
    assert say("exit 7").exit_code == 7
    with pytest.raises(DaytonaSessionEndedError):
        say("true")
    process.delete_session("one")
    for gone in (process.get_session, process.delete_session):
        with pytest.raises(DaytonaNotFoundError):
            gone("one")
    process.create_session("one")
    assert process.get_session("one").commands == []
    process.delete_session("one")
    assert not process.list_sessions()


def terminal(box: Sandbox, name: str, **named: Any) -> PtyHandle:
    """The SDK gives a terminal a tenth of a second for its first word, and a busy machine may need longer."""
    for _ in range(100):
        try:
            return box.process.create_pty_session(name, **named)
        except DaytonaError as error:
            if not isinstance(error.__cause__, queue.Empty):
                raise
            box.process.kill_pty_session(name)
    raise AssertionError("the SDK never heard of its terminal")


def connected(box: Sandbox, name: str) -> PtyHandle:
    for _ in range(100):
        try:
            return box.process.connect_pty_session(name)
        except DaytonaError as error:
            if not isinstance(error.__cause__, queue.Empty):
                raise
    raise AssertionError("the SDK never heard of its terminal")


def test_terminals_are_terminals(box: Sandbox) -> None:
    process = box.process
    pty = terminal(box, "t", cwd="/tmp", envs={"FOO": "bar"}, pty_size=PtySize(cols=100, rows=30))
    assert pty.is_connected()
    with pytest.raises(DaytonaConflictError):
        process.create_pty_session("t")
    assert (process.get_pty_session_info("t").cols, len(process.list_pty_sessions())) == (100, 1)
    pty.resize(PtySize(cols=90, rows=20))
    process.resize_pty_session("t", PtySize(cols=91, rows=21))
    pty.send_input("echo $FOO-$(pwd); stty size; exit 7\n")
    seen: list[bytes] = []
    assert pty.wait(seen.append).exit_code == 7
    said = b"".join(seen)
    assert b"bar-/tmp\r\n" in said and b"21 91\r\n" in said

    first = terminal(box, "u")
    again = connected(box, "u")
    again.wait_for_connection()
    first.disconnect()
    process.kill_pty_session("u")
    assert again.wait().exit_code == 137
    with pytest.raises(DaytonaNotFoundError):
        process.get_pty_session_info("u")
    third = terminal(box, "v")
    third.kill()
    third.wait()


def test_a_lazy_terminal_begins_with_its_first_client(box: Sandbox) -> None:
    key, base = os.environ["DAYTONA_API_KEY"], f"/toolbox/{box.id}/process/pty"
    # What bash does before its first prompt.
    envs = {"PROMPT_COMMAND": "touch /tmp/began"}
    status, told = ask(key, "POST", base, {"id": "later", "lazyStart": True, "envs": envs})
    assert (status, told) == (201, {"sessionId": "later"})
    (info,) = box.process.list_pty_sessions()
    assert info.lazy_start and info.active
    assert box.process.exec("test -e /tmp/began").exit_code == 1, "no shell runs before there is a client"
    pty = connected(box, "later")
    pty.send_input("echo here-$((6 * 7)); exit 3\n")
    seen: list[bytes] = []
    assert pty.wait(seen.append).exit_code == 3
    assert b"here-42\r\n" in b"".join(seen), seen
    assert box.process.exec("test -e /tmp/began").exit_code == 0


def test_no_output_is_cut_silently(box: Sandbox) -> None:
    mib = 1024 * 1024
    said = box.process.exec(f"head -c {16 * mib + 1000} /dev/zero | tr '\\0' x").result
    assert said.startswith("x" * 16 * mib) and f"cut here, after {16 * mib} bytes" in said[16 * mib:]
    process = box.process
    process.create_session("long")
    request = SessionExecuteRequest(command=f"head -c {3 * mib} /dev/zero | tr '\\0' y", run_async=True)
    command = process.execute_session_command("long", request).cmd_id
    ended = lambda: process.get_session_command("long", command).exit_code is not None
    deadline = time.monotonic() + 300
    while not ended():
        assert time.monotonic() < deadline, "the command never ended"
        time.sleep(0.05)
    logs = process.get_session_command_logs("long", command)
    assert logs.stdout.startswith(f"[{2 * mib} bytes of output are missing here"), logs.stdout[:200]
    assert logs.stdout.endswith("y" * mib)
    followed: list[str] = []
    asyncio.run(process.get_session_command_logs_async("long", command, followed.append, followed.append))
    assert "".join(followed) == logs.stdout
    process.delete_session("long")


def test_an_abandoned_run_leaves_its_context_free(box: Sandbox) -> None:
    address = os.environ["DAYTONA_API_URL"].replace("http", "ws", 1)
    key = {"Authorization": "Bearer " + os.environ["DAYTONA_API_KEY"]}
    path = f"{address}/toolbox/{box.id}/process/interpreter/execute"
    socket = websocket.create_connection(path, header=key, timeout=300)
    try:
        socket.send(json.dumps({"code": "print('begun', flush=True)\nimport time\nwhile True: time.sleep(0.1)"}))
        assert json.loads(socket.recv())["text"] == "begun\n"
    finally:
        socket.close()
    assert box.code_interpreter.run_code("print('free')", timeout=300).stdout == "free\n"


def test_the_interpreter_keeps_what_code_defined(box: Sandbox) -> None:
    interpreter = box.code_interpreter
    said: list[str] = []
    assert interpreter.run_code("x = 41\nprint('set')", on_stdout=lambda m: said.append(m.output)).stdout == "set\n"
    assert said == ["set\n"]
    failed = interpreter.run_code("import sys; print(x + 1); print('bad', file=sys.stderr); 1 / 0")
    assert (failed.stdout, failed.stderr) == ("42\n", "bad\n")
    assert failed.error and failed.error.name == "ZeroDivisionError"
    with pytest.raises(DaytonaTimeoutError):
        interpreter.run_code("import time; time.sleep(1000)", timeout=1)
    assert interpreter.run_code("print(x)", timeout=300).stdout == "41\n", "the context is free, and as it was"
    context = interpreter.create_context(cwd="/tmp")
    assert interpreter.run_code("import os; print(os.getcwd(), 'x' in globals())", context=context).stdout == "/tmp False\n"
    assert [found.id for found in interpreter.list_contexts()] == [context.id]
    interpreter.delete_context(context)
    with pytest.raises(DaytonaError):
        interpreter.run_code("1", context=context)


def test_files_go_in_and_come_out(box: Sandbox, tmp_path: pathlib.Path) -> None:
    fs = box.fs
    fs.create_folder("/home/daytona/f/deep", "750")
    assert fs.get_file_info("/home/daytona/f/deep").permissions == "0750"
    odd = 'an odd "name" ü'
    fs.upload_file(b"one\ntwo\n", "f/one.txt")
    fs.upload_files([FileUpload(b"", "/home/daytona/f/empty"), FileUpload(b"\x00\xff" * 1000, f"/home/daytona/f/{odd}")])
    big = bytes(range(256)) * 20_000
    sent: list[int] = []
    fs.upload_file_stream(big, "/home/daytona/f/big", on_progress=lambda p: sent.append(p.bytes_sent))
    assert sent[-1] == len(big)
    assert fs.download_file("f/one.txt") == b"one\ntwo\n"
    assert b"".join(fs.download_file_stream("/home/daytona/f/big")) == big
    fs.download_file("/home/daytona/f/big", str(tmp_path / "big"))
    assert (tmp_path / "big").read_bytes() == big
    several = fs.download_files([FileDownloadRequest(source=f"/home/daytona/f/{odd}"), FileDownloadRequest(source="/home/daytona/none")])
    assert several[0].result == b"\x00\xff" * 1000 and several[1].error
    with pytest.raises(DaytonaFileNotFoundError):
        fs.download_file("/home/daytona/none")
    assert sorted(file.name for file in fs.list_files("f")) == sorted(["deep", "one.txt", "empty", odd, "big"])
    assert fs.get_file_info("f/big").size == len(big)


def test_files_are_searched_changed_moved_and_removed(box: Sandbox) -> None:
    fs = box.fs
    fs.upload_file(b"first\nneedle: here\n", "/home/daytona/g/a:b.txt")
    fs.upload_file(b"\x00needle", "/home/daytona/g/binary")
    [found] = fs.find_files("/home/daytona/g", "needle:")
    assert (found.file, found.line, found.content) == ("/home/daytona/g/a:b.txt", 2, "needle: here")
    assert fs.search_files("/home/daytona/g", "*.txt").files == ["/home/daytona/g/a:b.txt"]
    good, bad = fs.replace_in_files(["/home/daytona/g/a:b.txt", "/home/daytona/g/none"], "needle", "thread")
    assert good.success and not bad.success and bad.error
    assert fs.download_file("/home/daytona/g/a:b.txt") == b"first\nthread: here\n"
    fs.set_file_permissions("/home/daytona/g/a:b.txt", mode="600", owner="daytona", group="daytona")
    info = fs.get_file_info("/home/daytona/g/a:b.txt")
    assert (info.permissions, info.owner, info.group) == ("0600", "daytona", "daytona")
    fs.move_files("/home/daytona/g/a:b.txt", "/home/daytona/g/moved")
    with pytest.raises(DaytonaInvalidFilePathError):
        fs.delete_file("/home/daytona/g")
    fs.delete_file("/home/daytona/g/moved")
    fs.delete_file("/home/daytona/g", recursive=True)
    with pytest.raises(DaytonaFileNotFoundError):
        fs.list_files("/home/daytona/g")


def test_git_in_full_against_its_own_http_server(box: Sandbox) -> None:
    git = box.git
    server = pathlib.Path(__file__).with_name("git_server.py")
    box.fs.upload_file(server.read_bytes(), "/tmp/srv/git_server.py")
    git.init("/tmp/srv/git/repo.git", bare=True, initial_branch="main")
    box.process.exec("git -C /tmp/srv/git/repo.git config http.receivepack true; (python3 /tmp/srv/git_server.py 8418 /tmp/srv/git >/tmp/srv/log 2>&1 &)")
    box.process.exec("for i in $(seq 600); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8418))' 2>/dev/null && break; sleep 0.1; done")
    url = "http://127.0.0.1:8418/repo.git"
    login = {"username": "alice", "password": "wonderland"}

    git.configure_user("Alice", "alice@example.com")
    assert git.get_config("user.name") == "Alice" and git.get_config("user.nothing") is None
    git.init("/home/daytona/ours", initial_branch="main")
    git.set_config("core.autocrlf", "false", scope="local", path="/home/daytona/ours")
    git.remote_add("/home/daytona/ours", "origin", "http://wrong")
    git.remote_add("/home/daytona/ours", "origin", url, overwrite=True)
    assert git.remote_get("/home/daytona/ours", "origin") == url
    assert [remote.name for remote in git.remotes("/home/daytona/ours").remotes] == ["origin"]
    box.fs.upload_file(b"one\n", "/home/daytona/ours/file")
    assert git.status("/home/daytona/ours").file_status[0].worktree == "Untracked"
    git.add("/home/daytona/ours", ["file"])
    first = git.commit("/home/daytona/ours", "First\n\nwith a body", "Bob", "bob@example.com").sha
    assert len(first) == 40
    with pytest.raises(DaytonaGitAuthFailedError):
        git.push("/home/daytona/ours", username="alice", password="wrong", set_upstream=True)
    git.push("/home/daytona/ours", **login, set_upstream=True)
    assert git.status("/home/daytona/ours").branch_published

    with pytest.raises(DaytonaGitAuthFailedError):
        git.clone(url, "/home/daytona/other")
    git.clone(url, "/home/daytona/other", **login)
    git.clone(url, "/home/daytona/shallow", branch="main", depth=1, commit_id=first, **login)
    assert git.status("/home/daytona/shallow").detached
    with pytest.raises(DaytonaGitBranchNotFoundError):
        git.clone(url, "/home/daytona/none", branch="none", **login)
    git.create_branch("/home/daytona/other", "topic")
    with pytest.raises(DaytonaGitBranchExistsError):
        git.create_branch("/home/daytona/other", "topic")
    git.checkout_branch("/home/daytona/other", "topic")
    assert (git.branches("/home/daytona/other").branches, git.branches("/home/daytona/other").current) == (["main", "topic"], "topic")
    git.checkout_branch("/home/daytona/other", "main")
    git.delete_branch("/home/daytona/other", "topic")
    with pytest.raises(DaytonaGitBranchNotFoundError):
        git.checkout_branch("/home/daytona/other", "topic")
    box.fs.upload_file(b"two\n", "/home/daytona/other/file")
    git.add("/home/daytona/other", ["."])
    git.commit("/home/daytona/other", "Second", "Bob", "bob@example.com")
    git.push("/home/daytona/other", **login, branch="main")

    git.commit("/home/daytona/ours", "Elsewhere", "Bob", "bob@example.com", allow_empty=True)
    with pytest.raises(DaytonaGitPushRejectedError):
        git.push("/home/daytona/ours", **login)
    git.pull("/home/daytona/ours", **login)
    assert box.fs.download_file("/home/daytona/ours/file") == b"two\n"
    git.push("/home/daytona/ours", **login)

    box.fs.upload_file(b"changed\n", "/home/daytona/ours/file")
    git.restore("/home/daytona/ours", ["file"])
    assert not git.status("/home/daytona/ours").file_status
    git.create_branch("/home/daytona/ours", "old")
    git.reset("/home/daytona/ours", mode="hard", target="HEAD~1")
    box.fs.upload_file(b"dirty\n", "/home/daytona/ours/file")
    with pytest.raises(DaytonaGitDirtyWorktreeError):
        git.checkout_branch("/home/daytona/ours", "old")
    git.add("/home/daytona/ours", ["file"])
    assert git.status("/home/daytona/ours").file_status[0].staging == "Modified"
    git.reset("/home/daytona/ours", files=["file"])
    assert git.status("/home/daytona/ours").file_status[0].staging == "Unmodified"
    with pytest.raises(DaytonaGitRepoNotFoundError):
        git.status("/tmp")
    with pytest.raises(DaytonaError):
        git.checkout_branch("/home/daytona/ours", "--orphan=x")
    git.dangerously_authenticate("alice", "wonderland", host="127.0.0.1:8418", protocol="http")
    git.clone(url, "/home/daytona/third")


def test_figures_are_the_sandbox_s_own(box: Sandbox) -> None:
    now = box.get_metrics_latest()
    assert now.cpu_count == 1 and now.mem_total == 1024**3 and 0 < now.mem_used < now.mem_total
