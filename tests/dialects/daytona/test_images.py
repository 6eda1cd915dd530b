"""Images that are built from their definitions, and snapshots of them."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from pathlib import Path

import pytest
from conftest import ask
from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    Daytona,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaValidationError,
    Image,
    Resources,
)


def unique() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def test_a_sandbox_comes_from_an_image_that_is_built_for_it(client: Daytona) -> None:
    salt = unique()
    image = Image.base("debian").run_commands(f"echo {salt} > /opt/built; echo said-$((6 * 7))")
    image = image.env({"GREETING": "hello world"}).workdir("/opt")
    logs: list[str] = []
    params = CreateSandboxFromImageParams(image=image, resources=Resources(cpu=1, memory=1), env_vars={"MORE": "1"})
    box = client.create(params, on_snapshot_create_logs=logs.append)
    try:
        assert box.state == "started" and (box.cpu, box.memory) == (1, 1)
        told = box.process.exec("cat built; echo $GREETING $MORE; pwd").result
        assert told == f"{salt}\nhello world 1\n/opt\n"
        said = "\n".join(logs)
        assert "said-42" in said and "RUN" in said, said
        # Its steps are known now, so nothing has to be waited for.
        again = client.create(params, on_snapshot_create_logs=logs.append)
        try:
            assert again.process.exec("cat built").result == f"{salt}\n"
        finally:
            again.delete()
    finally:
        box.delete()
    assert not [found for found in client.snapshot.list(limit=200).items if found.name.startswith("daytona-image")]


def test_many_sandboxes_share_one_build(client: Daytona) -> None:
    image = Image.base("debian").run_commands(f"echo {unique()} > /opt/built")
    made: list[str] = []
    params = CreateSandboxFromImageParams(image=image, resources=Resources(cpu=1, memory=1))

    def make() -> None:
        box = client.create(params, timeout=900)
        made.append(box.process.exec("cat /opt/built").result)
        box.delete()

    makers = [threading.Thread(target=make) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len(made) == 4 and len(set(made)) == 1


def test_a_build_that_fails_says_why(client: Daytona) -> None:
    name = unique()
    broken = Image.base("debian").run_commands("echo the reason >&2; exit 3")
    logs: list[str] = []
    with pytest.raises(DaytonaError, match="exit"):
        client.create(CreateSandboxFromImageParams(image=broken, name=name), on_snapshot_create_logs=logs.append)
    assert "the reason" in "\n".join(logs)
    failed = client.get(name)
    assert failed.state == "build_failed" and "exit" in failed.error_reason
    client.delete(failed)
    with pytest.raises(DaytonaNotFoundError):
        client.get(name)
    with pytest.raises(DaytonaError, match="exit"):
        client.snapshot.create(CreateSnapshotParams(name=name, image=broken))
    assert client.snapshot.get(name).state == "build_failed"
    # A name whose build failed is free.
    client.snapshot.create(CreateSnapshotParams(name=name, image="debian"))
    client.snapshot.delete(name)
    with pytest.raises(DaytonaValidationError, match="Dockerfile"):
        client.create(CreateSandboxFromImageParams(image=Image.base("debian").dockerfile_commands(["NONSENSE x"])))


def test_snapshots_are_built_listed_used_and_deleted(client: Daytona) -> None:
    name = f"Team/{unique()}:1.0"
    logs: list[str] = []
    image = Image.base("debian").run_commands(f"echo {name} > /opt/name; echo built-$((6 * 7))")
    params = CreateSnapshotParams(
        name=name, image=image, resources=Resources(cpu=1, memory=1, disk=3), entrypoint=["sleep", "infinity"]
    )
    snapshot = client.snapshot.create(params, on_logs=logs.append)
    try:
        assert (snapshot.name, snapshot.state, snapshot.cpu, snapshot.mem, snapshot.disk) == (name, "active", 1, 1, 3)
        assert "built-42" in "\n".join(logs)
        assert client.snapshot.get(name).id == client.snapshot.get(snapshot.id).id
        assert client.snapshot.get(name).entrypoint == ["sleep", "infinity"]
        assert name in [found.name for found in client.snapshot.list(limit=200).items]
        with pytest.raises(DaytonaConflictError, match="exists already"):
            client.snapshot.create(params)
        box = client.create(CreateSandboxFromSnapshotParams(snapshot=name))
        try:
            assert box.process.exec("cat /opt/name").result == f"{name}\n" and (box.cpu, box.disk) == (1, 3)
            taken = f"Taken/{unique()}"
            box.create_snapshot(taken)
            assert taken in [found.name for found in client.snapshot.list(limit=200).items]
            child = client.create(CreateSandboxFromSnapshotParams(snapshot=taken))
            assert child.process.exec("cat /opt/name").result == f"{name}\n"
            child.delete()
            client.snapshot.delete(client.snapshot.get(taken))
        finally:
            box.delete()
        other = os.environ["OTHER_API_KEY"]
        for method, path in [("GET", ""), ("DELETE", ""), ("GET", "/build-logs-url"), ("POST", "/activate")]:
            assert ask(other, method, f"/snapshots/{snapshot.id}{path}")[0] == 404
        status, told = ask(other, "POST", "/sandbox", {"snapshot": snapshot.id})
        assert status == 404, told
    finally:
        client.snapshot.delete(client.snapshot.get(name))
    with pytest.raises(DaytonaNotFoundError):
        client.snapshot.get(name)
    with pytest.raises(DaytonaValidationError, match="name"):
        client.snapshot.create(CreateSnapshotParams(name='x"\nRUN true', image="debian"))


def test_an_entrypoint_runs_from_each_start_on(client: Daytona) -> None:
    program = "echo begun $WHO; echo bad >&2; until [ -e /tmp/stop ]; do sleep 0.1; done; exit 3"
    image = Image.base("debian").env({"WHO": "me"}).entrypoint(["sh", "-c", program])
    box = client.create(CreateSandboxFromImageParams(image=image))
    try:
        for _ in range(2):
            session = box.process.get_entrypoint_session()
            assert session.session_id == "entrypoint" and session.commands[0].exit_code is None
            assert session.commands[0].command == f"sh -c {program}"
            assert not box.process.list_sessions()
            box.stop()
            box.start()
        out: list[str] = []
        err: list[str] = []

        async def follow() -> None:
            following = asyncio.ensure_future(box.process.get_entrypoint_logs_async(out.append, err.append))
            await asyncio.to_thread(box.process.exec, "touch /tmp/stop")
            await asyncio.wait_for(following, 300)

        asyncio.run(follow())
        logs = box.process.get_entrypoint_logs()
        assert (logs.stdout, logs.stderr) == ("begun me\n", "bad\n") == ("".join(out), "".join(err))
        assert box.process.get_entrypoint_session().commands[0].exit_code == 3
    finally:
        box.delete()
    plain = client.create(CreateSandboxFromImageParams(image="debian"))
    with pytest.raises(DaytonaNotFoundError):
        plain.process.get_entrypoint_session()
    plain.delete()
    long = Image.base("debian").entrypoint(["sleep", "1" * 300])
    with pytest.raises(DaytonaError, match="ENTRYPOINT"):
        client.create(CreateSandboxFromImageParams(image=long))


def test_a_sandbox_that_waits_for_its_image_is_its_makers_alone(client: Daytona) -> None:
    key, other = os.environ["DAYTONA_API_KEY"], os.environ["OTHER_API_KEY"]
    info = {"dockerfileContent": f"FROM debian\nRUN echo {unique()}; sleep 600\n"}
    status, told = ask(key, "POST", "/sandbox", {"buildInfo": info})
    assert (status, told["state"]) == (200, "pending_build"), told
    path = f"/sandbox/{told['id']}"
    assert ask(key, "GET", path)[1]["state"] in ("pending_build", "building_snapshot")
    for method, below in [("GET", ""), ("DELETE", ""), ("GET", "/build-logs-url"), ("GET", "/build-logs")]:
        assert ask(other, method, path + below)[0] == 404
    assert ask(key, "DELETE", path)[1]["state"] == "destroyed"
    assert ask(key, "GET", path)[0] == 404


def test_files_of_this_machine_do_not_get_into_images(client: Daytona, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    image = Image.base("debian").add_local_file(str(tmp_path / "file"), "/file")
    with pytest.raises(DaytonaError, match=r"docs/daytona.md") as told:
        client.create(CreateSandboxFromImageParams(image=image))
    assert told.value.status_code == 501
    key = os.environ["DAYTONA_API_KEY"]
    info = {"dockerfileContent": "FROM debian\nCOPY x /x\n", "contextHashes": ["0" * 32]}
    for path, body in [("/sandbox", {"buildInfo": info}), ("/snapshots", {"name": unique(), "buildInfo": info})]:
        assert ask(key, "POST", path, body)[0] == 501
    long = {"dockerfileContent": "FROM debian\nRUN true\n" + "#" * (300 * 1024)}
    for path, body in [("/sandbox", {"buildInfo": long}), ("/snapshots", {"name": unique(), "buildInfo": long})]:
        assert ask(key, "POST", path, body)[0] == 400
