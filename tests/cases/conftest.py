"""Servers that the public cases share: one with roomy defaults, one with hardly any blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.server_process import ServerProcess


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """The script model with roomy defaults; checked for leftovers at the end."""
    with ServerProcess("--check-integrity") as process:
        yield process
        process.assert_alive()


@pytest.fixture(scope="session")
def small_server() -> Iterator[ServerProcess]:
    """The script model with 12 blocks of 16 tokens, chunks of 16 and one core's worth of patience."""
    options = ("--num-blocks", "13", "--block-size", "16", "--max-prefill-chunk", "16", "--check-integrity")
    with ServerProcess(*options) as process:
        yield process
        process.assert_alive()
