"""From what the engine side has found to callbacks: texts, timings, each search's end. One thread does all of it.

A callback that raises is logged and changes nothing. Knows nothing of how the messages travel, or of JSON.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from xllm_framework.errors import EngineDead, InvalidRequest, ShuttingDown
from xllm_framework.request import FinishReason, RequestOutput, RequestTimings, SequenceOutput, TokenLogprob
from xllm_framework.request.messages import EngineFailed, EngineStats, Heartbeat, SearchOutputs, StepOutputs
from xllm_framework.request.rec_messages import CatalogueChanged, FoundPath, FoundPaths
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.master.heartbeat import EnginePulse
from xllm_runtime.master.rec_request import PreparedSearch

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class SearchOutput(RequestOutput):
    """The one output of a search: `outputs` holds the paths as sequences, best first, `paths` the items."""

    paths: list[FoundPath] = field(default_factory=list)
    catalogue_version: int = 0


OnSearchOutput = Callable[[SearchOutput], None]


@dataclass(slots=True)
class _InFlight:
    prepared: PreparedSearch
    on_output: OnSearchOutput


class _Cancelled(str):
    """In the dispatcher's queue: the id of a search that its caller gave up."""

    __slots__ = ()


class SearchDispatcher:
    """Owns the searches in flight, and the thread that calls their callbacks.

    Args:
        events: where the engine side's messages arrive, in order.
        tokenizer: None leaves the texts of paths empty.
        on_failure: called on the dispatcher's thread, once, after every search in flight got its error.
    """

    def __init__(
        self, events: queue.SimpleQueue[Any], tokenizer: Tokenizer | None, on_failure: Callable[[EngineFailed], None]
    ) -> None:
        self._events = events
        self._tokenizer = tokenizer
        self._on_failure = on_failure
        self._in_flight: dict[str, _InFlight] = {}
        self._changes: dict[int, Future[CatalogueChanged]] = {}
        self._lock = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="xllm-dispatcher", daemon=True)
        self.failure: EngineFailed | None = None
        """Why nothing more will come, once that is so."""
        self.stats = EngineStats()
        self.pulse = EnginePulse()

    @property
    def num_in_flight(self) -> int:
        """Searches that were added and have not ended."""
        return len(self._in_flight)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, prepared: PreparedSearch, on_output: OnSearchOutput) -> None:
        """Register a search before it is sent.

        Raises:
            EngineDead: the engine side has ended.
            InvalidRequest: the very same search is in flight.
        """
        with self._lock:
            self._check_alive()
            if prepared.request_id in self._in_flight:
                raise InvalidRequest(f"Request {prepared.request_id} was submitted already.")
            self._in_flight[prepared.request_id] = _InFlight(prepared, on_output)

    def expect_change(self, number: int) -> Future[CatalogueChanged]:
        """Return what the answer to `ChangeCatalogue` `number` will be put into; raises `EngineDead` as `add` does."""
        future: Future[CatalogueChanged] = Future()
        with self._lock:
            self._check_alive()
            self._changes[number] = future
        return future

    def cancel(self, request_id: str) -> bool:
        """Give a search up: one last output with `FinishReason.ABORT` follows. False for unknown ids."""
        if request_id not in self._in_flight:
            return False
        self._events.put(_Cancelled(request_id))
        return True

    def in_flight_ids(self) -> list[str]:
        """Return the ids of all searches in flight."""
        return list(self._in_flight)

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no search is in flight; False when that takes longer than `timeout_s`."""
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
            case SearchOutputs():
                self.stats = event.stats
                for result in event.results:
                    self._finish(result.request_id, partial(self._output, result))
            case StepOutputs():
                self.stats = event.stats
            case Heartbeat():
                self.pulse.beat(event)
            case CatalogueChanged():
                if (future := self._changes.pop(event.number, None)) is not None:
                    future.set_result(event)
            case _Cancelled():
                self._finish(event, lambda prepared: _ended(prepared, FinishReason.ABORT))
            case EngineFailed():
                self._end_all(event, FinishReason.ERROR)
                self._on_failure(event)
            case _:
                logger.error("The engine side says something unknown: %s.", type(event).__name__)

    def _end_all(self, failure: EngineFailed, reason: FinishReason) -> None:
        """End every search and every change of the catalogue."""
        with self._lock:
            self.failure = self.failure or failure
            changes, self._changes = self._changes, {}
        for request_id in self.in_flight_ids():
            self._finish(request_id, lambda prepared: _ended(prepared, reason, failure))
        for future in changes.values():
            future.set_exception(EngineDead(failure.message))

    def _finish(self, request_id: str, output: Callable[[PreparedSearch], SearchOutput]) -> None:
        """Give a search its output and forget it; a search that has ended is left alone."""
        in_flight = self._in_flight.get(request_id)
        if in_flight is None:
            return
        try:
            in_flight.on_output(output(in_flight.prepared))
        except Exception:  # a caller's fault is the caller's alone
            logger.exception("The output callback of request %s raised.", request_id)
        with self._lock:
            del self._in_flight[request_id]
            if not self._in_flight:
                self._lock.notify_all()

    def _output(self, found: FoundPaths, prepared: PreparedSearch) -> SearchOutput:
        if found.error is not None:
            return _ended(prepared, FinishReason.ERROR, EngineFailed(found.error, found.error_kind or "internal"))
        now_s = time.monotonic()
        output = _new_output(prepared)
        output.outputs = [self._sequence(index, path) for index, path in enumerate(found.paths)]
        output.paths, output.catalogue_version = found.paths, found.catalogue_version
        output.num_cached_tokens = found.num_cached_tokens
        output.timings = RequestTimings(
            prepared.message.arrival_time_s, found.first_scheduled_time_s, now_s, now_s, now_s
        )
        return output

    def _sequence(self, index: int, path: FoundPath) -> SequenceOutput:
        text = "" if self._tokenizer is None else self._tokenizer.decode(path.token_ids, skip_special_tokens=False)
        logprobs = [TokenLogprob(*pair, []) for pair in zip(path.token_ids, path.logprobs, strict=True)]
        return SequenceOutput(
            index, text, path.token_ids, logprobs, FinishReason.STOP, num_output_tokens=len(path.token_ids)
        )


def _new_output(prepared: PreparedSearch) -> SearchOutput:
    return SearchOutput(
        prepared.client_request_id or prepared.request_id,
        [],
        finished=True,
        num_prompt_tokens=len(prepared.prompt_token_ids),
        prompt=prepared.prompt,
        prompt_token_ids=prepared.prompt_token_ids,
    )


def _ended(prepared: PreparedSearch, reason: FinishReason, failure: EngineFailed | None = None) -> SearchOutput:
    """Return the output of a search that came to nothing."""
    output = _new_output(prepared)
    output.outputs = [SequenceOutput(0, finish_reason=reason)]
    if failure is not None and reason is FinishReason.ERROR:
        output.error, output.error_kind = failure.message, failure.kind
    return output
