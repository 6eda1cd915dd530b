"""Every example runs as it stands and says what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cove
from cove._settings import resolve

HERE = Path(__file__).resolve().parent
#: Seconds; all of them take a few on a quiet machine.
DEADLINE = 300


def said(program: str, **environment: str) -> str:
    before = {box.id for box in cove.Sandbox.list()}
    outcome = subprocess.run(
        [sys.executable, HERE / program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert {box.id for box in cove.Sandbox.list()} <= before, "the example left a sandbox behind"
    return outcome.stdout


def test_an_agent_outside_works_in_a_sandbox() -> None:
    server = resolve()
    assert server.api_key
    told = said(
        "loop_outside.py", DAYTONA_API_URL=f"{server.url}/daytona", DAYTONA_API_KEY=server.api_key
    )
    assert "→ write_file /tmp/primes.py" in told
    assert told.count("→ execute python3 /tmp/primes.py") == 2
    # 1060 is the sum below 100, 76127 the one below 1000, after the file was edited.
    assert "tool: 1060" in told and "The primes below 1000 add up to: 76127" in told


def test_an_agent_inside_is_followed_live() -> None:
    told = said("loop_inside.py")
    # It waits for a word after each step, so without live output it would never get to its end.
    assert "answer: '6'" in told and "the agent ended with 0" in told


def test_the_best_of_ten_forks_is_kept() -> None:
    told = said("best_of_ten.py")
    assert told.count(" ms  ") == 8 and told.count("wrong") == 2
    assert "kept: " in told.splitlines()[-1] and "wrong" not in told.splitlines()[-1]


def test_sandboxes_of_an_image_begin_with_its_server() -> None:
    told = said("image_in_steps.py")
    assert "user: nobody" in told and "page: the page of 'every' sandbox" in told
