"""Writes ``cove._sync`` from ``cove._async``: the same code without ``await``.

    python tools/generate_sync.py           write what has changed
    python tools/generate_sync.py --check   say what would change, and fail when something would
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Union

ROOT = Path(__file__).resolve().parent.parent / "src" / "cove"
#: Written by hand in both flavours.
BY_HAND = {"__init__.py", "_io.py"}
HEADER = "# Written by tools/generate_sync.py from cove/_async/{name}; edit that one.\n"

RULES: list[tuple[str, Union[str, Callable[[re.Match[str]], str]]]] = [
    (r"(?s)[ ]*# async only: begin\n.*?# async only: end\n", ""),
    (r"(?m)^(\s*)# sync: ", r"\1"),
    (r"\bAsyncGenerator\[(.+?), None\]", r"Generator[\1, None, None]"),
    (r"\bUnion\[Awaitable\[None\], None\]", "None"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAwaitable, ", ""),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basync (?=def|for|with)", ""),
    (r"\bawait ", ""),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\b(aread|aclose|aiter_bytes|aiter_raw)\b", lambda match: match[1][1:]),
    (r"\bcove\._async\b", "cove._sync"),
]


def in_order(line: re.Match[str]) -> str:
    return line[1] + ", ".join(sorted(set(line[2].split(", "))))


def translate(text: str) -> str:
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    text = re.sub(r"(?m)^(from collections\.abc import )(.+)$", in_order, text)
    return re.sub(r"\(([\w.]+\([^()]*\))\)\.", r"\1.", text)


def expected() -> dict[Path, str]:
    return {
        ROOT / "_sync" / source.name: HEADER.format(name=source.name) + translate(source.read_text())
        for source in sorted((ROOT / "_async").glob("*.py"))
        if source.name not in BY_HAND
    }


def main() -> int:
    stale = 0
    for path, text in expected().items():
        if path.exists() and path.read_text() == text:
            continue
        stale += 1
        if "--check" in sys.argv:
            print(f"{path} is not what tools/generate_sync.py writes")
        else:
            path.write_text(text)
            print(f"wrote {path}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
