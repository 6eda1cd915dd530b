"""Files against a real server, and archives that mean harm."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

import cove
from cove import Sandbox, _trees


def test_contents_come_back_as_they_went(box: Sandbox) -> None:
    data = os.urandom(300_000)
    assert box.files.write("/srv/deep/er/data", data, mode=0o600) == len(data)
    assert box.files.read_bytes("/srv/deep/er/data") == data
    assert box.files.read_bytes("/srv/deep/er/data", start=10, length=5) == data[10:15]
    assert box.files.read_bytes("/srv/deep/er/data", length=0) == b""
    assert box.files.stat("/srv/deep/er/data").mode == "0600"
    box.files.write("/srv/stream", io.BytesIO(data))
    assert b"".join(box.files.stream("/srv/stream")) == data
    box.files.write("/srv/pieces", (bytes([n]) for n in range(5)))
    assert box.files.read_bytes("/srv/pieces") == bytes(range(5))
    box.files.append("/srv/pieces", b"!")
    assert box.files.read_bytes("/srv/pieces")[-1:] == b"!"


def test_errors_are_those_python_has_for_files(box: Sandbox) -> None:
    with pytest.raises(FileNotFoundError) as told:
        box.files.read("/nothing")
    assert isinstance(told.value, cove.ApiError) and told.value.code == "path_not_found"
    box.files.mkdir("/srv/full")
    box.files.write("/srv/full/x", "")
    with pytest.raises(IsADirectoryError):
        box.files.read("/srv/full")
    with pytest.raises(cove.FileError):
        box.files.remove("/srv/full")
    with pytest.raises(FileExistsError):
        box.files.move("/srv/full/x", "/srv/full")
    box.files.remove("/srv/full", recursive=True)
    assert not box.files.exists("/srv/full")


def test_moving_and_modes(box: Sandbox) -> None:
    box.files.write("/srv/a", "1")
    box.files.write("/srv/b", "2")
    box.files.move("/srv/a", "/srv/b", replace=True)
    assert box.files.read("/srv/b") == "1"
    box.files.chmod("/srv/b", 0o755, owner="1000:1000")
    info = box.files.stat("/srv/b")
    assert (info.mode, info.uid, info.gid) == ("0755", 1000, 1000)


def test_trees_go_in_and_out(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "in" / "sub" / "run.sh").chmod(0o755)
    (tmp_path / "in" / "link").symlink_to("sub/run.sh")
    box.files.upload(tmp_path / "in", "/srv/app")
    assert box.run("/srv/app/link").stdout == "ran\n"
    box.files.download("/srv/app", tmp_path / "out")
    assert (tmp_path / "out" / "link").read_text() == "#!/bin/sh\necho ran\n"
    assert os.access(tmp_path / "out" / "sub" / "run.sh", os.X_OK)
    box.files.upload(tmp_path / "in" / "sub" / "run.sh", "/srv/one.sh")
    assert box.run("/srv/one.sh").ok
    box.files.download("/srv/one.sh", tmp_path / "one.sh")
    assert (tmp_path / "one.sh").read_text().endswith("echo ran\n")


def hostile(*entries: tuple[str, bytes, str]) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                entry.linkname = content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                entry.mode = 0o4777
                archive.addfile(entry, io.BytesIO(content.encode()))
    file.seek(0)
    return file


@pytest.mark.parametrize(
    "entries",
    [
        [("../escaped", tarfile.REGTYPE, "x")],
        [("/etc/../../../escaped", tarfile.REGTYPE, "x")],
        [("a", tarfile.SYMTYPE, ".."), ("a/escaped", tarfile.REGTYPE, "x")],
        [("a", tarfile.SYMTYPE, "/"), ("a/escaped", tarfile.REGTYPE, "x")],
        [("d", tarfile.SYMTYPE, "e"), ("e", tarfile.SYMTYPE, "../.."), ("d/escaped", tarfile.REGTYPE, "x")],
        [("h", tarfile.LNKTYPE, "../secret"), ("h", tarfile.REGTYPE, "x")],
    ],
)
def test_a_hostile_archive_writes_nothing_outside(
    tmp_path: Path, entries: list[tuple[str, bytes, str]]
) -> None:
    (tmp_path / "secret").write_text("untouched")
    target = tmp_path / "deep" / "target"
    try:
        _trees.unpack(hostile(*entries), target)
    except (cove.CoveError, OSError):
        pass
    outside = {str(path) for path in tmp_path.rglob("*") if target not in path.parents and path != target}
    assert outside == {str(tmp_path / "secret"), str(tmp_path / "deep")}
    assert (tmp_path / "secret").read_text() == "untouched"


def test_privileges_and_devices_stay_behind(tmp_path: Path) -> None:
    _trees.unpack(hostile(("su", tarfile.REGTYPE, "x"), ("null", tarfile.CHRTYPE, "")), tmp_path / "out")
    assert (tmp_path / "out" / "su").stat().st_mode & 0o7000 == 0
    assert not (tmp_path / "out" / "null").exists()
