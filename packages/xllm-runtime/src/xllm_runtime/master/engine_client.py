"""How the front side reaches the engine side, wherever that runs. Knows nothing of text, callbacks or processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from xllm_framework.request.messages import FromEngine, ToEngine

OnMessage = Callable[[FromEngine], None]
"""Takes what comes from the engine side, on a thread of the client; must not block."""


class EngineClient(Protocol):
    """The front side's end of one engine side.

    An engine side says `EngineReady` or `EngineFailed` once, then `StepOutputs`; after an `EngineFailed` nothing comes.
    The model is loaded from the client's construction on, if not before, while the front side prepares itself.
    """

    def send(self, message: ToEngine) -> None:
        """Queue a message; never blocks. Lost once the engine side has ended."""

    def redirect(self, on_message: OnMessage) -> None:
        """Say that `on_message` may be called in place of the first one, wherever that saves a thread's turn."""

    def redirect_steps(self, on_message: OnMessage) -> None:
        """Say that `on_message` may be called instead even on the thread that computes steps; then it must be quick."""

    def close(self, timeout_s: float) -> None:
        """End the engine side after the step in flight, or after `timeout_s` by force where that is possible."""
