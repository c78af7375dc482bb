"""How every engine side runs its loop, and says what failed. Knows nothing of backends, nor of where an engine side runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from xllm_framework.errors import EngineDead, XLLMError
from xllm_framework.request.messages import EngineFailed, FromEngine
from xllm_runtime.master.heartbeat import HeartbeatThread, Stepping

logger = logging.getLogger(__name__)


class Loop(Stepping, Protocol):
    """What serves the requests of an engine side."""

    def run(self) -> None:
        """Return after `Shutdown`."""


def serve(loop: Loop, emit: Callable[[FromEngine], None]) -> None:
    """Run `loop` beside a heartbeat. What it raises is said as `EngineFailed`: it is broken, and everybody must be told."""
    heartbeat = HeartbeatThread(loop, emit)
    try:
        heartbeat.start()
        loop.run()
    except Exception as error:  # whatever it is, it becomes one message
        emit(_failed(error, "The engine's loop has ended", EngineDead.kind))
    finally:
        heartbeat.stop()


def failed_start(error: Exception) -> EngineFailed:
    """Return what an engine side says that could not start; the log has the traceback of what is no error of ours."""
    return _failed(error, "The engine could not start", XLLMError.kind)


def _failed(error: Exception, what: str, kind: str) -> EngineFailed:
    if isinstance(error, XLLMError):
        return EngineFailed(error.message, error.kind)
    logger.error("%s.", what, exc_info=error)
    return EngineFailed(f"{what}: {type(error).__name__}: {error}", kind)
