"""A real server for the whole run: the one ``COVE_DATA_DIR`` or ``COVE_URL`` names."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import cove


@pytest.fixture(scope="session", autouse=True)
def server() -> str:
    if not (os.environ.get("COVE_URL") or os.environ.get("COVE_DATA_DIR")):
        pytest.exit("say which server: COVE_DATA_DIR, or COVE_URL and COVE_API_KEY", returncode=2)
    client = cove.Client.default()
    client.images()
    return client.url


@pytest.fixture
def box() -> Iterator[cove.Sandbox]:
    with cove.Sandbox() as made:
        yield made
