"""Templates against a real server."""

from __future__ import annotations

import pathlib
import secrets

import pytest

import cove
from cove import Image, Sandbox, Template


def test_sandboxes_begin_from_versions_and_tags() -> None:
    name = f"sdk-{secrets.token_hex(4)}"
    with Sandbox() as box:
        box.run("echo one > /state", check=True)
        one = box.snapshot()
        box.run("echo two > /state", check=True)
        two = box.snapshot()
    with pytest.raises(TypeError, match="tags"):
        Template.create(name, one, tags="stable")
    lifecycle = {"max_lifetime_s": 3600}
    first = Template.create(
        name, one, env={"MODE": "fast"}, workdir="/tmp", memory_limit="200M", lifecycle=lifecycle
    )
    second = Template.create(name, two.id, tags=["next"])
    assert (first.version, second.version) == (1, 2)
    assert first.info.tags == ["latest"]
    with Sandbox(template=name) as box:
        assert box.run("cat /state; echo $MODE; pwd").stdout == "one\nfast\n/tmp\n"
        assert box.info.resources.memory_mb == 200
    with Sandbox(template=name, pause_after=60) as box:
        assert (box.info.lifecycle["pause_after_s"], box.info.lifecycle["max_lifetime_s"]) == (60, 3600)
    with Sandbox(template=f"{name}:next", env={"MODE": "slow"}) as box:
        assert box.run("cat /state; echo $MODE").stdout == "two\nslow\n"
    with Sandbox(template=first) as box:
        assert box.run("cat /state").stdout == "one\n"
    second.tag("latest")
    assert Template.get(name).version == 2
    second.untag("next")
    assert second.info.tags == ["latest"]
    with pytest.raises(cove.NotFoundError):
        Template.get(f"{name}:next")
    assert [each.version for each in Template.list(name)] == [2, 1]
    with pytest.raises(cove.InUseError):
        one.delete()
    first.delete()
    second.delete()
    one.delete()
    two.delete()


def test_a_dockerfile_becomes_a_template(tmp_path: pathlib.Path) -> None:
    name = f"sdk-{secrets.token_hex(4)}"
    (tmp_path / "Dockerfile").write_text(
        "FROM debian\nARG WHO\nCOPY . /srv/\nRUN echo hello $WHO > /hello\nLABEL a=b\n"
    )
    (tmp_path / ".dockerignore").write_text("*.log\n")
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "left.log").write_text("left out")
    lines: list[str] = []
    template = Template.build(
        name, tmp_path, args={"WHO": "you"}, network="none", on_log=lambda line: lines.append(line["type"])
    )
    assert "step" in lines
    assert template.info.image is not None and template.info.image["labels"] == {"a": "b"}
    with Sandbox(template=template) as box:
        assert box.run("cat /hello /srv/kept; ls /srv", check=True).stdout == "hello you\nkeptDockerfile\nkept\n"
    with pytest.raises(cove.BuildFailed, match="exit code 3"):
        Template.build(name, dockerfile="FROM debian\nRUN exit 3\n", network="none")
    with pytest.raises(cove.ApiError, match="line 2"):
        Template.build(name, dockerfile="FROM debian\nVOLUME /x\n")
    with pytest.raises(TypeError, match="context"):
        Template.build(name)
    template.delete()


def test_an_image_of_steps_becomes_a_template(tmp_path: pathlib.Path) -> None:
    name = f"sdk-{secrets.token_hex(4)}"
    hostile = "a b'c\"d $HOME \\ <<EOF"
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / hostile.replace("/", "")).write_text("app")
    (tmp_path / "na*me").write_text("file")
    image = (
        Image.debian()
        .copy(tmp_path / "app", "/srv/app")
        .copy(tmp_path / "na*me", "/srv/")
        .run(["sh", "-c", 'printf %s "$1" > /srv/said', "sh", hostile])
        .run("cat <<'END' > /srv/lines\none\ntwo\nEND\nid -u > /srv/who")
        .env({"SAID": hostile})
        .workdir("/srv/my app")
        .user("nobody")
        .cmd(["sh", "-c", "echo up > /tmp/up; exec sleep 1000000"])
    )
    base = Template.build(name, image=image, network="none")
    more = Image.from_template(base).run("test \"$(id -un)\" = nobody && echo more > /tmp/more")
    template = Template.build(f"{name}-2", image=more, network="none", ready="test -s /tmp/up")
    with Sandbox(template=template) as box:
        assert box.run("cat /srv/said").stdout == hostile
        assert box.run("printf %s \"$SAID\"; pwd").stdout == f"{hostile}/srv/my app\n"
        assert box.run("cat /srv/lines /srv/who /srv/na?me /tmp/more; ls /srv/app").stdout == (
            f"one\ntwo\n0\nfilemore\n{hostile}\n"
        )
    template.delete()
    base.delete()
