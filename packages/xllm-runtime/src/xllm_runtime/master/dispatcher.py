"""From the engine side's step outputs to callbacks: text, stop strings, timings, each request's end.

One thread at a time does all of it, in the order in which the steps ran; a callback that raises is logged and changes
nothing. Knows nothing of how the messages travel, or of JSON.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from xllm_framework.errors import EngineDead, InvalidRequest, RequestFailed, ShuttingDown
from xllm_framework.request import FinishReason, RequestOutput, RequestTimings, SequenceOutput, TokenLogprob
from xllm_framework.request.messages import EngineFailed, EngineStats, FromEngine, Heartbeat, SequenceDelta, StepOutputs
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.master.best_of import BestOf
from xllm_runtime.master.front_side import AbortTarget
from xllm_runtime.master.heartbeat import EnginePulse
from xllm_runtime.master.prepared_request import PreparedRequest
from xllm_runtime.master.sequence_stream import SequenceStream, token_logprob

logger = logging.getLogger(__name__)
OnOutput = Callable[[RequestOutput], None]


MAX_DIRECT_DELTAS = 4
"""Sequences of a step up to which the thread that computes steps may call the callbacks itself: some 30 us each."""


class _Cancelled(str):
    """In the dispatcher's queue: the id of a request that its caller gave up."""

    __slots__ = ()


class _Received(NamedTuple):
    """In the dispatcher's queue: what came by `receive`."""

    event: FromEngine


DispatcherEvent = FromEngine | _Cancelled | _Received | None
"""What the dispatcher's queue holds; None ends its thread."""


class _InFlight:
    """A submitted request: its streams, and what its next output will carry."""

    __slots__ = (
        "best_of",
        "error",
        "has_ended",
        "is_cancelled",
        "is_new",
        "num_cached_tokens",
        "num_unfinished",
        "on_output",
        "prepared",
        "prompt_logprobs",
        "streams",
        "timings",
    )

    def __init__(self, prepared: PreparedRequest, tokenizer: Tokenizer, on_output: OnOutput) -> None:
        self.prepared = prepared
        self.on_output = on_output
        self.streams = [
            SequenceStream(index, tokenizer, prepared.sampling, is_continuation=prepared.is_continuation)
            for index in range(prepared.sampling.num_sequences)
        ]
        self.best_of = BestOf(prepared.sampling) if prepared.sampling.is_selecting else None
        self.num_unfinished = len(self.streams)
        self.timings = RequestTimings(prepared.message.arrival_time_s)
        self.num_cached_tokens = 0
        self.is_new = True
        self.is_cancelled = False
        self.has_ended = False
        self.error: tuple[str, str] | None = None
        self.prompt_logprobs: list[TokenLogprob | None] | None = None

    def accept(self, delta: SequenceDelta, now_s: float) -> SequenceOutput:
        """Take one delta of a sequence that has not ended."""
        timings = self.timings
        if delta.first_scheduled_time_s is not None:
            timings.first_scheduled_s = delta.first_scheduled_time_s
        if delta.token_ids:
            if timings.first_token_s is None:
                timings.first_token_s = now_s
            timings.last_token_s = now_s
        if delta.num_cached_tokens:
            self.num_cached_tokens = delta.num_cached_tokens
        if delta.error is not None:
            self.error = (delta.error, delta.error_kind or "internal")
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = [None if entry is None else token_logprob(entry) for entry in delta.prompt_logprobs]
        stream = self.streams[delta.index]
        output = stream.accept(delta)
        self.num_unfinished -= stream.is_finished
        return output

    def end(self, reason: FinishReason) -> list[SequenceOutput]:
        """End every sequence that has not ended yet."""
        self.num_unfinished = 0
        return [stream.end(reason) for stream in self.streams if not stream.is_finished]

    def take_back(self, outputs: list[SequenceOutput]) -> None:
        """Forget that sequences ended with `outputs`, which were not delivered: their end is still to be told."""
        for output in outputs:
            self.streams[output.index].is_finished = False

    def output(self, outputs: list[SequenceOutput]) -> RequestOutput:
        """Return the request's next output, made of its sequences' `outputs`."""
        prepared = self.prepared
        if self.best_of is not None:
            self.best_of.keep(outputs)
            outputs = self.best_of.select()
        result = RequestOutput(
            prepared.client_request_id or prepared.request_id,
            outputs,
            finished=self.num_unfinished == 0,
            num_prompt_tokens=len(prepared.prompt_token_ids),
            num_cached_tokens=self.num_cached_tokens,
            timings=self.timings,
        )
        if self.is_new:
            self.is_new = False
            result.prompt = prepared.prompt
            result.prompt_token_ids = prepared.prompt_token_ids
        if self.prompt_logprobs is not None:
            result.prompt_logprobs, self.prompt_logprobs = self.prompt_logprobs, None
        if result.finished and self.error is not None:
            result.error, result.error_kind = self.error
        return result


class RequestOutputDispatcher:
    """Owns the requests in flight, and a thread that calls their callbacks, except during `take` and `receive`.

    Args:
        events: where the engine side's messages arrive, in order, unless `take` gets them.
        abort: tells the engine side to stop requests or single sequences; must not block.
        on_failure: called on the dispatcher's thread, once, after every request in flight got its error.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        events: queue.SimpleQueue[DispatcherEvent],
        tokenizer: Tokenizer,
        abort: Callable[[list[AbortTarget]], None],
        on_failure: Callable[[EngineFailed], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._abort = abort
        self._on_failure = on_failure
        self._clock = clock
        self._events = events
        self._in_flight: dict[str, _InFlight] = {}
        self._lock = threading.Condition()
        """Guards additions against `failure`; notified when the last request in flight has ended."""
        self._turn = threading.Lock()
        """Held while an event is handled."""
        self._turn_of = 0
        """The thread that holds it, or 0."""
        self._num_received = 0
        """Messages that `receive` has left to the thread."""
        self._num_done = 0
        """Those of them that the thread has handled."""
        self._thread = threading.Thread(target=self._run, name="xllm-dispatcher", daemon=True)
        self.failure: EngineFailed | None = None
        """Why nothing more will come, once that is so."""
        self.stats = EngineStats()
        """As of the latest step."""
        self.pulse = EnginePulse(clock)
        """Whether the engine side is alive."""

    @property
    def num_in_flight(self) -> int:
        """Requests that were added and have not ended."""
        return len(self._in_flight)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def take(self, event: FromEngine | _Cancelled) -> None:
        """Handle a message of the engine side on the calling thread, which must be the only one that brings any."""
        with self._turn:
            self._turn_of = threading.get_ident()
            try:
                self._handle(event)
            except Exception:  # the thread serves everybody: a fault of ours must not end it
                logger.exception("Dispatching an output failed.")
            finally:
                self._turn_of = 0

    def receive(self, event: FromEngine) -> None:
        """Handle a small step's outputs on the calling thread, and leave the rest to the dispatcher's own, in order.

        The calling thread must be the only one that brings any message. Callbacks must not wait.
        """
        is_small = isinstance(event, StepOutputs) and len(event.deltas) <= MAX_DIRECT_DELTAS
        if is_small and self._num_done == self._num_received:
            self.take(event)
            return
        self._num_received += 1
        self._events.put(_Received(event))

    def add(self, prepared: PreparedRequest, on_output: OnOutput) -> None:
        """Register a request before it is sent.

        Raises:
            EngineDead: the engine side has ended.
            InvalidRequest: the very same request is in flight.
        """
        in_flight = _InFlight(prepared, self._tokenizer, on_output)
        with self._lock:
            if self.failure is not None:
                raise EngineDead(self.failure.message)
            if prepared.request_id in self._in_flight:
                raise InvalidRequest(f"Request {prepared.request_id} was submitted already.")
            self._in_flight[prepared.request_id] = in_flight

    def cancel(self, request_id: str) -> None:
        """Give a request up: one last output with `FinishReason.ABORT` follows. Unknown ids are ignored."""
        in_flight = self._in_flight.get(request_id)
        if in_flight is None or in_flight.is_cancelled:
            return
        in_flight.is_cancelled = True
        self._abort([request_id])
        self._events.put(_Cancelled(request_id))

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
        if self._thread.is_alive() and threading.get_ident() not in (self._thread.ident, self._turn_of):
            self._thread.join()
        with self._lock:
            self.failure = self.failure or EngineFailed("The engine is closed.", ShuttingDown.kind)
            left = list(self._in_flight.values())
        for in_flight in left:
            self._finish(in_flight, in_flight.end(FinishReason.ABORT))

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            if isinstance(event, _Received):
                self.take(event.event)
                self._num_done += 1
            else:
                self.take(event)

    def _handle(self, event: FromEngine | _Cancelled) -> None:
        if isinstance(event, StepOutputs):
            self._dispatch(event)
        elif isinstance(event, Heartbeat):
            self.pulse.beat(event)
        elif isinstance(event, _Cancelled):
            if (in_flight := self._in_flight.get(event)) is not None:
                self._finish(in_flight, in_flight.end(FinishReason.ABORT))
        elif isinstance(event, EngineFailed):
            self._fail_all(event)

    def _dispatch(self, step: StepOutputs) -> None:
        """Give each request what the step brought it, in one output."""
        self.stats = step.stats
        now_s = self._clock()
        news: dict[str, list[SequenceOutput]] = {}
        stopped: list[AbortTarget] = []
        for delta in step.deltas:
            in_flight = self._in_flight.get(delta.request_id)
            if in_flight is None or in_flight.is_cancelled or in_flight.streams[delta.index].is_finished:
                continue
            try:
                output = in_flight.accept(delta, now_s)
            except Exception as error:  # a fault of ours must not cost the other requests their step
                logger.exception("The output of request %s cannot be decoded.", delta.request_id)
                in_flight.error = (f"The output cannot be decoded: {error}", RequestFailed.kind)
                stopped.append(delta.request_id)
                self._finish(in_flight, in_flight.end(FinishReason.ERROR))
                news.pop(delta.request_id, None)
                continue
            news.setdefault(delta.request_id, []).append(output)
            if output.finish_reason is not None and delta.finish_reason is None:
                stopped.append((delta.request_id, delta.index) if in_flight.num_unfinished else delta.request_id)
        if stopped:
            self._abort(stopped)
        for request_id, outputs in news.items():
            in_flight = self._in_flight[request_id]
            if in_flight.is_cancelled:
                in_flight.take_back(outputs)
            elif in_flight.num_unfinished and in_flight.best_of is not None:
                in_flight.best_of.keep(outputs)
            elif in_flight.num_unfinished:
                self._call(in_flight, in_flight.output(outputs))
            else:
                self._finish(in_flight, outputs)

    def _fail_all(self, failure: EngineFailed) -> None:
        with self._lock:
            if self.failure is not None:
                return
            self.failure = failure
            lost = list(self._in_flight.values())
        for in_flight in lost:
            in_flight.error = (failure.message, EngineDead.kind)
            self._finish(in_flight, in_flight.end(FinishReason.ERROR))
        self._on_failure(failure)

    def _finish(self, in_flight: _InFlight, outputs: list[SequenceOutput]) -> None:
        """Give a request its last output and forget it; once, also when its callback closes us."""
        if in_flight.has_ended:
            return
        in_flight.has_ended = True
        in_flight.timings.finished_s = self._clock()
        self._call(in_flight, in_flight.output(outputs))
        with self._lock:
            del self._in_flight[in_flight.prepared.request_id]
            if not self._in_flight:
                self._lock.notify_all()

    @staticmethod
    def _call(in_flight: _InFlight, output: RequestOutput) -> None:
        try:
            in_flight.on_output(output)
        except Exception:  # a caller's fault is the caller's alone
            logger.exception("The output callback of request %s raised.", in_flight.prepared.request_id)
