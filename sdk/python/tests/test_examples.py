"""Every example in the docstrings and in the README runs as it stands and prints what it says."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import importlib
import inspect
import io
import pkgutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cove

README = Path(__file__).resolve().parent.parent / "README.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules() -> Iterator[types.ModuleType]:
    yield cove
    for found in pkgutil.walk_packages(cove.__path__, "cove."):
        yield importlib.import_module(found.name)


def names() -> dict[str, Any]:
    return {name: getattr(cove, name) for name in cove.__all__}


def examples() -> Iterator[Any]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    seen = set()
    for module in modules():
        for test in finder.find(module, extraglobs=names()):
            if test.examples and test.name not in seen:
                seen.add(test.name)
                yield pytest.param(test, id=test.name)


async def run_async(test: doctest.DocTest) -> None:
    """What doctest does, with ``await`` allowed everywhere."""
    scope = dict(test.globs)
    checker = doctest.OutputChecker()

    def show(value: object) -> None:
        if value is not None:
            print(repr(value))

    for example in test.examples:
        tree = ast.parse(example.source, test.name)
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            # Expressions anywhere in a block are shown, as the interactive interpreter does.
            code = compile(
                ast.Interactive(tree.body), test.name, "single", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            )
            previous, sys.displayhook = sys.displayhook, show
            try:
                outcome = eval(code, scope)
                if inspect.isawaitable(outcome):
                    await outcome
            finally:
                sys.displayhook = previous
        got = told.getvalue()
        same = checker.check_output(example.want, got, FLAGS)
        assert same, f"{example.source}\nwanted: {example.want}\ngot: {got}"


@pytest.mark.parametrize("test", list(examples()))
def test_the_example_does_what_it_says(test: doctest.DocTest) -> None:
    if "_async" in test.name:
        asyncio.run(run_async(test))
        return
    told = io.StringIO()
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=told.write)
    assert not told.getvalue(), told.getvalue()


def test_the_readme_runs() -> None:
    text = README.read_text()
    blocks = [block.split("```", 1)[0] for block in text.split("```python\n")[1:]]
    assert len(blocks) > 5
    for block in blocks:
        code = compile(block, str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = eval(code, {"__name__": "readme"})
            if inspect.isawaitable(outcome):
                asyncio.run(_await(outcome))


async def _await(outcome: Any) -> None:
    await outcome


def test_every_public_thing_is_explained() -> None:
    for name, value in names().items():
        if isinstance(value, type):
            assert value.__doc__, name
            for member, found in vars(value).items():
                if inspect.isfunction(found) and not member.startswith("_"):
                    assert inspect.getdoc(getattr(value, member)), f"{name}.{member} has no docstring"
