"""Making, finding, changing and ending sandboxes."""

from __future__ import annotations

import asyncio
import queue
import time
import urllib.error
import urllib.request
import uuid

import pytest
from daytona import (
    AsyncDaytona,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaValidationError,
    ListSandboxesQuery,
    Resources,
    Sandbox,
)


def unique() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def test_three_lines_are_enough() -> None:
    sandbox = Daytona().create()
    assert sandbox.process.exec("echo hello from the sandbox").result == "hello from the sandbox\n"
    sandbox.delete()


def test_what_is_asked_for_is_what_is_there(client: Daytona) -> None:
    name = unique()
    params = CreateSandboxFromImageParams(
        image="debian",
        name=name,
        resources=Resources(cpu=1, memory=1, disk=2),
        env_vars={"GREETING": "hello"},
        labels={"who": name},
        auto_stop_interval=15,
        auto_delete_interval=60,
        auto_archive_interval=30,
        ttl_minutes=120,
        network_block_all=True,
    )
    box = client.create(params)
    try:
        assert (box.name, box.cpu, box.memory, box.disk) == (name, 1, 1, 2)
        assert (box.auto_stop_interval, box.auto_delete_interval, box.auto_archive_interval) == (15, 60, 30)
        assert box.auto_destroy_at and box.network_block_all and box.state == "started"
        assert box.labels == {"who": name, "code-toolbox-language": "python"}
        assert box.process.exec("echo $GREETING; nproc").result == "hello\n1\n"
        assert client.get(name).id == client.get(box.id).id == box.id
        assert [found.id for found in client.list(ListSandboxesQuery(labels={"who": name}))] == [box.id]
        assert [found.id for found in client.list(ListSandboxesQuery(name=name[:8], states=["started"]))] == [box.id]
        assert not list(client.list(ListSandboxesQuery(labels={"who": name}, states=["stopped"])))
        with pytest.raises(DaytonaConflictError):
            client.create(CreateSandboxFromSnapshotParams(name=name))
    finally:
        client.delete(box, wait=True)
    with pytest.raises(DaytonaNotFoundError):
        client.get(name)


def test_settings_change_while_it_runs(client: Daytona, bystander: Sandbox) -> None:
    box = bystander
    assert box.set_labels({"a": "b"}) == {"a": "b"}
    box.set_autostop_interval(10)
    box.set_auto_delete_interval(20)
    box.set_auto_archive_interval(30)
    box.set_ttl(100)
    box.refresh_data()
    assert (box.auto_stop_interval, box.auto_delete_interval, box.auto_archive_interval) == (10, 20, 30)
    assert box.labels == {"a": "b"} and box.auto_destroy_at
    box.set_auto_pause_interval(5)
    box.refresh_data()
    assert (box.auto_stop_interval, box.auto_pause_interval) == (0, 5)
    box.update_network_settings(network_block_all=True)
    assert box.network_block_all
    box.update_network_settings(network_block_all=False, domain_allow_list="example.com,*.example.org")
    assert box.domain_allow_list == "example.com,*.example.org" and not box.network_block_all
    with pytest.raises(DaytonaValidationError):
        box.update_network_settings(network_allow_list="not an address")
    box.update_network_settings(network_allow_list="203.0.113.9/24")
    assert box.network_allow_list == "203.0.113.0/24"
    box.refresh_activity()
    box.resize(Resources(memory=2))
    box.wait_for_resize_complete()
    assert box.memory == 2
    with pytest.raises(DaytonaValidationError, match="reserved"):
        box.set_labels({"daytona:archived": "1"})


def test_variables_change_for_what_is_started_later(bystander: Sandbox) -> None:
    say = "echo $ONE-$TWO"
    bystander.update_env({"ONE": "1", "TWO": "2"})
    assert bystander.process.exec(say).result == "1-2\n"
    bystander.update_env({"TWO": "3"}, unset=["ONE"])
    assert bystander.process.exec(say).result == "-3\n"
    bystander.refresh_data()
    assert bystander.env["TWO"] == "3" and "ONE" not in bystander.env
    with pytest.raises(DaytonaError):
        bystander.update_env({"no=name": "x"})


def test_it_stops_starts_and_is_archived(client: Daytona, bystander: Sandbox) -> None:
    box = bystander
    box.fs.upload_file(b"kept", "/home/daytona/kept")
    client.stop(box)
    assert box.state == "stopped"
    with pytest.raises(DaytonaConflictError, match="stopped"):
        box.process.exec("true")
    box.archive()
    assert box.state == "archived"
    client.start(box)
    box.wait_for_sandbox_start()
    assert box.state == "started" and box.fs.download_file("/home/daytona/kept") == b"kept"
    with pytest.raises(DaytonaConflictError, match="stop it"):
        box.archive()
    box.stop(force=True)
    box.wait_for_sandbox_stop()
    box.recover()
    box.start()
    assert box.state == "started"


def test_one_made_to_end_with_its_stop_does(client: Daytona) -> None:
    box = client.create(CreateSandboxFromSnapshotParams(ephemeral=True))
    assert box.auto_delete_interval == 0
    box.stop()
    with pytest.raises(DaytonaNotFoundError):
        client.get(box.id)


def test_it_is_paused_and_wakes_when_it_is_needed(bystander: Sandbox) -> None:
    box = bystander
    box.process.exec("sleep 1000 >/dev/null 2>&1 & echo $! >/tmp/pid")
    box.pause()
    assert box.state == "paused"
    assert box.process.exec("kill -0 $(cat /tmp/pid) && echo it went on").result == "it went on\n"


def test_snapshots_and_forks_begin_where_it_was(client: Daytona, bystander: Sandbox) -> None:
    name = unique()
    bystander.fs.upload_file(b"then", "/home/daytona/state")
    bystander.create_snapshot(name)
    made = []
    try:
        assert client.snapshot.get(name).name == name
        assert name in [snapshot.name for snapshot in client.snapshot.list(limit=200).items]
        assert "debian" in [snapshot.name for snapshot in client.snapshot.list().items]
        assert client.snapshot.activate(name).state == "active"
        bystander.fs.upload_file(b"now", "/home/daytona/state")
        made.append(client.create(CreateSandboxFromSnapshotParams(snapshot=name)))
        made.append(bystander.fork())
        assert [box.fs.download_file("/home/daytona/state") for box in made] == [b"then", b"now"]
    finally:
        for box in made:
            box.delete()
        client.snapshot.delete(name)
    with pytest.raises(DaytonaNotFoundError):
        client.snapshot.get(name)
    with pytest.raises(DaytonaError, match="image"):
        client.snapshot.delete("debian")


def test_ports_are_visited_by_links(bystander: Sandbox) -> None:
    box = bystander
    box.process.exec("cd /tmp && echo inside >page && (python3 -m http.server 8000 >/dev/null 2>&1 &)")
    box.process.exec("for i in $(seq 600); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null && break; sleep 0.1; done")

    def visit(url: str, **headers: str) -> bytes:
        # Names below localhost are this machine; not every resolver knows.
        host = url.split("/")[2]
        port = host.rsplit(":", 1)[1]
        path = url.split(host, 1)[1]
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host, **headers})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return bytes(answer.read())

    link = box.get_preview_link(8000)
    assert visit(f"{link.url}/page", **{"x-daytona-preview-token": link.token}) == b"inside\n"
    with pytest.raises(urllib.error.HTTPError):
        visit(f"{link.url}/page")
    signed = box.create_signed_preview_url(8000, expires_in_seconds=600)
    assert visit(signed.url.replace("/?", "/page?")) == b"inside\n"
    box.expire_signed_preview_url(8000, signed.token)
    with pytest.raises(urllib.error.HTTPError):
        visit(signed.url.replace("/?", "/page?"))
    box.set_public(True)
    assert box.public and visit(f"{box.get_preview_link(8000).url}/page") == b"inside\n"
    box.set_public(False)
    with pytest.raises(urllib.error.HTTPError):
        visit(f"{link.url}/page")


def test_states_are_told_as_they_change(client: Daytona, bystander: Sandbox) -> None:
    told: queue.Queue[str] = queue.Queue()
    dispatcher = client._event_dispatcher
    deadline = time.monotonic() + 300
    while not dispatcher._connected:
        assert time.monotonic() < deadline, "the SDK did not connect to the events"
        dispatcher.ensure_connected()
        time.sleep(0.05)
    end = dispatcher.subscribe(
        bystander.id, lambda _, data: told.put(data["newState"]), events=["sandbox.state.updated"]
    )
    try:
        bystander.stop()
        while told.get(timeout=300) != "stopped":
            pass
    finally:
        end()


def test_the_async_client_does_the_same() -> None:
    async def work() -> str:
        async with AsyncDaytona() as client:
            box = await client.create()
            try:
                await box.fs.upload_file(b"x = 6 * 7", "code.py")
                answer = await box.process.exec("python3 -c 'import code; exec(open(\"code.py\").read()); print(x)'")
                return str(answer.result)
            finally:
                await box.delete()

    assert asyncio.run(work()) == "42\n"


def test_the_key_decides(client: Daytona) -> None:
    from daytona import DaytonaAuthenticationError, DaytonaConfig

    stranger = Daytona(DaytonaConfig(api_key="nobody", api_url=client._api_url, use_deprecated_polling=True))
    with pytest.raises(DaytonaAuthenticationError):
        stranger.create()


@pytest.mark.parametrize(
    "asked",
    [
        {"secrets": {"A": "b"}},
        {"target": "eu"},
        {"kvm": True},
        {"linked_sandbox": "x"},
        {"outbound_proxy_url": "http://proxy"},
    ],
)
def test_what_cannot_be_given_is_refused(client: Daytona, asked: dict[str, object]) -> None:
    before = len(list(client.list()))
    with pytest.raises(DaytonaError) as refusal:
        client.create(CreateSandboxFromSnapshotParams(**asked))
    assert refusal.value.status_code == 501 and refusal.value.code == "UNSUPPORTED"
    assert len(list(client.list())) == before


def test_a_snapshot_that_is_not_there_is_not_found(client: Daytona) -> None:
    with pytest.raises(DaytonaNotFoundError):
        client.create(CreateSandboxFromSnapshotParams(snapshot="there-is-none"))
