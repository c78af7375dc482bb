"""The dispatcher of backends whose outputs come ready-made from the engine side: a search's paths, a request's images.

One thread calls all callbacks; one that raises is logged and changes nothing. Knows nothing of how the messages travel,
nor of what an output holds; a language model's stream of tokens is `RequestOutputDispatcher`'s.
"""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from xllm_framework.errors import EngineDead, InvalidRequest, ShuttingDown
from xllm_framework.request import FinishReason, RequestTimings
from xllm_framework.request.messages import EngineFailed, EngineStats, Heartbeat
from xllm_runtime.master.front_side import AbortTarget
from xllm_runtime.master.heartbeat import EnginePulse

logger = logging.getLogger(__name__)


class _Message(Protocol):
    @property
    def arrival_time_s(self) -> float: ...


class Prepared(Protocol):
    """A request that can be submitted."""

    @property
    def request_id(self) -> str:
        """The master's own id, unique."""

    @property
    def message(self) -> _Message:
        """What is sent."""


PreparedT = TypeVar("PreparedT", bound=Prepared)
OutputT = TypeVar("OutputT")


@dataclass(slots=True)
class InFlight(Generic[PreparedT, OutputT]):
    """A submitted request."""

    prepared: PreparedT
    on_output: Callable[[OutputT], None]
    timings: RequestTimings
    is_cancelled: bool = False
    has_ended: bool = False


class _Cancelled(str):
    """In the dispatcher's queue: the id of a request that its caller gave up."""

    __slots__ = ()


class WholeOutputDispatcher(ABC, Generic[PreparedT, OutputT]):
    """Owns the requests in flight, and the thread that calls their callbacks.

    Args:
        events: where the engine side's messages arrive, in order.
        abort: tells the engine side to stop requests; must not block.
        on_failure: called on the dispatcher's thread, once, after every request in flight got its error.
    """

    def __init__(
        self,
        events: queue.SimpleQueue[Any],
        abort: Callable[[list[AbortTarget]], None],
        on_failure: Callable[[EngineFailed], None],
    ) -> None:
        self._events = events
        self._abort = abort
        self._on_failure = on_failure
        self._in_flight: dict[str, InFlight[PreparedT, OutputT]] = {}
        self._lock = threading.Condition()
        """Guards additions against `failure`; notified when the last request in flight has ended."""
        self._thread = threading.Thread(target=self._run, name="xllm-dispatcher", daemon=True)
        self.failure: EngineFailed | None = None
        """Why nothing more will come, once that is so."""
        self.stats = EngineStats()
        self.pulse = EnginePulse()

    @abstractmethod
    def _take(self, event: object) -> None:
        """Handle a message of the backend's own."""

    @abstractmethod
    def _ended(
        self, in_flight: InFlight[PreparedT, OutputT], reason: FinishReason, failure: EngineFailed | None
    ) -> OutputT:
        """Return the last output of a request that was given up, or failed with `failure`."""

    @property
    def num_in_flight(self) -> int:
        """Requests that were added and have not ended."""
        return len(self._in_flight)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, prepared: PreparedT, on_output: Callable[[OutputT], None]) -> None:
        """Register a request before it is sent.

        Raises:
            EngineDead: the engine side has ended.
            InvalidRequest: the very same request is in flight.
        """
        with self._lock:
            self._check_alive()
            if prepared.request_id in self._in_flight:
                raise InvalidRequest(f"Request {prepared.request_id} was submitted already.")
            timings = RequestTimings(prepared.message.arrival_time_s)
            self._in_flight[prepared.request_id] = InFlight(prepared, on_output, timings)

    def cancel(self, request_id: str) -> None:
        """Give a request up: one last output with `FinishReason.ABORT` follows. Unknown ids are ignored."""
        in_flight = self._in_flight.get(request_id)
        if in_flight is None or in_flight.is_cancelled:
            return
        in_flight.is_cancelled = True
        self._events.put(_Cancelled(request_id))
        self._abort([request_id])

    def cancel_all(self) -> None:
        """Give every request up."""
        for request_id in list(self._in_flight):
            self.cancel(request_id)

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; False when that takes longer than `timeout_s`."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._in_flight, timeout_s)

    def close(self) -> None:
        """End the thread after what is queued; whatever slipped in meanwhile ends with `FinishReason.ABORT`."""
        self._events.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._end_all(EngineFailed("The engine is closed.", ShuttingDown.kind), FinishReason.ABORT)

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise EngineDead(self.failure.message)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._handle(event)
            except Exception:  # the thread serves everybody: a fault of ours must not end it
                logger.exception("Dispatching an output failed.")

    def _handle(self, event: object) -> None:
        match event:
            case Heartbeat():
                self.pulse.beat(event)
            case _Cancelled():
                self._deliver(event, lambda request: self._ended(request, FinishReason.ABORT, None))
            case EngineFailed():
                self._end_all(event, FinishReason.ERROR)
                self._on_failure(event)
            case _:
                self._take(event)

    def _end_all(self, failure: EngineFailed, reason: FinishReason) -> None:
        """End every request with `failure`."""
        with self._lock:
            self.failure = self.failure or failure
        for request_id in list(self._in_flight):
            self._deliver(request_id, lambda request: self._ended(request, reason, failure))

    def _deliver(
        self, request_id: str, output: Callable[[InFlight[PreparedT, OutputT]], OutputT], *, is_last: bool = True
    ) -> None:
        """Give a request an output, and forget it after its last; a request that has ended is left alone."""
        in_flight = self._in_flight.get(request_id)
        if in_flight is None or in_flight.has_ended:
            return
        in_flight.has_ended = is_last
        try:
            in_flight.on_output(output(in_flight))
        except Exception:  # a caller's fault is the caller's alone
            logger.exception("The output callback of request %s raised.", request_id)
        if is_last:
            with self._lock:
                del self._in_flight[request_id]
                if not self._in_flight:
                    self._lock.notify_all()
