"""The shared servers as fixtures; after every test that used one, it must be alive and idle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import shared_servers
from support.server_process import ServerProcess


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """The script model with roomy defaults."""
    yield shared_servers.roomy_server()
    shared_servers.roomy_server().assert_alive()


@pytest.fixture
def small_server() -> Iterator[ServerProcess]:
    """The script model with 12 blocks of 16 tokens, and chunks of one block."""
    yield shared_servers.small_server()
    shared_servers.small_server().assert_alive()


@pytest.fixture
def strict_server() -> Iterator[ServerProcess]:
    """The script model with an API key, and a template that refuses what it does not like."""
    yield shared_servers.strict_server()
    shared_servers.strict_server().assert_alive()
