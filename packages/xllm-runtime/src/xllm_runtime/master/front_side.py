"""What masters have in common, whatever their requests ask for: gauges, health, pauses, the end of the engine side.

Knows nothing of what a request or an output is; the backend's dispatcher and its own `submit` do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import QueueFull, ShuttingDown
from xllm_framework.request.messages import (
    AbortRequests,
    EngineFailed,
    EngineReady,
    EngineStats,
    Pause,
    PauseMode,
    Resume,
)
from xllm_runtime.master.engine_client import EngineClient
from xllm_runtime.master.heartbeat import EnginePulse

logger = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 10.0

AbortTarget = str | tuple[str, int]
"""A request's id, or one of its sequences."""


class Dispatcher(Protocol):
    """What brings outputs to callbacks, seen from a master."""

    failure: EngineFailed | None
    """Why nothing more will come, once that is so."""
    stats: EngineStats
    pulse: EnginePulse

    @property
    def num_in_flight(self) -> int:
        """Requests that were added and have not ended."""

    def cancel(self, request_id: str) -> None:
        """Give a request up: one last output with `FinishReason.ABORT` follows. Unknown ids are ignored."""

    def cancel_all(self) -> None:
        """Give every request up."""

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; False when that takes longer than `timeout_s`."""

    def close(self) -> None:
        """End after what is queued; whatever slipped in meanwhile ends with `FinishReason.ABORT`."""


class FrontSide:
    """A master without its requests. All methods can be called from any thread.

    A subclass makes `_dispatcher`, which is given `_abort` and `_on_failure`, and lets requests in by `_check_room`.

    Args:
        max_running: requests that the engine computes at a time; beside them, `max_num_waiting` may wait.
    """

    _dispatcher: Dispatcher

    def __init__(
        self, config: XLLMConfig, client: EngineClient, ready: EngineReady, model_name: str, *, max_running: int
    ) -> None:
        self.config = config
        self.ready = ready
        self.model_name = model_name
        self._client = client
        self._max_in_flight = max_running + config.scheduler.max_num_waiting
        self._failure_callbacks: list[Callable[[str], None]] = []
        self._lock = threading.Lock()
        self._is_draining = False
        self._is_closed = False

    def cancel(self, request_id: str) -> None:
        """Give up the request with this id of the prepared one: one last output, with finish reason abort, follows.

        Its place is free one step later. Unknown ids, and those of requests that have ended, are ignored.
        """
        self._dispatcher.cancel(request_id)

    def pause(self, mode: PauseMode) -> None:
        """Let the engine stop computing; does not wait: `stats.pause_state` says when it has. New requests wait."""
        self._client.send(Pause(mode))

    def resume(self) -> None:
        """Let the engine go on; does not wait."""
        self._client.send(Resume())

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters as of the engine's latest step."""
        return self._dispatcher.stats

    @property
    def num_in_flight(self) -> int:
        """Requests that were submitted and have not ended."""
        return self._dispatcher.num_in_flight

    def health(self) -> str | None:
        """Return None while requests are served, else why not."""
        if self._dispatcher.failure is not None:
            return self._dispatcher.failure.message
        if self._is_draining:
            return "The engine is about to stop."
        return self._dispatcher.pulse.complaint(self.config.service.step_timeout)

    def on_engine_failure(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the reason, on the dispatcher's thread, once the engine side has ended by an error."""
        with self._lock:
            self._failure_callbacks.append(callback)

    def drain(self, timeout_s: float) -> bool:
        """Take no new requests and wait for the running ones; False if some still run after `timeout_s`."""
        self._is_draining = True
        return self._dispatcher.wait_until_idle(timeout_s)

    def close(self) -> None:
        """Cancel what runs, end the engine side and the dispatcher. Calling it again does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._is_draining = True
        self._dispatcher.cancel_all()
        self._client.close(CLOSE_TIMEOUT_S)
        self._dispatcher.close()

    def _check_room(self) -> None:
        """Raise `ShuttingDown` after `drain` or `close`, and `QueueFull` while as many requests wait as may."""
        if self._is_draining:
            raise ShuttingDown("The engine is about to stop and takes no new requests.")
        if self.num_in_flight >= self._max_in_flight:
            raise self._queue_full()

    def _queue_full(self) -> QueueFull:
        return QueueFull(f"{self.config.scheduler.max_num_waiting} requests wait already (max_num_waiting).")

    def _abort(self, targets: list[AbortTarget]) -> None:
        self._client.send(AbortRequests(targets))

    def _on_failure(self, failure: EngineFailed) -> None:
        logger.error("%s", failure.message)
        with self._lock:
            callbacks = list(self._failure_callbacks)
        for callback in callbacks:
            callback(failure.message)
