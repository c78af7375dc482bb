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
