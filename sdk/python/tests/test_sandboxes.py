"""Sandboxes and commands against a real server."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

import pytest

import cove
from cove import AsyncSandbox, Sandbox


def test_a_sandbox_is_gone_after_its_block_also_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), Sandbox() as box:
        _ = 1 / 0
    with pytest.raises(cove.NotFoundError) as told:
        Sandbox.get(box.id)
    assert told.value.code == "not_found"
    assert told.value.request_id and told.value.request_id in repr(told.value)


def test_one_that_is_kept_outlives_its_block_and_deleting_is_done_once() -> None:
    with Sandbox(keep=True) as box:
        pass
    try:
        with Sandbox.get(box.id) as same:
            assert same.state == "running"
        assert Sandbox.get(box.id).id == box.id
    finally:
        box.delete()
    with box:
        pass


def test_settings_reach_the_sandbox() -> None:
    with Sandbox(
        memory="256M", disk="1G", cpu=0.5, env={"A": "b"}, labels={"k": "v"}, delete_after=3600
    ) as box:
        info = box.info
        assert (info.resources.memory_mb, info.resources.disk_mb, info.resources.cpu) == (256, 1024, 0.5)
        assert info.labels == {"k": "v"} and info.lifecycle["delete_after_s"] == 3600
        assert abs((datetime.now(timezone.utc) - info.created_at).total_seconds()) < 3600
        assert box.run("echo $A").stdout == "b\n"


def test_a_second_sandbox_of_the_same_name_is_refused(box: Sandbox) -> None:
    box.update(name="only-one")
    with pytest.raises(cove.AlreadyExistsError):
        Sandbox(name="only-one")


def test_nonsense_is_refused_here_or_there() -> None:
    with pytest.raises(cove.InvalidRequestError):
        Sandbox(cpu=-1)
    with pytest.raises(ValueError, match="memory"):
        Sandbox(memory="much")
    with pytest.raises(ValueError, match="network"):
        Sandbox(network="sometimes")


def test_results_tell_how_a_command_ended(box: Sandbox) -> None:
    failed = box.run("echo no >&2; exit 7")
    assert not failed and failed.exit_code == 7 and failed.stderr == "no\n"
    with pytest.raises(cove.CommandFailed, match="exited with 7"):
        box.run("exit 7", check=True)
    assert box.run("sleep 600", timeout=0.2, check=False).timed_out
    with pytest.raises(TimeoutError, match="sleep 600"):
        box.run("sleep 600", timeout=0.2)
    assert box.run(["cat"], input=b"\xff\x00").stdout_bytes == b"\xff\x00"
    assert box.run("kill -9 $$").signal == 9
    offline = box.run("getent hosts pypi.org")
    assert offline.hint is not None and "is off; pypi.org was refused" in offline.hint
    blaming = box.run("echo 'Could not resolve host: example.com' >&2; exit 6")
    assert blaming.hint is None
    with pytest.raises(cove.CommandFailed, match="--allow preset:packages"):
        offline.check()
    assert failed.hint is None
    with pytest.raises(cove.InvalidRequestError) as told:
        box.run(["no-such-program"])
    assert told.value.code == "command_not_found"


def test_callbacks_hear_output_while_the_command_runs(box: Sandbox) -> None:
    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)
        if "ready" in text:
            box.files.write("/tmp/go", "")

    # It ends only because what it said was heard before it ended.
    script = "echo ready; until test -e /tmp/go; do sleep 0.01; done; echo gone"
    result = box.run(script, on_stdout=hear, timeout=300)
    assert result.ok and "".join(heard) == "ready\ngone\n"


def test_text_is_never_cut_inside_a_character(box: Sandbox) -> None:
    script = r"printf '\303'; sleep 0.1; printf '\274\n'"
    assert "".join(out.text for out in box.stream(script)) == "ü\n"


def test_much_output_arrives_whole(box: Sandbox) -> None:
    result = box.run("head -c 20000000 /dev/zero")
    assert len(result.stdout_bytes) == 20_000_000 and not result.truncated


def test_a_stream_can_be_left_and_the_command_found_again(box: Sandbox) -> None:
    stream = box.stream("echo begun; until test -e /tmp/go; do sleep 0.01; done; echo over")
    assert next(stream).text == "begun\n"
    stream.close()
    process = box.process(stream.id)
    box.files.write("/tmp/go", "")
    result = process.wait(check=True)
    assert result.stdout == "begun\nover\n"


def test_background_processes_take_input_signals_and_show_up(box: Sandbox) -> None:
    process = box.start("cat", stdin=True, tag="mirror")
    process.send("abc")
    process.close_stdin()
    assert process.wait().stdout == "abc"
    assert "mirror" in [one.tag for one in box.processes()]
    sleeper = box.start(["sleep", "1000"])
    assert sleeper.info().running
    sleeper.terminate()
    assert sleeper.wait().signal == 15
    with pytest.raises(cove.NotFoundError):
        box.process("prc_none")


def test_a_terminal_types_waits_and_resizes(box: Sandbox) -> None:
    with box.terminal(cols=100, rows=30) as terminal:
        terminal.send("stty size\n")
        terminal.expect(r"30 100", timeout=300)
        terminal.resize(90, 20)
        terminal.send("stty size\n")
        terminal.expect(r"20 90", timeout=300)
        with pytest.raises(cove.WaitTimeout, match="never there"):
            terminal.expect("never there", timeout=0.2)


def test_waiting_for_a_port_ends(box: Sandbox) -> None:
    with pytest.raises(cove.WaitTimeout):
        box.wait_for_port(9, timeout=0.05)


def test_stopping_keeps_the_disk(box: Sandbox) -> None:
    box.files.write("/srv/kept", "yes")
    assert box.stop(grace=0).state == "stopped"
    assert box.resume().state == "running"
    assert box.files.read("/srv/kept") == "yes"


def test_figures_and_events_are_told(box: Sandbox) -> None:
    assert box.metrics().memory_limit_bytes == box.info.resources.memory_mb * 1024 * 1024
    assert [event.details.get("state") for event in box.events() if event.type == "state"][-1] == "running"


def test_events_are_followed(box: Sandbox) -> None:
    seen = []
    for event in box.follow_events(after=0):
        if event.type == "state":
            seen.append(event.details["state"])
            if len(seen) == 1:
                box.freeze()
                box.resume()
        if len(seen) == 3:
            break
    assert seen == ["running", "frozen", "running"]
    newest = box.events()[-1].id
    following = cove.Client.default().follow_events(after=newest - 1)
    assert next(following).id == newest
    following.close()


def test_keys_are_made_and_revoked() -> None:
    client = cove.Client.default()
    made = client.create_key("from the tests", ["read"], expires=600)
    assert made.token and made.token not in repr(made)
    with cove.Client(client.url, made.token) as reader:
        assert reader.images()
        with pytest.raises(cove.ForbiddenError):
            Sandbox(client=reader)
        assert [one.token for one in client.keys() if one.id == made.id] == [None]
        client.revoke_key(made.id)
        with pytest.raises(cove.AuthenticationError):
            reader.images()
    line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH81UMn11ondsSBCafN+gPqjEXOjQcVn8n194LMQHp82 tests\n"
    added = client.add_ssh_key("python-tests", line, expires=600)
    assert added.fingerprint in [one.fingerprint for one in client.ssh_keys()]
    client.remove_ssh_key(added.id)
    assert added.id not in [one.id for one in client.ssh_keys()]


def test_secrets_are_kept_and_not_shown() -> None:
    client = cove.Client.default()
    value = "canary-python-0123456789"
    first = client.set_secret("python-tests", value, hosts=["api.example.com"], use="header:x-api-key")
    again = client.set_secret("python-tests", value, hosts=["api.example.com"], use="header:x-api-key")
    assert again.version == first.version + 1
    listed = [one for one in client.secrets() if one.name == "python-tests"]
    assert [one.use for one in listed] == ["header:x-api-key"] and value not in repr(listed)
    with pytest.raises(cove.InvalidRequestError):
        client.set_secret("python-tests", "short", hosts=["api.example.com"])
    assert not listed[0].ask
    asks = client.set_secret("python-tests", value, hosts=["api.example.com"], ask=True)
    assert asks.ask and "python-tests" not in [one.secret for one in client.approvals()]
    for decide in (client.approve, client.deny):
        with pytest.raises(cove.NotFoundError):
            decide("apr_aaaaaaaaaaaaaaaaaaaa")
    limits = [cove.SecretLimit("requests", per="day", max=10), cove.SecretLimit("bytes", per="sandbox", max=20)]
    limited = client.set_secret("python-tests", value, hosts=["api.example.com"], limits=limits)
    assert [(one.of, one.per, one.max, one.used) for one in limited.budgets] == [
        ("requests", "day", 10, 0),
        ("bytes", "sandbox", 20, None),
    ]
    assert limited.budgets[0].renews_at is not None and limited.budgets[1].renews_at is None
    with pytest.raises(cove.InvalidRequestError):
        client.set_secret("python-tests", value, hosts=["api.example.com"], limits=limits[:1] * 2)
    client.remove_secret("python-tests")
    assert "python-tests" not in [one.name for one in client.secrets()]


def test_notebooks_show_results(box: Sandbox) -> None:
    html = box.run("echo '<b>'; echo no >&2; exit 3")._repr_html_()
    assert "&lt;b&gt;" in html and "no" in html and "exit code 3" in html
    shown = box.code.run("print('said')\n[1, 2]")
    assert shown._repr_mimebundle_() == {"text/plain": "[1, 2]", "application/json": [1, 2]}
    assert box.code.run("print('said')")._repr_mimebundle_() == {"text/plain": "said\n"}
    assert "ZeroDivisionError" in box.code.run("1 / 0")._repr_mimebundle_()["text/plain"]


def test_updating_the_lifecycle_keeps_what_is_not_named() -> None:
    with Sandbox(stop_after=600, delete_after=6000) as box:
        box.update(stop_after=700)
        assert box.info.lifecycle == {
            "stop_after_s": 700,
            "delete_after_s": 6000,
            "auto_resume": True,
        }


def test_many_at_once_from_one_event_loop() -> None:
    async def one(number: int) -> str:
        async with AsyncSandbox(memory=128) as box:
            return (await box.run(f"echo {number}")).stdout

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(8)))

    assert asyncio.run(all_of_them()) == [f"{number}\n" for number in range(8)]


def test_async_callbacks_are_awaited_and_await_makes_a_sandbox() -> None:
    async def go() -> list[str]:
        heard: list[str] = []

        async def hear(text: str) -> None:
            await asyncio.sleep(0)
            heard.append(text)

        box = await AsyncSandbox()
        try:
            await box.run("echo hi", on_stdout=hear)
        finally:
            await box.delete()
        return heard

    assert asyncio.run(go()) == ["hi\n"]


def test_a_sandbox_that_was_not_made_says_so() -> None:
    box = AsyncSandbox()
    assert "not made" in repr(box)
    with pytest.raises(cove.CoveError, match="not been created"):
        _ = box.id


def test_the_link_of_a_shared_port_works_from_python(box: Sandbox) -> None:
    import httpx

    box.files.write("/srv/www/index.html", "shared")
    box.start(["python3", "-m", "http.server", "8080", "--directory", "/srv/www"])
    box.wait_for_port(8080, timeout=300)
    share = box.share(8080)
    with httpx.Client(trust_env=False) as visitor:
        assert visitor.get(share.url).text == "shared"
        assert visitor.get(share.path_url).status_code in (401, 403)
        box.unshare(8080)
        assert visitor.get(share.url).status_code in (401, 403)
