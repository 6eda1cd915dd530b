"""What the official E2B SDK for Python does against a Cove server, method by method.

Each check takes `sdk`, which has the SDK's classes, the asynchronous ones behind the synchronous face.
"""

import base64
import io
import os
import tempfile
import threading
import urllib.error
import urllib.request
import uuid
from datetime import datetime, timedelta, timezone

import e2b
from e2b import (
    ALL_TRAFFIC,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType

from registry import Registry, raises, wait_for

ALL = Registry()
covers, refused = ALL.covers, ALL.refused

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@covers(
    "Sandbox.create",
    "Sandbox.kill",
    "Sandbox.get_info",
    "Sandbox.is_running",
    "Sandbox.sandbox_id",
    "Sandbox.sandbox_domain",
    "Sandbox.connection_config",
    "Sandbox.envd_api_url",
    "Sandbox.envd_direct_url",
    "Sandbox.traffic_access_token",
    "Sandbox.commands",
    "Commands.run",
)
def a_sandbox_is_made_used_and_killed(sdk):
    box = sdk.Sandbox.create(timeout=1200, metadata={"who": "a b&c=d"}, envs={"GREETING": "hello"})
    try:
        assert box.is_running() is True
        done = box.commands.run("echo $GREETING; echo aside >&2; echo $EXTRA", envs={"EXTRA": "more"})
        assert (done.stdout, done.stderr, done.exit_code) == ("hello\nmore\n", "aside\n", 0), done
        info = box.get_info()
        assert info.sandbox_id == box.sandbox_id
        assert info.metadata == {"who": "a b&c=d"}
        assert info.template_id == "base" and info.state == SandboxState.RUNNING
        left = info.end_at - datetime.now(timezone.utc)
        assert timedelta(seconds=600) < left <= timedelta(seconds=1201), left
        assert sdk.Sandbox.get_info(box.sandbox_id).sandbox_id == box.sandbox_id
        assert box.traffic_access_token and box.sandbox_domain
        assert box.envd_api_url == box.envd_direct_url == box.connection_config._sandbox_url
    finally:
        assert box.kill() is True
    assert box.is_running() is False
    assert box.kill() is False
    assert sdk.Sandbox.kill(box.sandbox_id) is False
    raises(SandboxNotFoundException, lambda: sdk.Sandbox.get_info(box.sandbox_id))
    raises(SandboxNotRunningException, lambda: box.commands.run("true"))
    raises(SandboxNotRunningException, lambda: box.files.read("/etc/hostname"))


@covers("Sandbox.create")
def bad_requests_are_refused_with_the_right_class(sdk):
    raises(SandboxException, lambda: sdk.Sandbox.create("no-such-template"), "404")
    raises(AuthenticationException, lambda: sdk.Sandbox.create(api_key="cove_" + "0" * 64))
    raises(AuthenticationException, lambda: sdk.Sandbox.create(api_key="nonsense"))
    raises(SandboxException, lambda: sdk.Sandbox.create(timeout=-1), "timeout")
    raises(SandboxException, lambda: sdk.Sandbox.create(envs={"A=B": "c"}), "env")


@refused("iam and public traffic are refused", "Sandbox.create")
def what_create_cannot_give_is_refused(sdk):
    iam = {"tokens": {"t": {"audience": "a", "token_type": "JWT-SVID"}}}
    raises(SandboxException, lambda: sdk.Sandbox.create(iam=iam), "iam")
    public = {"allow_public_traffic": True}
    raises(SandboxException, lambda: sdk.Sandbox.create(network=public), "allowPublicTraffic")
    raises(SandboxException, lambda: sdk.Sandbox.create(network={"dns_servers": ["1.1.1.1"]}), "dnsServers")
    raises(SandboxException, lambda: sdk.Sandbox.create(network={"deny_out": ["10.0.0.0/8"]}), "denyOut")


@covers("Sandbox.connect", "Sandbox.set_timeout")
def connecting_prolongs_and_never_shortens(sdk):
    # Far apart from each other, so that nothing of it depends on how quick the machine is.
    with sdk.Sandbox.create(timeout=1500) as box:
        again = sdk.Sandbox.connect(box.sandbox_id, timeout=30)
        assert again.commands.run("echo same").stdout == "same\n"
        assert box.get_info().end_at - datetime.now(timezone.utc) > timedelta(seconds=1000)
        sdk.Sandbox.connect(box.sandbox_id, timeout=3000)
        assert box.get_info().end_at - datetime.now(timezone.utc) > timedelta(seconds=2400)
        assert box.connect(timeout=3001).sandbox_id == box.sandbox_id
        box.set_timeout(600)
        assert box.get_info().end_at - datetime.now(timezone.utc) <= timedelta(seconds=601)
        sdk.Sandbox.set_timeout(box.sandbox_id, 1800)
        assert box.get_info().end_at - datetime.now(timezone.utc) > timedelta(seconds=1300)
        raises(SandboxException, lambda: box.set_timeout(-5))
    raises(SandboxNotFoundException, lambda: sdk.Sandbox.connect("sbx-aaaaaaaaaaaaaaaaaaaa"))
    raises(SandboxNotFoundException, lambda: sdk.Sandbox.set_timeout("%2e%2e%2fsandboxes", 5))


@covers("Sandbox.set_timeout")
def a_sandbox_ends_when_its_time_is_over(sdk):
    # Both ends are nearer than the next round of lifecycle checks may be.
    box = sdk.Sandbox.create(timeout=600)
    box.set_timeout(2)
    wait_for("the sandbox is gone", lambda: not box.is_running())
    box = sdk.Sandbox.create(timeout=3)
    wait_for("the sandbox is gone", lambda: not box.is_running())
    raises(SandboxNotRunningException, lambda: box.commands.run("true"), "timeout")


@covers("Sandbox.list")
def sandboxes_are_listed_by_metadata_and_state(sdk):
    mark = uuid.uuid4().hex
    boxes = [sdk.Sandbox.create(metadata={"mark": mark, "odd": "ü =&%"}) for _ in range(3)]
    try:
        pages = sdk.Sandbox.list(SandboxQuery(metadata={"mark": mark, "odd": "ü =&%"}), limit=2)
        first = pages.next_items()
        assert len(first) == 2 and pages.has_next
        found = {one.sandbox_id for one in first + pages.next_items()}
        assert found == {box.sandbox_id for box in boxes}
        query = SandboxQuery(metadata={"mark": mark}, state=[SandboxState.PAUSED])
        assert sdk.Sandbox.list(query).next_items() == []
        query = SandboxQuery(metadata={"mark": mark}, template="other")
        assert sdk.Sandbox.list(query).next_items() == []
        query = SandboxQuery(metadata={"mark": mark})
        ids = [box.sandbox_id for box in boxes]
        every = lambda order: [one.sandbox_id for one in sdk.Sandbox.list(query, order=order).next_items()]
        assert (every("asc"), every("desc")) == (ids, ids[::-1])
        pages = sdk.Sandbox.list(query, order="asc", limit=2)
        assert [one.sandbox_id for one in pages.next_items() + pages.next_items()] == ids and not pages.has_next
        # What a list is narrowed by is looked at before it is cut into pages.
        second = sdk.Sandbox.get_info(ids[1]).started_at
        query = SandboxQuery(metadata={"mark": mark}, started_after=second)
        pages = sdk.Sandbox.list(query, order="asc", limit=1)
        assert [one.sandbox_id for one in pages.next_items()] == [ids[1]] and pages.has_next
        assert [one.sandbox_id for one in pages.next_items()] == [ids[2]] and not pages.has_next
        boxes.pop().kill()
        pages = sdk.Sandbox.list(SandboxQuery(metadata={"mark": mark}, template="base"), limit=2)
        assert len(pages.next_items()) == 2 and not pages.has_next, "nothing follows a full page"
    finally:
        for box in boxes:
            box.kill()


@covers("Sandbox.pause", "Sandbox.beta_pause", "Sandbox.connect")
def a_paused_sandbox_goes_on_where_it_was(sdk):
    with sdk.Sandbox.create(timeout=300) as box:
        box.files.write("/tmp/note", "kept")
        counting = box.commands.run("i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.05; done", background=True)
        wait_for("it counts", lambda: box.files.exists("/tmp/count"))
        assert box.pause() is True
        assert box.is_running() is False
        assert box.pause() is False
        assert box.get_info().state == SandboxState.PAUSED
        again = sdk.Sandbox.connect(box.sandbox_id)
        assert again.is_running() is True
        assert again.files.read("/tmp/note") == "kept"
        before = int(again.files.read("/tmp/count") or 0)
        wait_for("it goes on counting", lambda: int(again.files.read("/tmp/count") or 0) > before)
        assert counting.pid in [process.pid for process in again.commands.list()]
        assert box.beta_pause() is True
        assert sdk.Sandbox.connect(box.sandbox_id).commands.run("cat /tmp/note").stdout == "kept"
        # Without memory it boots afresh, and the disk is the same.
        boot_of = lambda one: one.files.read("/proc/sys/kernel/random/boot_id")
        boot = boot_of(box)
        assert box.pause(mode="filesystem") is True
        again = sdk.Sandbox.connect(box.sandbox_id, timeout=300)
        assert again.commands.run("cat /tmp/note; pgrep -f 'tmp/count' | wc -l").stdout.startswith("kept")
        assert boot_of(again) != boot, "it is another boot"
        raises(SandboxNotFoundException, lambda: sdk.Sandbox.pause("sbx-aaaaaaaaaaaaaaaaaaaa"))


@covers("Sandbox.create_snapshot", "Sandbox.list_snapshots", "Sandbox.delete_snapshot")
def snapshots_are_begun_from(sdk):
    name = f"e2b-{uuid.uuid4().hex[:12]}"
    with sdk.Sandbox.create() as box:
        box.files.write("/tmp/state", "one")
        taken = box.create_snapshot(name=name)
        box.files.write("/tmp/state", "two")
        try:
            assert taken.names == [name]
            listed = sdk.Sandbox.list_snapshots(box.sandbox_id).next_items()
            assert taken.snapshot_id in [one.snapshot_id for one in listed]
            assert [one.snapshot_id for one in box.list_snapshots(name=name).next_items()] == [taken.snapshot_id]
            for template in (taken.snapshot_id, name):
                with sdk.Sandbox.create(template) as child:
                    assert child.files.read("/tmp/state") == "one"
                    assert child.get_info().template_id == taken.snapshot_id
            assert box.files.read("/tmp/state") == "two"
        finally:
            assert sdk.Sandbox.delete_snapshot(taken.snapshot_id) is True
        assert sdk.Sandbox.delete_snapshot(taken.snapshot_id) is False
        # Names that Cove itself does not allow.
        odd = f"Team_{uuid.uuid4().hex[:8]}"
        taken = box.create_snapshot(name=odd)
        try:
            assert taken.names == [odd.lower()], taken
            assert [one.snapshot_id for one in box.list_snapshots(name=odd).next_items()] == [taken.snapshot_id]
            for template in (odd, f"{odd.lower()}:default"):
                with sdk.Sandbox.create(template) as child:
                    assert child.files.read("/tmp/state") == "two"
        finally:
            assert sdk.Sandbox.delete_snapshot(taken.snapshot_id) is True
        raises(SandboxException, lambda: box.create_snapshot(name="no spaces"), "name")
        disk = box.create_snapshot(mode="filesystem")
        assert sdk.Sandbox.delete_snapshot(disk.snapshot_id) is True


@covers("Sandbox.fork")
def forks_share_a_past_and_nothing_else(sdk):
    with sdk.Sandbox.create() as box:
        box.files.write("/tmp/state", "before")
        children = box.fork(count=2, timeout=120)
        try:
            assert len({child.sandbox_id for child in children} | {box.sandbox_id}) == 3
            children[0].files.write("/tmp/state", "changed")
            assert children[1].files.read("/tmp/state") == "before"
            assert box.files.read("/tmp/state") == "before"
            end = children[0].get_info().end_at - datetime.now(timezone.utc)
            assert end <= timedelta(seconds=121), end
        finally:
            for child in children:
                child.kill()
    raises(SandboxNotFoundException, lambda: sdk.Sandbox.fork("sbx-aaaaaaaaaaaaaaaaaaaa"))


@covers("Sandbox.get_metrics")
def metrics_tell_how_it_is_now(sdk):
    with sdk.Sandbox.create() as box:
        (now,) = box.get_metrics()
        assert now.cpu_count >= 1 and 0 <= now.cpu_used_pct <= 100
        assert 0 < now.mem_used <= now.mem_total and 0 <= now.disk_used < now.disk_total
        past = datetime.now(timezone.utc) - timedelta(days=1)
        assert box.get_metrics(end=past) == []


@covers("Sandbox.update_network")
def the_network_changes_while_it_runs(sdk):
    with sdk.Sandbox.create(allow_internet_access=False) as box:
        assert box.get_info().allow_internet_access is False
        interfaces = "ls /sys/class/net 2>/dev/null || cat /proc/net/dev"
        assert "lo" in box.commands.run(interfaces).stdout
        box.update_network({"allow_out": ["example.com"], "deny_out": [ALL_TRAFFIC]})
        network = box.get_info().network
        assert network["allow_out"] == ["example.com"] and network["deny_out"] == [ALL_TRAFFIC], network
        raises(SandboxException, lambda: box.update_network({"allow_out": ["example.com"]}), "allowOut")
        box.update_network({"allow_out": ["203.0.113.9/24", "example.com"], "deny_out": [ALL_TRAFFIC]})
        network = box.get_info().network
        assert network["allow_out"] == ["203.0.113.0/24", "example.com"], network
        raises(SandboxException, lambda: box.update_network({"allow_out": ["bad entry!"], "deny_out": [ALL_TRAFFIC]}))
        assert box.get_info().network == network
        box.update_network({})
        assert box.get_info().allow_internet_access is True


@covers("Sandbox.get_host")
def a_server_inside_is_reached_by_its_host(sdk):
    with sdk.Sandbox.create() as box:
        server = "python3 -m http.server 8123 --directory /tmp/site"
        box.files.write("/tmp/site/index.html", "from inside")
        box.commands.run(server, background=True)
        host = box.get_host(8123)
        # Names below localhost are this machine, whatever its resolver thinks.
        port = host.rsplit(":", 1)[1]

        def visit(headers):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": host, **headers})
            try:
                return urllib.request.urlopen(request, timeout=300).read().decode()
            except urllib.error.HTTPError as error:
                return error.code
            except OSError:
                return None

        token = {"e2b-traffic-access-token": box.traffic_access_token}
        wait_for("the server answers", lambda: visit(token) == "from inside")
        assert visit({}) == 401
        key, tag = box.traffic_access_token.split(".")
        forged = {"e2b-traffic-access-token": f"{key}.{'B' if tag[0] == 'A' else 'A'}{tag[1:]}"}
        assert visit(forged) == 403
        box.commands.run("pkill -f http.server")
        wait_for("nothing listens", lambda: visit(token) == 502)
        box.kill()
        assert visit(token) == 502


@covers("Commands.run", "CommandHandle.wait", "CommandHandle.pid")
def commands_tell_how_they_end(sdk):
    with sdk.Sandbox.create() as box:
        error = raises(CommandExitException, lambda: box.commands.run("echo out; echo err >&2; exit 7"))
        assert (error.exit_code, error.stdout, error.stderr) == (7, "out\n", "err\n")
        raises(TimeoutException, lambda: box.commands.run("sleep 600", timeout=1), "timeout")
        wait_for("the late one is gone", lambda: box.commands.list() == [])
        raises(InvalidArgumentException, lambda: box.commands.run("true", cwd="/no/such/place"))
        raises(AuthenticationException, lambda: box.commands.run("true", user="nobody-of-that-name"))
        assert box.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
        assert box.commands.run("whoami", user="root").stdout == "root\n"
        assert box.commands.run("id -u", user="nobody", cwd="/").stdout == "65534\n"
        handle = box.commands.run("echo later", background=True)
        assert handle.pid > 1 and handle.wait().stdout == "later\n"
        big = box.commands.run("head -c 3000000 /dev/zero | tr '\\0' x", timeout=120)
        assert len(big.stdout) == 3000000


@covers("Commands.run")
def output_is_told_while_the_command_runs(sdk):
    with sdk.Sandbox.create() as box:
        seen = []
        box.commands.run(
            "echo one; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo two >&2",
            background=False,
            on_stdout=lambda text: (seen.append(("out", text)), go_on(box)),
            on_stderr=lambda text: seen.append(("err", text)),
        )
        assert seen == [("out", "one\n"), ("err", "two\n")], seen


def go_on(box):
    """Lets the command go on; written by another client, because this one is busy listening."""

    def write():
        e2b.Sandbox.connect(box.sandbox_id).files.write("/tmp/go", "")

    threading.Thread(target=write).start()


@covers(
    "Commands.list",
    "Commands.kill",
    "Commands.connect",
    "CommandHandle.kill",
    "CommandHandle.disconnect",
)
def background_commands_are_found_again(sdk):
    with sdk.Sandbox.create() as box:
        handle = box.commands.run("echo begun; while [ ! -e /tmp/end ]; do sleep 0.02; done; echo ended", background=True)
        handle.disconnect()
        (listed,) = box.commands.list()
        assert listed.pid == handle.pid and listed.cmd == "/bin/bash", listed
        again = box.commands.connect(handle.pid)
        box.files.write("/tmp/end", "")
        # What was said before is told again: nothing is lost between two connections.
        assert again.wait().stdout == "begun\nended\n"
        assert box.commands.connect(handle.pid).wait().stdout == "begun\nended\n"
        other = box.commands.run("sleep 600", background=True)
        assert box.commands.kill(other.pid) is True
        error = raises(CommandExitException, other.wait)
        assert error.exit_code == 137 and "9" in error.error, error.error
        wait_for("the command is gone", lambda: box.commands.kill(other.pid) is False)
        assert box.commands.kill(999999) is False
        last = box.commands.run("sleep 600", background=True)
        assert last.kill() is True
        raises(NotFoundException, lambda: box.commands.connect(999999))


@covers(
    "Commands.send_stdin",
    "Commands.close_stdin",
    "Commands.stream_input",
    "CommandHandle.send_stdin",
    "CommandHandle.close_stdin",
)
def commands_are_fed(sdk):
    with sdk.Sandbox.create() as box:
        handle = box.commands.run("cat", background=True, stdin=True)
        box.commands.send_stdin(handle.pid, "one ")
        handle.send_stdin(b"two ")
        if sdk.is_async:
            stream = box.commands.stream_input(handle.pid)
            stream.send("three ")
            stream.send(b"four")
            stream.close()
        else:
            box.commands.stream_input(handle.pid, iter(["three ", b"four"]))
        box.commands.close_stdin(handle.pid)
        assert handle.wait().stdout == "one two three four"
        other = box.commands.run("wc -c", background=True, stdin=True)
        other.send_stdin("x" * 100000)
        other.close_stdin()
        assert other.wait().stdout == "100000\n"
        raises(NotFoundException, lambda: box.commands.send_stdin(999999, "x"))
        deaf = box.commands.run("sleep 600", background=True)
        raises(SandboxException, lambda: box.commands.send_stdin(deaf.pid, "x"))
        deaf.kill()


@covers("Sandbox.pty", "Pty.create", "Pty.send_stdin", "Pty.resize", "Pty.kill", "Pty.connect", "Pty.stream_input")
def terminals_behave_like_terminals(sdk):
    with sdk.Sandbox.create() as box:
        seen = bytearray()
        size = PtySize(rows=24, cols=80)
        if sdk.is_async:
            terminal = box.pty.create(size, on_data=seen.extend, cwd="/tmp", envs={"MARK": "here"})
        else:
            terminal = box.pty.create(size, cwd="/tmp", envs={"MARK": "here"})
        box.pty.resize(terminal.pid, PtySize(rows=33, cols=111))
        box.pty.send_stdin(terminal.pid, b"stty size; tty; echo $MARK-$PWD; exit 4\n")
        wait = terminal.wait if sdk.is_async else lambda: terminal.wait(on_pty=seen.extend)
        error = raises(CommandExitException, wait)
        assert error.exit_code == 4
        text = seen.decode()
        assert "33 111" in text and "/dev/pts/" in text and "here-/tmp" in text, text
        other = box.pty.create(size, **({"on_data": lambda _: None} if sdk.is_async else {}))
        if sdk.is_async:
            again = box.pty.connect(other.pid, on_data=lambda _: None)
            stream = box.pty.stream_input(other.pid)
            stream.send(b"exit\n")
            stream.close()
        else:
            again = box.pty.connect(other.pid)
            box.pty.stream_input(other.pid, iter([b"exit\n"]))
        assert again.wait().exit_code == 0
        last = box.pty.create(size, **({"on_data": lambda _: None} if sdk.is_async else {}))
        assert box.pty.kill(last.pid) is True
        wait_for("the terminal is gone", lambda: box.pty.kill(last.pid) is False)


@covers(
    "Sandbox.files",
    "Filesystem.write",
    "Filesystem.read",
    "Filesystem.write_files",
    "Filesystem.exists",
    "Filesystem.get_info",
)
def files_are_written_and_read(sdk):
    with sdk.Sandbox.create() as box:
        odd = "/tmp/a dir/ü \"quoted\" %22 file.txt"
        written = box.files.write(odd, "text ü")
        assert written.path == odd and written.name == odd.rsplit("/", 1)[1], written
        assert box.files.read(odd) == "text ü"
        blob = bytes(range(256)) * 5000
        box.files.write("/tmp/blob", blob)
        assert bytes(box.files.read("/tmp/blob", format="bytes")) == blob
        box.files.write("/tmp/stream", io.BytesIO(blob))
        assert bytes(box.files.read("/tmp/stream", format="bytes")) == blob
        box.files.write("/tmp/packed", blob, gzip=True)
        assert bytes(box.files.read("/tmp/packed", format="bytes", gzip=True)) == blob
        if not sdk.is_async:
            assert b"".join(box.files.read("/tmp/blob", format="stream")) == blob
        many = [{"path": f"/tmp/many/{n}", "data": f"file {n}"} for n in range(20)]
        assert [one.path for one in box.files.write_files(many)] == [one["path"] for one in many]
        assert box.commands.run("cat /tmp/many/* | wc -c").stdout == "130\n"
        box.files.write("relative/deep.txt", "below home")
        assert box.commands.run("cat ~/relative/deep.txt").stdout == "below home"
        box.files.write("/tmp/empty", "")
        assert box.files.read("/tmp/empty") == ""
        assert box.files.exists("/tmp/blob") is True and box.files.exists("/tmp/nothing") is False
        info = box.files.get_info("/tmp/blob")
        assert (info.size, info.type, info.owner, info.permissions) == (len(blob), FileType.FILE, "user", "-rw-r--r--"), info
        assert abs((info.modified_time - datetime.now(timezone.utc)).total_seconds()) < 600
        box.commands.run("ln -s /tmp/blob /tmp/link")
        link = box.files.get_info("/tmp/link")
        assert (link.type, link.symlink_target) == (FileType.SYMLINK, "/tmp/blob"), link
        # Targets are whole, and what leads nowhere is still a link.
        box.commands.run("mkdir /tmp/links && ln -s ../link /tmp/links/far && ln -s nowhere /tmp/links/broken")
        assert box.files.get_info("/tmp/links/far").symlink_target == "/tmp/blob"
        assert {one.name: one.symlink_target for one in box.files.list("/tmp/links")} == {"far": "/tmp/blob", "broken": "nowhere"}
        assert "0\n" in box.commands.run("cat /proc/uptime | wc -c; echo 0").stdout
        assert box.files.read("/proc/version").startswith("Linux")


@covers("Filesystem.read", "Filesystem.write")
def file_errors_have_their_classes(sdk):
    with sdk.Sandbox.create() as box:
        raises(FileNotFoundException, lambda: box.files.read("/nope"))
        raises(FileNotFoundException, lambda: box.files.list("/nope"))
        raises(FileNotFoundException, lambda: box.files.get_info("/nope"))
        raises(FileNotFoundException, lambda: box.files.rename("/nope", "/tmp/x"))
        raises(InvalidArgumentException, lambda: box.files.read("/tmp"))
        raises(InvalidArgumentException, lambda: box.files.write("/tmp", "x"))
        raises(InvalidArgumentException, lambda: box.files.list("/etc/hostname"))
        raises(InvalidArgumentException, lambda: box.files.write("/tmp/m", "x", metadata={"a": "b"}), "metadata")
        raises(InvalidArgumentException, lambda: box.files.read("/" + "x" * 5000))
        raises(SandboxException, lambda: box.files.write("/etc/not-mine", "x", user="nobody"))
        raises(AuthenticationException, lambda: box.files.read("/etc/hostname", user="no-such-user"))


@covers("Filesystem.list", "Filesystem.make_dir", "Filesystem.rename", "Filesystem.remove")
def trees_are_made_moved_and_removed(sdk):
    with sdk.Sandbox.create() as box:
        assert box.files.make_dir("/tmp/t/a/b") is True
        assert box.files.make_dir("/tmp/t/a/b") is False
        box.files.write("/tmp/t/f", "1")
        assert box.files.get_info("/tmp/t/a/b").size > 0, "an empty directory has a size elsewhere"
        names = {(one.name, one.type) for one in box.files.list("/tmp/t")}
        assert names == {("a", FileType.DIR), ("f", FileType.FILE)}, names
        deep = {one.path for one in box.files.list("/tmp/t", depth=3)}
        assert deep == {"/tmp/t/a", "/tmp/t/a/b", "/tmp/t/f"}, deep
        moved = box.files.rename("/tmp/t/f", "/tmp/elsewhere/g")
        assert moved.path == "/tmp/elsewhere/g" and box.files.read("/tmp/elsewhere/g") == "1"
        box.files.write("/tmp/t/h", "2")
        box.commands.run("mkdir -p /tmp/o/a/b && touch /tmp/o/a.txt /tmp/o/a/b/c")
        assert [one.path for one in box.files.list("/tmp/o", depth=3)] == ["/tmp/o/a", "/tmp/o/a/b", "/tmp/o/a/b/c", "/tmp/o/a.txt"]
        box.files.rename("/tmp/t/h", "/tmp/elsewhere/g")
        assert box.files.read("/tmp/elsewhere/g") == "2"
        box.files.remove("/tmp/t")
        assert box.files.exists("/tmp/t") is False
        box.files.remove("/tmp/t")


@covers("Filesystem.watch_dir", "WatchHandle.get_new_events", "WatchHandle.stop")
def changes_are_told(sdk):
    with sdk.Sandbox.create() as box:
        box.files.make_dir("/tmp/w/sub")
        events = []
        if sdk.is_async:
            watch = box.files.watch_dir("/tmp/w", on_event=events.append, recursive=True, include_entry=True, timeout=0)
            look = lambda: events
        else:
            watch = box.files.watch_dir("/tmp/w", recursive=True, include_entry=True)
            look = lambda: events.extend(watch.get_new_events()) or events
        box.files.write("/tmp/w/new", "x")
        if not sdk.is_async:
            assert "new" in [one.name for one in look()], "the write has answered, so the change is there"
        box.commands.run("echo more > /tmp/w/sub/inner; mv /tmp/w/new /tmp/w/newer; chmod 600 /tmp/w/newer; rm /tmp/w/sub/inner")
        wanted = {
            ("sub/inner", FilesystemEventType.CREATE),
            ("sub/inner", FilesystemEventType.WRITE),
            ("sub/inner", FilesystemEventType.REMOVE),
            ("new", FilesystemEventType.RENAME),
            ("newer", FilesystemEventType.CREATE),
            ("newer", FilesystemEventType.CHMOD),
        }
        wait_for("every change", lambda: wanted <= {(one.name, one.type) for one in look()})
        assert any(one.entry and one.entry.path == "/tmp/w/newer" for one in events)
        assert not [one.name for one in events if ".tmp" in one.name], events
        watch.stop()
        raises(FileNotFoundException, lambda: box.files.watch_dir("/tmp/nothing", **({"on_event": events.append} if sdk.is_async else {})))
        raises(InvalidArgumentException, lambda: box.files.watch_dir("/tmp/w/newer", **({"on_event": events.append} if sdk.is_async else {})))


@covers("Sandbox.download_url", "Sandbox.upload_url")
def links_to_files_are_good_for_what_they_were_signed_for(sdk):
    def get(url):
        try:
            return urllib.request.urlopen(url, timeout=300).read()
        except urllib.error.HTTPError as error:
            return error.code

    def post(url, name, data):
        body = (
            f'--line\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
            + data
            + b"\r\n--line--\r\n"
        )
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "multipart/form-data; boundary=line"})
        try:
            return urllib.request.urlopen(request, timeout=300).status
        except urllib.error.HTTPError as error:
            return error.code

    with sdk.Sandbox.create() as box, sdk.Sandbox.create() as other:
        box.files.write("/tmp/mine", "mine")
        other.files.write("/tmp/mine", "other")
        url = box.download_url("/tmp/mine")
        assert get(url) == b"mine"
        assert get(other.download_url("/tmp/mine")) == b"other"
        assert get(box.download_url("/tmp/mine", user="root", use_signature_expiration=600)) == b"mine"
        assert post(box.upload_url("/tmp/up", use_signature_expiration=600), "up", b"by link") == 200
        assert box.files.read("/tmp/up") == "by link"
        # Every part of what was signed counts.
        assert get(url.replace("mine", "up")) == 401
        assert get(url + "&username=root") == 401
        assert get(url.replace("signature=v1_", "signature=v1_A")) == 401
        assert get(url.split("&signature")[0]) == 401
        assert get(url + "&signature_expiration=99999999999") == 401
        assert post(url, "mine", b"changed") == 401
        late = box.download_url("/tmp/mine", use_signature_expiration=-5)
        assert get(late) == 401
        short = box.download_url("/tmp/mine", use_signature_expiration=600)
        assert get(short.replace("signature_expiration=", "signature_expiration=9")) == 401
    assert get(url) in (401, 502)


@covers(
    "Sandbox.git",
    "Git.init",
    "Git.configure_user",
    "Git.set_config",
    "Git.get_config",
    "Git.add",
    "Git.commit",
    "Git.status",
    "Git.branches",
    "Git.create_branch",
    "Git.checkout_branch",
    "Git.delete_branch",
    "Git.reset",
    "Git.restore",
    "Git.remote_add",
    "Git.remote_get",
    "Git.clone",
    "Git.push",
    "Git.pull",
    "Git.dangerously_authenticate",
)
def git_works_inside(sdk):
    with sdk.Sandbox.create() as box:
        git, repo = box.git, "/tmp/repo"
        box.commands.run("git init -q --bare /tmp/far.git && git -C /tmp/far.git symbolic-ref HEAD refs/heads/main")
        git.init(repo, initial_branch="main")
        git.configure_user("Ada", "ada@example.com", scope="global")
        git.set_config("core.pager", "cat", scope="local", path=repo)
        assert git.get_config("core.pager", scope="local", path=repo) == "cat"
        box.files.write(f"{repo}/a", "1")
        assert [one.name for one in git.status(repo).file_status] == ["a"]
        git.add(repo)
        git.commit(repo, "first")
        assert git.status(repo).file_status == []
        git.remote_add(repo, "origin", "/tmp/far.git")
        assert git.remote_get(repo, "origin") == "/tmp/far.git"
        git.push(repo, remote="origin", branch="main", set_upstream=True)
        git.clone("/tmp/far.git", "/tmp/copy")
        box.files.write("/tmp/copy/b", "2")
        git.add("/tmp/copy")
        git.commit("/tmp/copy", "second")
        git.push("/tmp/copy")
        git.pull(repo)
        assert box.files.read(f"{repo}/b") == "2"
        git.create_branch(repo, "side")
        git.checkout_branch(repo, "main")
        assert set(git.branches(repo).branches) == {"main", "side"}
        git.delete_branch(repo, "side")
        box.files.write(f"{repo}/a", "spoilt")
        git.restore(repo, paths=["a"])
        assert box.files.read(f"{repo}/a") == "1"
        box.files.write(f"{repo}/a", "spoilt")
        git.reset(repo, mode="hard", target="HEAD")
        assert box.files.read(f"{repo}/a") == "1"
        git.dangerously_authenticate("ada", "secret", host="git.example")


@covers(
    "CodeSandbox.run_code",
    "CodeSandbox.create_code_context",
    "CodeSandbox.list_code_contexts",
    "CodeSandbox.remove_code_context",
)
def code_runs_in_contexts(sdk):
    with sdk.CodeSandbox.create("base", timeout=300) as box:
        box.run_code("x = 20")
        done = box.run_code("x += 1; print('said'); x * 2")
        assert done.text == "42" and done.logs.stdout == ["said\n"] and done.error is None, done
        assert done.results[0].is_main_result
        rich = box.run_code(
            "class Rich:\n"
            "    def _repr_html_(self): return '<b>hi</b>'\n"
            f"    def _repr_png_(self): import base64; return base64.b64decode('{PNG}')\n"
            "    def _repr_json_(self): return {'a': [1, 2]}\n"
            "Rich()"
        )
        assert rich.results[0].html == "<b>hi</b>" and rich.results[0].json == {"a": [1, 2]}
        assert rich.results[0].png.strip() == PNG and "png" in rich.results[0].formats()
        broken = box.run_code("1 / 0")
        assert broken.error.name == "ZeroDivisionError" and "1 / 0" in broken.error.traceback
        seen = []
        box.run_code(
            "import sys, time\nprint('a', flush=True); print('b', file=sys.stderr, flush=True); 5",
            on_stdout=lambda message: seen.append(("out", message.line)),
            on_stderr=lambda message: seen.append(("err", message.line)),
            on_result=lambda result: seen.append(("result", result.text)),
        )
        assert set(seen) == {("out", "a\n"), ("err", "b\n"), ("result", "5")}, seen
        context = box.create_code_context(cwd="/tmp")
        assert context.language == "python" and context.cwd == "/tmp"
        apart = box.run_code("import os; 'x' in globals(), os.getcwd()", context=context)
        assert apart.text == "(False, '/tmp')", apart
        assert context.id in [one.id for one in box.list_code_contexts()]
        box.remove_code_context(context)
        assert context.id not in [one.id for one in box.list_code_contexts()]
        raises(NotFoundException, lambda: box.run_code("1", context=context))
        shell = box.run_code("echo from $0", language="bash")
        assert "from" in "".join(shell.logs.stdout)
        raises(SandboxException, lambda: box.run_code("1", language="cobol"), "cobol")
        # Whoever gives up on a cell leaves its context free.
        raises(TimeoutException, lambda: box.run_code("import time\nwhile True: time.sleep(0.1)", timeout=1))
        assert box.run_code("x", timeout=120).text == "21"


@covers("CodeSandbox.run_code")
def plots_and_tables_are_shown(sdk):
    with sdk.CodeSandbox.create(timeout=300) as box:
        assert box.get_info().template_id == "code-interpreter-v1"
        plot = box.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 4, 2])\nplt.show()")
        assert plot.error is None, plot.error
        pictures = [one.png for one in plot.results if one.png]
        assert base64.b64decode(pictures[0]).startswith(b"\x89PNG"), plot
        table = box.run_code("import pandas\npandas.DataFrame({'a': [1, 2]})")
        assert "<table" in table.results[0].html and "a" in table.text, table
        script = box.run_code("const n = [1, 2, 3].map((x) => x * 2); n.join('-')", language="javascript")
        assert "2-4-6" in script.text, script
        typed = box.run_code("const n: number = 20 + 1; n * 2", language="typescript")
        assert typed.text == "42", typed


@refused("`envs` of one run are refused", "CodeSandbox.run_code")
def envs_of_one_run_are_refused(sdk):
    with sdk.CodeSandbox.create("base") as box:
        raises(SandboxException, lambda: box.run_code("1", envs={"A": "b"}), "envs")


@refused("a context's id is its process's; remove it and make another", "CodeSandbox.restart_code_context")
def contexts_are_not_restarted(sdk):
    with sdk.CodeSandbox.create("base") as box:
        context = box.create_code_context()
        raises(SandboxException, lambda: box.restart_code_context(context), "restart")


@covers("Sandbox.create", "Sandbox.get_mcp_url", "Sandbox.get_mcp_token")
def a_gateway_for_mcp_is_started_by_the_client(sdk):
    mark = {"mark": uuid.uuid4().hex}
    error = raises(SandboxException, lambda: sdk.Sandbox.create("base", mcp={"x": {}}, metadata=mark), "MCP gateway")
    assert "not found" in str(error), error
    assert sdk.Sandbox.list(SandboxQuery(metadata=mark)).next_items() == []
    with sdk.Sandbox.create() as box:
        # A gateway that says which token it takes.
        gateway = '#!/bin/sh\nmkdir -p /etc/mcp-gateway\nprintf %s "$GATEWAY_ACCESS_TOKEN" >/etc/mcp-gateway/.token\n'
        box.files.write("/usr/local/bin/mcp-gateway", gateway, user="root")
        box.commands.run("chmod 755 /usr/local/bin/mcp-gateway", user="root")
        taken = box.create_snapshot()
    try:
        with sdk.Sandbox.create(taken.snapshot_id, mcp={"x": {}}) as box:
            assert box.get_mcp_url().endswith("/mcp") and box.get_mcp_token()
            again = sdk.Sandbox.connect(box.sandbox_id)
            assert again.get_mcp_token() == box.get_mcp_token()
    finally:
        sdk.Sandbox.delete_snapshot(taken.snapshot_id)


@covers("Template.exists", "Template.alias_exists")
def names_that_can_be_begun_from_exist(sdk):
    assert sdk.Template.exists("base") is True
    assert sdk.Template.alias_exists("base") is True
    assert sdk.Template.exists("no-such-template") is False


def context_directory(directory):
    """Files and links, one of which leads nowhere."""
    os.mkdir(f"{directory}/folder")
    with open(f"{directory}/folder/test.txt", "w") as file:
        file.write("from the context")
    os.symlink("test.txt", f"{directory}/folder/link.txt")
    os.symlink("nowhere", f"{directory}/folder/dangling.txt")


def remove_template(name):
    url = f"{os.environ['E2B_API_URL']}/templates/{name}"
    request = urllib.request.Request(url, headers={"X-API-KEY": os.environ["E2B_API_KEY"]}, method="DELETE")
    assert urllib.request.urlopen(request, timeout=300).status == 204


@covers("Template.build", "Template.get_tags", "Template.assign_tags", "Template.remove_tags")
def templates_are_built_tagged_and_begun_from(sdk):
    name = f"built-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as context:
        context_directory(context)
        # A name and contents of its own, so that no earlier run has built it.
        template = (
            e2b.Template(file_context_path=context)
            .from_base_image()
            .copy("folder/*", "folder", force_upload=True)
            .run_cmd(f"grep -q context folder/link.txt && test -L folder/dangling.txt && : {name}")
            .set_envs({"ONE": "1", "BOTH": "$ONE and 'two'"})
            .set_workdir("/app")
            .run_cmd('echo "$BOTH" > told')
            .set_start_cmd("echo $$ > /tmp/pid; exec sleep 1000000", e2b.wait_for_file("/tmp/pid"))
        )
        logs = []
        made = sdk.Template.build(
            template, f"{name}:v1", tags=["extra"], cpu_count=1, memory_mb=512, on_build_logs=logs.append
        )
    try:
        assert made.name == f"{name}:v1" and made.tags == ["v1", "extra"], made
        assert any("[builder " in entry.message for entry in logs), logs
        with sdk.Sandbox.create(f"{name}:v1") as box:
            assert box.commands.run("whoami; pwd; cat told").stdout == "user\n/app\n1 and 'two'\n"
            assert box.commands.run("stat -c %U told ~/folder/test.txt").stdout == "user\nuser\n"
            box.commands.run("kill -0 $(cat /tmp/pid)")
            assert box.get_info().memory_mb == 512
        # Only the tags that were asked for point at it.
        raises(SandboxException, lambda: sdk.Sandbox.create(name), "tag 'default' does not exist")
        assert sdk.Template.exists(f"{name}:v1") and not sdk.Template.exists(name)
        assigned = sdk.Template.assign_tags(f"{name}:v1", ["default", "stable"])
        assert assigned.tags == ["default", "stable"] and assigned.build_id == made.build_id, assigned
        sdk.Sandbox.create(name).kill()
        sdk.Template.remove_tags(name, ["extra", "never-was"])
        assert {one.tag for one in sdk.Template.get_tags(name)} == {"v1", "default", "stable"}
        for bad in (":v1", f"{name}:"):
            raises(e2b.TemplateException, lambda: sdk.Template.assign_tags(bad, ["x"]))
        raises(e2b.TemplateException, lambda: sdk.Template.remove_tags(name, ["default"]), "default")
        raises(e2b.TemplateException, lambda: sdk.Template.get_tags("no-such-template"), "not found")
    finally:
        remove_template(name)
    assert not sdk.Template.exists(f"{name}:v1")


@covers("Template.build_in_background", "Template.get_build_status")
def builds_go_on_behind_their_callers_and_say_why_they_fail(sdk):
    name = f"behind-{uuid.uuid4().hex[:8]}"

    def ended(template):
        made = sdk.Template.build_in_background(template, name)
        now = lambda: sdk.Template.get_build_status(made)
        return wait_for("the build ends", lambda: now().status.value != "building" and now())

    template = e2b.Template().from_template("base").run_cmd("touch ~/mark")
    try:
        assert ended(template).status.value == "ready"
        logs = ended(template).log_entries
        assert any("CACHED [builder" in entry.message for entry in logs), logs
        derived = e2b.Template().from_template(name)
        failed = ended(derived.run_cmd("test -f ~/mark").run_cmd("echo said; exit 3"))
        assert failed.status.value == "error" and failed.reason.step == "2", failed
        assert "exit status 3" in failed.reason.message and "said" in failed.reason.message
        failed = ended(e2b.Template().from_template(name).run_cmd("whoami", user="root123"))
        words = "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"
        assert words in failed.reason.message, failed.reason
        failed = ended(e2b.Template().from_template("no-such-template"))
        assert failed.reason.step == "base" and "no-such-template" in failed.reason.message, failed.reason
        raises(e2b.BuildException, lambda: sdk.Template.build(e2b.Template().from_template(name), "a/b"), "Invalid name")
    finally:
        remove_template(name)


@covers(
    "Volume.create",
    "Volume.connect",
    "Volume.destroy",
    "Volume.get_info",
    "Volume.list",
    "Volume.name",
    "Volume.token",
    "Volume.volume_id",
)
def volumes_are_made_found_and_destroyed(sdk):
    kinds = (e2b.VolumeException, SandboxException)
    name = f"Vol_{uuid.uuid4().hex[:8]}-x"
    volume = sdk.Volume.create(name)
    try:
        assert volume.name == name and volume.volume_id and volume.token
        again = sdk.Volume.connect(volume.volume_id)
        assert (again.name, again.token) == (name, volume.token)
        told = sdk.Volume.get_info(volume.volume_id)
        assert (told.volume_id, told.name, told.token) == (volume.volume_id, name, volume.token)
        assert (volume.volume_id, name) in [(one.volume_id, one.name) for one in sdk.Volume.list()]
        raises(kinds, lambda: sdk.Volume.create(name), f"Volume with name '{name}' already exists")
        for bad in ("", "a b", "a/b", "ü"):
            raises(kinds, lambda: sdk.Volume.create(bad), "Invalid volume name")
    finally:
        assert sdk.Volume.destroy(volume.volume_id) is True
    assert sdk.Volume.destroy(volume.volume_id) is False
    raises(e2b.VolumeNotFoundException, lambda: sdk.Volume.connect(volume.volume_id))
    raises(e2b.VolumeNotFoundException, lambda: sdk.Volume.get_info("no-such-volume"))
    raises(e2b.VolumePathNotFoundException, lambda: volume.list("/"))


@covers(
    "Volume.exists",
    "Volume.get_info",
    "Volume.list",
    "Volume.make_dir",
    "Volume.read_file",
    "Volume.remove",
    "Volume.update_metadata",
    "Volume.write_file",
)
def files_of_volumes_need_no_sandbox(sdk):
    volume = sdk.Volume.create(f"files-{uuid.uuid4().hex[:8]}")
    other = sdk.Volume.create(f"other-{uuid.uuid4().hex[:8]}")
    lost = e2b.VolumePathNotFoundException
    try:
        made = volume.make_dir("/a")
        assert (made.name, made.path, made.mode & 0o777, made.uid, made.gid) == ("a", "/a", 0o777, 9090, 9090), made
        assert made.type.value == "directory"
        raises(e2b.VolumeException, lambda: volume.make_dir("/a"), "409")
        assert volume.make_dir("/a", mode=0o700, force=True).mode & 0o777 == 0o777, "it is as it was"
        raises(lost, lambda: volume.make_dir("/x/y"))
        made = volume.make_dir("x/y", uid=1000, gid=1001, mode=0o750, force=True)
        assert (made.path, made.uid, made.gid, made.mode & 0o777) == ("/x/y", 1000, 1001, 0o750), made
        assert volume.get_info("/x").mode & 0o777 == 0o777
        written = volume.write_file("/a/f", "text ü")
        assert (written.size, written.mode, written.uid, written.type.value) == (7, 0o666, 9090, "file"), written
        assert volume.read_file("/a/f") == "text ü"
        raises(e2b.VolumeException, lambda: volume.write_file("/a/f", "again"), "409")
        written = volume.write_file("/a/f", b"again", mode=0o644, force=True)
        assert (written.mode, written.uid, volume.read_file("/a/f")) == (0o644, 9090, "again"), written
        raises(lost, lambda: volume.write_file("/no/parent", "x"))
        volume.write_file("/new/deep/f", "x", uid=7, force=True)
        assert volume.get_info("/new/deep/f").uid == 7
        blob = bytes(range(256)) * 20000
        volume.write_file("/blob", io.BytesIO(blob))
        assert bytes(volume.read_file("/blob", format="bytes")) == blob
        if not sdk.is_async:
            assert b"".join(volume.read_file("/blob", format="stream")) == blob
        volume.write_file("/empty", "")
        assert volume.read_file("/empty") == ""
        changed = volume.update_metadata("/a/f", uid=1, mode=0o600)
        assert (changed.uid, changed.gid, changed.mode) == (1, 9090, 0o600), changed
        assert volume.update_metadata("/a/f", gid=2).uid == 1
        names = lambda *args, **named: [one.path for one in volume.list(*args, **named)]
        assert names("/") == ["/a", "/blob", "/empty", "/new", "/x"]
        assert names("/", depth=3)[:2] == ["/a", "/a/f"] and "/new/deep/f" in names("/", depth=3)
        raises(e2b.VolumeException, lambda: volume.list("/", depth=11), "depth")
        raises(e2b.VolumeException, lambda: volume.list("/a/f"), "400")
        raises(e2b.VolumeException, lambda: volume.read_file("/a"), "400")
        raises(e2b.VolumeException, lambda: volume.write_file("/a", "x", force=True), "400")
        raises(e2b.VolumeException, lambda: volume.write_file("/blob/x", "x"), "400")
        raises(lost, lambda: volume.read_file("/nope"))
        raises(lost, lambda: volume.list("/nope"))
        raises(lost, lambda: volume.update_metadata("/nope", mode=1))
        raises(lost, lambda: volume.get_info("/nope"))
        assert volume.exists("/a/f") is True and volume.exists("/nope") is False
        assert other.exists("/a/f") is False
        # Out of the volume, or with another's token.
        for path in ("../a", "/../../etc/passwd"):
            raises(e2b.VolumeException, lambda: volume.read_file(path), "..")
        raises((e2b.VolumeException, AuthenticationException), lambda: volume.read_file("/blob", token=other.token))
        volume.remove("/a")
        assert volume.exists("/a") is False
        raises(lost, lambda: volume.remove("/a"))
        raises(e2b.VolumeException, lambda: volume.remove("/"), "400")
    finally:
        for one in (volume, other):
            assert sdk.Volume.destroy(one.volume_id) is True


@covers("Sandbox.create", "Volume.write_file", "Volume.read_file")
def sandboxes_share_a_volume(sdk):
    volume = sdk.Volume.create(f"Shared_{uuid.uuid4().hex[:8]}")
    try:
        volume.write_file("/from-outside", "seen")
        one = sdk.Sandbox.create(volume_mounts={"/data": volume.name})
        two = sdk.Sandbox.create(volume_mounts={"/srv/data": volume.name})
        try:
            assert one.commands.run("cat /data/from-outside").stdout == "seen"
            one.commands.run("echo shared > /data/file; ln -s /etc /data/out; mkdir /data/d")
            assert two.commands.run("cat /srv/data/file").stdout == "shared\n"
            assert volume.read_file("/file") == "shared\n"
            two.commands.run("echo more >> /srv/data/from-outside")
            assert volume.read_file("/from-outside") == "seenmore\n"
            # A link that a sandbox left leads nobody out of the volume.
            assert volume.get_info("/out").target == "/etc"
            for path in ("/out/x", "/out"):
                raises(e2b.VolumeException, lambda: volume.write_file(path, "x", force=True))
            raises(e2b.VolumeException, lambda: volume.make_dir("/out/x", force=True))
            raises(e2b.VolumeException, lambda: volume.update_metadata("/out", mode=0o777))
            mounts = one.get_info().volume_mounts
            assert [(mount["name"], mount["path"]) for mount in mounts] == [(volume.name, "/data")], mounts
            assert one.pause() is True
            again = sdk.Sandbox.connect(one.sandbox_id)
            assert again.commands.run("cat /data/file").stdout == "shared\n"
            raises((e2b.VolumeException, SandboxException), lambda: sdk.Volume.destroy(volume.volume_id), "mounted")
        finally:
            one.kill()
            two.kill()
        wrong = {"/data": "no-such-volume", "data": volume.name, "/a/../b": volume.name}
        error = raises(SandboxException, lambda: sdk.Sandbox.create(volume_mounts=wrong), "volume mount #0: ")
        for words in ("'no-such-volume' not found", "#1: path is not absolute", "#2: path has . or .. in it"):
            assert words in str(error), error
    finally:
        assert sdk.Volume.destroy(volume.volume_id) is True


@refused(
    "Cove's secrets are not kept by this dialect",
    "Secret.create",
    "Secret.destroy",
    "Secret.exists",
    "Secret.fill",
    "Secret.get_info",
    "Secret.iam_token",
    "Secret.list",
    "Secret.update",
)
def secrets_are_not_kept(sdk):
    kinds = (e2b.SecretException, SandboxException)
    raises(kinds, lambda: sdk.Secret.create("mine", "value"), "secrets")
    raises(kinds, lambda: sdk.Secret.get_info("mine"), "secrets")
    raises(kinds, lambda: sdk.Secret.destroy("mine"), "secrets")
