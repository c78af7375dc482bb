"""What holds for every test module: it ends the threads that it starts.

An engine or worker that nobody ends keeps its weights for all tests that follow, and objects of native modules until after the interpreter.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

OWNING_THREADS = ("xllm-engine", "xllm-worker")
ENDING_S = 10.0


def owning_threads() -> list[threading.Thread]:
    """Return the threads of engines and workers that run in this process."""
    return [thread for thread in threading.enumerate() if thread.name in OWNING_THREADS]


@pytest.fixture(scope="module", autouse=True)
def threads_end() -> Iterator[None]:
    """Check that the module leaves no engine and no worker running, after all of its own fixtures."""
    yield
    if owning_threads():
        gc.collect()
    for thread in owning_threads():
        thread.join(ENDING_S)
    assert not owning_threads(), "the module has not closed an engine"
