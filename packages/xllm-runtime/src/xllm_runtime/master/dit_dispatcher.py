"""From what the engine side has drawn to callbacks: progress, images, each request's end. One thread does all of it.

A callback that raises is logged and changes nothing. Knows nothing of how the messages travel, or of files' formats.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xllm_framework.errors import EngineDead, InvalidRequest, ShuttingDown
from xllm_framework.request import FinishReason, RequestTimings, SequenceOutput
from xllm_framework.request.image_messages import ImageUpdate
from xllm_framework.request.image_output import GeneratedImage, ImageOutput
from xllm_framework.request.messages import EngineFailed, EngineStats, Heartbeat, ImageUpdates
from xllm_runtime.master.dit_request import PreparedImages
from xllm_runtime.master.heartbeat import EnginePulse

logger = logging.getLogger(__name__)
OnImageOutput = Callable[[ImageOutput], None]


@dataclass(slots=True)
class _InFlight:
    prepared: PreparedImages
    on_output: OnImageOutput
    timings: RequestTimings


class _Cancelled(str):
    """In the dispatcher's queue: the id of a request that its caller gave up."""

    __slots__ = ()


class ImageDispatcher:
    """Owns the requests in flight, and the thread that calls their callbacks.

    Args:
        events: where the engine side's messages arrive, in order.
        on_failure: called on the dispatcher's thread, once, after every request in flight got its error.
    """

    def __init__(self, events: queue.SimpleQueue[Any], on_failure: Callable[[EngineFailed], None]) -> None:
        self._events = events
        self._on_failure = on_failure
        self._in_flight: dict[str, _InFlight] = {}
        self._lock = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="xllm-dispatcher", daemon=True)
        self.failure: EngineFailed | None = None
        """Why nothing more will come, once that is so."""
        self.stats = EngineStats()
        self.pulse = EnginePulse()

    @property
    def num_in_flight(self) -> int:
        """Requests that were added and have not ended."""
        return len(self._in_flight)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, prepared: PreparedImages, on_output: OnImageOutput) -> None:
        """Register a request before it is sent.

        Raises:
            EngineDead: the engine side has ended.
            InvalidRequest: the very same request is in flight.
        """
        with self._lock:
            if self.failure is not None:
                raise EngineDead(self.failure.message)
            if prepared.request_id in self._in_flight:
                raise InvalidRequest(f"Request {prepared.request_id} was submitted already.")
            timings = RequestTimings(prepared.message.arrival_time_s)
            self._in_flight[prepared.request_id] = _InFlight(prepared, on_output, timings)

    def cancel(self, request_id: str) -> bool:
        """Give a request up: one last output with `FinishReason.ABORT` follows. False for unknown ids."""
        if request_id not in self._in_flight:
            return False
        self._events.put(_Cancelled(request_id))
        return True

    def in_flight_ids(self) -> list[str]:
        """Return the ids of all requests in flight."""
        return list(self._in_flight)

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; False when that takes longer than `timeout_s`."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._in_flight, timeout_s)

    def close(self) -> None:
        """End the thread after what is queued; whatever slipped in meanwhile ends with `FinishReason.ABORT`."""
        self._events.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._end_all(EngineFailed("The engine is closed.", ShuttingDown.kind), is_aborted=True)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._handle(event)
            except Exception:  # the thread serves everybody: a fault of ours must not end it
                logger.exception("Dispatching an output failed.")

    def _handle(self, event: object) -> None:
        match event:
            case ImageUpdates():
                self.stats = event.stats
                for update in event.updates:
                    self._deliver(update)
            case Heartbeat():
                self.pulse.beat(event)
            case _Cancelled():
                self._deliver(ImageUpdate(event, finished=True, is_aborted=True))
            case EngineFailed():
                self._end_all(event, is_aborted=False)
                self._on_failure(event)
            case _:
                logger.error("The engine side says something unknown: %s.", type(event).__name__)

    def _end_all(self, failure: EngineFailed, *, is_aborted: bool) -> None:
        with self._lock:
            self.failure = self.failure or failure
        for request_id in self.in_flight_ids():
            error, kind = (None, None) if is_aborted else (failure.message, failure.kind)
            self._deliver(ImageUpdate(request_id, finished=True, is_aborted=is_aborted, error=error, error_kind=kind))

    def _deliver(self, update: ImageUpdate) -> None:
        """Give a request its news; one that has ended is left alone."""
        in_flight = self._in_flight.get(update.request_id)
        if in_flight is None:
            return
        try:
            in_flight.on_output(_output(update, in_flight))
        except Exception:  # a caller's fault is the caller's alone
            logger.exception("The output callback of request %s raised.", update.request_id)
        if update.finished:
            with self._lock:
                del self._in_flight[update.request_id]
                if not self._in_flight:
                    self._lock.notify_all()


def _output(update: ImageUpdate, in_flight: _InFlight) -> ImageOutput:
    prepared, timings, now_s = in_flight.prepared, in_flight.timings, time.monotonic()
    if timings.first_scheduled_s is None and update.num_steps_done:
        timings.first_scheduled_s = now_s
    output = ImageOutput(
        prepared.client_request_id or prepared.request_id,
        [],
        finished=update.finished,
        num_prompt_tokens=0,
        timings=timings,
        position=update.position,
        num_steps_done=update.num_steps_done,
        num_steps=update.num_steps,
    )
    if update.image is not None and update.index is not None:
        output.images = [GeneratedImage(update.index, prepared.params.seed + update.index, update.image)]
    if update.finished:
        timings.finished_s = now_s
        reason = FinishReason.ABORT if update.is_aborted else FinishReason.STOP
        output.outputs = [SequenceOutput(0, finish_reason=FinishReason.ERROR if update.error else reason)]
        output.error, output.error_kind = update.error, update.error_kind
    return output
