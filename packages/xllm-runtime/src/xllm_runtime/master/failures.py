"""Turns the `kind` under which an error travels back into its class. Knows nothing of how it travelled."""

from __future__ import annotations

import queue
from typing import Any

from xllm_framework.errors import XLLMError
from xllm_framework.request.messages import EngineFailed, EngineReady


def wait_ready(events: queue.SimpleQueue[Any]) -> EngineReady:
    """Return the first thing that an engine side says.

    Raises:
        XLLMError: it could not start; the class and the sentence are its own.
    """
    ready = events.get()
    if isinstance(ready, EngineFailed):
        raise error_of(ready)
    assert isinstance(ready, EngineReady), "an engine side says this first"
    return ready


def error_of(failure: EngineFailed) -> XLLMError:
    """Return the error that an engine side reported, as the class it was raised with there (`XLLMError` if unknown)."""
    return _classes(XLLMError).get(failure.kind, XLLMError)(failure.message)


def _classes(root: type[XLLMError]) -> dict[str, type[XLLMError]]:
    """Return kind -> class of `root` and all that derive from it."""
    found = {root.kind: root}
    for child in root.__subclasses__():
        found |= _classes(child)
    return found
