"""What becomes of sandboxes whose program does not need them any more."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import time

import cove
from cove import AsyncSandbox, Client, Sandbox

PUT_AWAY = ("paused", "stopped")

#: Long enough for a busy machine to renew it in time.
LEASE_S = 20

PROGRAM = f"""
import time, cove
box = cove.Sandbox(memory="256M", lease={LEASE_S})
print(box.id, flush=True)
time.sleep(1000)
"""


def until_put_away(box: Sandbox) -> None:
    deadline = time.monotonic() + 300
    while not (box.refresh().state in PUT_AWAY and box.info.lease and box.info.lease["lapsed"]):
        assert time.monotonic() < deadline, box.info
        time.sleep(0.2)


def test_a_killed_program_leaves_nothing_running_and_a_living_one_keeps_its_sandboxes() -> None:
    with Sandbox(memory="256M", lease=LEASE_S) as kept:
        program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        box = Sandbox.get(program.stdout.readline().strip())
        try:
            program.send_signal(signal.SIGKILL)
            program.wait()
            until_put_away(box)
            assert box.info.reason is not None and "lease" in box.info.reason
            # The one that is renewed had the same time.
            assert kept.refresh().state == "running"
            # Somebody else can go on with it, and has a lease then.
            with Sandbox.connect(box.id) as again:
                assert again.info.lease is not None and not again.info.lease["lapsed"]
                again.resume()
                assert again.run("echo on").stdout == "on\n"
        finally:
            program.stdout.close()
        try:
            box.refresh()
        except cove.NotFoundError:
            pass
        else:
            raise AssertionError("the end of the block deletes what connect() took over")


def test_a_holder_that_lost_the_lease_does_not_delete_at_the_end_of_the_block() -> None:
    with Client() as other:
        with Sandbox(memory="256M") as box:
            taken = Sandbox.connect(box.id, client=other)
        assert taken.refresh().state == "running"
        assert box.detach().info.lease is not None
        taken.delete()


def test_collecting_an_object_deletes_nothing() -> None:
    box = Sandbox(memory="256M")
    id = box.id
    del box
    gc.collect()
    again = Sandbox.get(id)
    assert again.state == "running" and again.info.lease is not None
    again.delete()


def test_kept_ones_have_no_lease_and_forks_have_one() -> None:
    with Sandbox(memory="256M", keep=True) as box:
        assert box.info.lease is None
        with box.fork() as forks:
            assert forks[0].refresh().info.lease is not None
    box.delete()


def test_the_other_flavour_renews_while_its_loop_is_busy() -> None:
    async def go() -> None:
        async with AsyncSandbox(memory="256M", lease=LEASE_S) as box:
            with Client() as client:
                given_up = Sandbox(memory="256M", lease=LEASE_S, client=client)
            # Blocks the loop until the one that nobody renews is put away.
            mine = Sandbox.get(given_up.id)
            until_put_away(mine)
            mine.delete()
            assert (await box.refresh()).state == "running"

    asyncio.run(go())
