"""Cancelling a call ends what it was doing."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

import cove
from cove import AsyncSandbox


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Waits for a state, with a generous deadline."""
    deadline = time.monotonic() + 300
    while not await holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def rests(box: AsyncSandbox) -> None:
    """Waits until nothing runs: what was ended may be there a moment longer."""

    async def none() -> bool:
        return not any(one.running and one.kind != "code_context" for one in await box.processes())

    await until(none)


def test_a_cancelled_run_ends_its_command() -> None:
    async def go() -> None:
        async with AsyncSandbox() as box:
            heard = asyncio.Event()
            work = box.run("echo begun; sleep 1000 & sleep 1000", on_stdout=lambda _: heard.set())
            task = asyncio.ensure_future(work)
            await heard.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await rests(box)

            async def gone() -> bool:
                return (await box.run(["pgrep", "sleep"])).exit_code == 1

            # Its children were sent the same signal, and may end a moment later.
            await until(gone)

    asyncio.run(go())


def test_a_run_that_is_cancelled_while_it_is_started_leaves_no_command() -> None:
    async def go() -> None:
        async with AsyncSandbox() as box:
            for turns in range(12):
                task = asyncio.ensure_future(box.run("sleep 1000"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            for pause in (0.0, 0.001, 0.003, 0.01):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(box.run("sleep 1000"), pause)

            await rests(box)

    asyncio.run(go())


def test_cancelled_code_is_interrupted_and_keeps_its_variables() -> None:
    async def go() -> None:
        async with AsyncSandbox() as box:
            await box.code.run("kept = 7")
            heard = asyncio.Event()
            code = "print('begun', flush=True)\nimport time\ntime.sleep(1000)"
            task = asyncio.ensure_future(box.code.run(code, on_stdout=lambda _: heard.set()))
            await heard.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await asyncio.wait_for(box.code.run("kept"), 300)).text == "7"

    asyncio.run(go())


def test_an_interrupted_program_ends_its_command() -> None:
    with cove.Sandbox() as box:
        program = (
            # Started from a job in the background, programs ignore interrupts.
            "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
            f"import cove\nbox = cove.Sandbox.get({box.id!r})\n"
            "box.run('echo begun; sleep 1000', on_stdout=lambda text: print(text, flush=True))"
        )
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=300)
        deadline = time.monotonic() + 300
        while any(one.running for one in box.processes()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
