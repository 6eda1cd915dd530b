"""Volumes against a real server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

import cove
from cove import Sandbox, Volume


@pytest.fixture
def volume() -> Iterator[Volume]:
    made = Volume.create(f"sdk-{secrets.token_hex(4)}", size="64M")
    yield made
    made.delete()


def test_sandboxes_share_a_volume_that_outlives_them(volume: Volume) -> None:
    with Sandbox(volumes={"/data": volume}) as writer:
        writer.run("echo one > /data/file", check=True)
        with Sandbox(volumes={"/old": {"volume": volume.name, "read_only": True}}) as reader:
            assert reader.run("cat /old/file").stdout == "one\n"
            assert reader.run("echo two > /old/file").exit_code != 0
        with pytest.raises(cove.InUseError):
            volume.delete()
        assert Volume.get(volume.name).info.used_by == [writer.id]
        assert writer.info.volumes[0]["path"] == "/data"
    assert volume.read("/file") == "one\n"


def test_files_and_copies_need_no_sandbox(volume: Volume) -> None:
    assert volume.write("/a/b", b"bytes", mode=0o600) == 5
    assert volume.read_bytes("/a/b") == b"bytes"
    assert [file.path for file in volume.files("/", depth=2)] == ["/a", "/a/b"]
    assert volume.stat("/a/b").mode == "0600"
    copy = Volume.create(f"{volume.name}-copy", source=volume, read_only=True)
    volume.move("/a/b", "/c")
    volume.mkdir("/d/e")
    volume.remove("/d", recursive=True)
    with pytest.raises(FileNotFoundError):
        volume.read("/a/b")
    with pytest.raises(FileNotFoundError):
        volume.stat("/d")
    with pytest.raises(cove.ApiError):
        volume.read("/../etc/passwd")
    assert copy.read("/a/b") == "bytes"
    with pytest.raises(cove.ApiError):
        copy.write("/x", "")
    assert copy.id in [each.id for each in Volume.list()]
    copy.delete()


def test_nothing_is_changed_through_links_that_lead_out(volume: Volume) -> None:
    with Sandbox(volumes={"/data": volume}) as sandbox:
        sandbox.run("mkdir /data/in && ln -s in /data/near && ln -s / /data/out && ln -s ../.. /data/in/up", check=True)
    assert volume.write("/near/file", "kept") == 4
    assert volume.read("/in/file") == "kept"
    for path in ("/out/file", "/in/up/file", "/near/up/volume/file"):
        with pytest.raises(cove.ApiError, match="outside the volume"):
            volume.write(path, "lost")
        with pytest.raises(cove.ApiError, match="outside the volume"):
            volume.mkdir(path)
    with pytest.raises(cove.ApiError, match="outside the volume"):
        volume.move("/in/file", "/out/file")
    # The link itself is the volume's own.
    volume.remove("/out")
