"""The package itself: generated code is fresh, imports are quick, codes have classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cove.errors import BY_CODE, CoveError

HERE = Path(__file__).resolve().parent.parent
#: Not in an installed package, but always beside the tests.
PAGES = HERE.parent.parent / "docs" / "errors"


def test_the_blocking_flavour_is_generated_from_the_other() -> None:
    checked = subprocess.run(
        [sys.executable, HERE / "tools" / "generate_sync.py", "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout


def test_importing_loads_no_http_library_and_no_event_loop() -> None:
    source = "import sys, cove; print([m for m in ('httpx', 'asyncio', 'ssl') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_every_error_code_of_the_server_has_a_class_and_no_other_has() -> None:
    codes = {page.stem for page in PAGES.glob("*.md")} - {"README"}
    assert codes == set(BY_CODE)
    assert all(issubclass(kind, CoveError) for kind in BY_CODE.values())


def test_types_are_strict() -> None:
    checked = subprocess.run([sys.executable, "-m", "mypy"], cwd=HERE, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
