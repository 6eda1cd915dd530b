"""Volumes, logins over SSH, and links to files."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

import pytest
from conftest import ask
from daytona import (
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaConflictError,
    DaytonaNotFoundError,
    DaytonaValidationError,
    Sandbox,
    VolumeMount,
)


def unique() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def test_volumes_outlive_their_sandboxes(client: Daytona) -> None:
    name = unique()
    with pytest.raises(DaytonaNotFoundError):
        client.volume.get(name)
    volume = client.volume.get(name, create=True)
    assert volume.state == "ready" and client.volume.get(name).id == volume.id
    assert name in [found.name for found in client.volume.list()]
    with pytest.raises(DaytonaValidationError):
        client.volume.create(name)
    mount = VolumeMount(volume_id=volume.id, mount_path="/data")
    box = client.create(CreateSandboxFromSnapshotParams(volumes=[mount]))
    box.process.exec("echo kept > /data/file")
    assert [(found.volume_id, found.mount_path) for found in box.volumes] == [(volume.id, "/data")]
    with pytest.raises(DaytonaConflictError):
        client.volume.delete(volume)
    # By its name, too.
    by_name = VolumeMount(volume_id=name, mount_path="/elsewhere")
    second = client.create(CreateSandboxFromSnapshotParams(volumes=[by_name]))
    box.delete()
    assert second.process.exec("cat /elsewhere/file").result == "kept\n"
    second.delete()
    key, other = os.environ["DAYTONA_API_KEY"], os.environ["OTHER_API_KEY"]
    for method, path in [("GET", volume.id), ("DELETE", volume.id), ("GET", f"by-name/{name}")]:
        assert ask(other, method, f"/volumes/{path}")[0] == 404
    stolen = {"volumes": [{"volumeId": volume.id, "mountPath": "/data"}]}
    assert ask(other, "POST", "/sandbox", stolen)[0] == 404
    for path in ["/", "data", "/etc/x", "/a/../b", "/proc"]:
        odd = {"volumes": [{"volumeId": name, "mountPath": path}]}
        assert ask(key, "POST", "/sandbox", odd)[0] == 400, path
    part = {"volumes": [{"volumeId": name, "mountPath": "/data", "subpath": "a"}]}
    assert ask(key, "POST", "/sandbox", part)[0] == 501
    client.volume.delete(volume)
    with pytest.raises(DaytonaNotFoundError):
        client.volume.get(name)


def log_in(command: str, inside: str) -> subprocess.CompletedProcess[str]:
    ssh, *rest = shlex.split(command)
    options = [
        "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes",
        "-o", "LogLevel=ERROR", "-o", "IdentityFile=none", "-o", "IdentityAgent=none",
    ]
    return subprocess.run([ssh, *options, *rest, inside], capture_output=True, text=True, timeout=300, check=False)


def test_a_token_logs_in_over_ssh_until_it_is_revoked(client: Daytona, bystander: Sandbox) -> None:
    access = bystander.create_ssh_access(expires_in_minutes=10)
    told = log_in(access.ssh_command, "echo in-$((6 * 7))")
    assert told.stdout == "in-42\n", told.stderr
    assert bystander.validate_ssh_access(access.token).valid
    assert bystander.validate_ssh_access(access.token).sandbox_id == bystander.id
    assert not bystander.validate_ssh_access("nothing").valid
    other = os.environ["OTHER_API_KEY"]
    query = urllib.parse.urlencode({"token": access.token})
    status, said = ask(other, "GET", f"/sandbox/ssh-access/validate?{query}")
    assert (status, said) == (200, {"valid": False, "sandboxId": ""})
    for method in ("POST", "DELETE"):
        assert ask(other, method, f"/sandbox/{bystander.id}/ssh-access")[0] == 404
    forged = access.token[:-2] + ("AA" if access.token[-2:] != "AA" else "BB")
    assert log_in(access.ssh_command.replace(access.token, forged), "true").returncode == 255
    # A token of another sandbox ends nothing here.
    key = os.environ["DAYTONA_API_KEY"]
    strange = urllib.parse.urlencode({"token": "sbx_aaaaaaaaaaaaaaaaaaaa.x"})
    assert ask(key, "DELETE", f"/sandbox/{bystander.id}/ssh-access?{strange}")[0] == 404
    bystander.revoke_ssh_access(access.token)
    assert not bystander.validate_ssh_access(access.token).valid
    assert log_in(access.ssh_command, "true").returncode == 255


def fetch(url: str, data: bytes | None = None) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=300) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_links_open_one_file(client: Daytona, bystander: Sandbox) -> None:
    box = bystander
    up = box.upload_url("links/odd name ü", 600)
    assert fetch(up, b"by link")[0] == 200
    down = box.download_url("links/odd name ü", 600)
    assert fetch(down) == (200, b"by link")
    assert fetch(down.replace("odd", "other"))[0] == 401
    assert fetch(up.replace("upload-v2", "download"))[0] == 401
    assert fetch(down.replace(box.id, "sbx_aaaaaaaaaaaaaaaaaaaa"))[0] == 401
    expires = next(part for part in down.split("&") if part.startswith("expires="))
    assert fetch(down.replace(expires, f"expires={int(time.time()) - 5}"))[0] == 401
    assert fetch(down.replace(expires, "expires=0"))[0] == 401
    assert ask(os.environ["OTHER_API_KEY"], "GET", f"/sandbox/{box.id}/signing-key")[0] == 404
    box.rotate_signing_key()
    assert fetch(down)[0] == 401
    assert fetch(box.download_url("links/odd name ü", 600)) == (200, b"by link")
