"""What holds for every test run: it ends the threads of the engines and workers that it starts.

One that nobody ends keeps its weights for all tests that follow, and objects of native modules until after the interpreter.
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


@pytest.fixture(scope="session", autouse=True)
def modules_of_threads() -> Iterator[dict[threading.Thread, str]]:
    """By thread, the test module that it was first seen in; checks after all other fixtures that none is left."""
    seen: dict[threading.Thread, str] = {}
    yield seen
    if owning_threads():
        gc.collect()
    for thread in owning_threads():
        thread.join(ENDING_S)
    left = {seen.get(thread, "a fixture") for thread in owning_threads()}
    assert not left, f"engines or workers are left by {', '.join(sorted(left))}"


@pytest.fixture(scope="module", autouse=True)
def threads_of_module(
    modules_of_threads: dict[threading.Thread, str], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Note which threads the module leaves; a fixture of the session may still end them."""
    yield
    for thread in owning_threads():
        modules_of_threads.setdefault(thread, request.module.__name__)
