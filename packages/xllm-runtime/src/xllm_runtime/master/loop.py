"""The engine side's loop: schedule, execute, update, until told to stop.

What may not be added here: text, sockets, tensors, or a decision about who runs. The loop never waits for a client: it
takes messages from an inbox and hands outputs to `emit`, which must not block.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable

import msgspec

from xllm_framework.batch import BatchGroup, ForwardOutput
from xllm_framework.constraint import Grammar
from xllm_framework.errors import EngineDead, RequestFailed, XLLMError
from xllm_framework.request import FinishReason, Request
from xllm_framework.request.messages import (
    AbortRequests,
    AddRequest,
    EngineStats,
    Pause,
    Resume,
    SequenceDelta,
    Shutdown,
    StartProfile,
    StepOutputs,
    StopProfile,
)
from xllm_runtime.master.archive_fetcher import ArchiveFetcher, FetchedRequest
from xllm_runtime.master.constrained_requests import (
    CompiledRequest,
    Compiler,
    ConstrainedRequests,
    LoopMessage,
    Unconstrained,
)
from xllm_runtime.master.isolation import execute_one_by_one
from xllm_runtime.master.profiling import StepProfiler
from xllm_runtime.master.steps_in_flight import NOTHING_IN_FLIGHT, OverlappedEngine, StepInFlight
from xllm_scheduler import Scheduler
from xllm_scheduler.pause import PauseMode

logger = logging.getLogger(__name__)


class EngineLoop:
    """Runs `engine` on what `scheduler` plans. Everything happens on the thread that calls `run`.

    Args:
        inbox: messages from the front side.
        emit: takes the outputs of each step; must not block.
        is_overlapped: plan each step while the one before it is computed; only for an `OverlappedEngine`.
        compiler: makes grammars of constraints; None refuses constrained requests.
        fetcher: lets new requests wait for blocks from an archive; None where there is none.
        profiler: records what the loop does when it is asked to; None refuses.
        check_integrity: check the scheduler's and the cache's invariants after each step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engine: OverlappedEngine,
        inbox: queue.SimpleQueue[LoopMessage],
        emit: Callable[[StepOutputs], None],
        *,
        is_overlapped: bool = False,
        compiler: Compiler | None = None,
        fetcher: ArchiveFetcher | None = None,
        profiler: StepProfiler | None = None,
        check_integrity: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._inbox = inbox
        self._emit = emit
        self._check_integrity = check_integrity
        self._fetcher = fetcher
        self._constrained = ConstrainedRequests(compiler or Unconstrained(), inbox.put)
        self._profiler = profiler or StepProfiler("")
        self._in_flight = NOTHING_IN_FLIGHT
        self.next_step = self.step_overlapped if is_overlapped else self.step
        self.step_began_s: float | None = None
        """Reading of the monotonic clock at the begin of the step under way. Read on other threads."""
        self._failures: dict[str, str] = {}
        """Requests that failed in the step under way, and were aborted: request id -> why."""

    def run(self) -> None:
        """Step while there is work, wait for messages while there is none; return after `Shutdown`.

        Raises:
            EngineDead: the engine is gone.
            IntegrityError: an invariant does not hold.
        """
        while self._take_messages():
            self.step_began_s = time.monotonic()
            self.next_step()
            self.step_began_s = None

    @property
    def has_work(self) -> bool:
        """Whether a step would do or report anything, or one is still in flight."""
        return self._scheduler.has_work or not self._in_flight.group.is_empty

    def step(self) -> None:
        """Schedule, execute, update: compute one step and emit what it brought."""
        group = self._scheduler.schedule()
        self._finish(*self._execute(group))

    def step_overlapped(self) -> None:
        """Plan and send a step while the one before it is computed; then take that one's results and emit what it brought."""
        group = self._scheduler.schedule()
        in_flight, self._in_flight = self._in_flight, StepInFlight.send(self._engine, group)
        self._finish(*self._collect(in_flight))

    def _finish(self, computed: BatchGroup, outputs: list[ForwardOutput]) -> None:
        """Let the scheduler take a step's results, and emit what it makes of them."""
        deltas = self._scheduler.update(computed, outputs)
        self._explain_failures(deltas)
        self._emit(StepOutputs(deltas, self._stats()))
        if self._check_integrity:
            self._scheduler.check_integrity()

    def _take_messages(self) -> bool:
        """Apply all messages that have arrived, and wait for one while idle. False after `Shutdown`."""
        while True:
            try:
                message = self._inbox.get(block=not self.has_work)
            except queue.Empty:
                return True
            if isinstance(message, Shutdown):
                return False
            self.apply(message)

    def apply(self, message: LoopMessage) -> None:
        """Add a request, or one whose grammar is compiled, abort some, pause, resume or profile; between two steps."""
        match message:
            case AddRequest():
                self._begin(message)
            case CompiledRequest():
                self._go_on(message)
            case AbortRequests():
                self._abort(message.request_ids)
            case FetchedRequest():
                self._start_fetched(message)
            case Pause():
                self._scheduler.pause(PauseMode(message.mode))
            case Resume():
                self._scheduler.resume()
                self._emit(StepOutputs([], self._stats()))
            case StartProfile():
                self._profiler.start()
                self._emit(StepOutputs([], self._stats()))
            case StopProfile():
                self._profiler.stop()
                self._emit(StepOutputs([], self._stats()))

    def _begin(self, message: AddRequest) -> None:
        """Add a request, or let it wait for its grammar."""
        if message.sampling.constraint is None:
            self._add(message, None)
        elif (grammar := self._constrained.find(message)) is not None:
            self._add(message, grammar)

    def _go_on(self, compiled: CompiledRequest) -> None:
        """Add a request that has waited for its grammar, unless it has ended meanwhile or there is none."""
        aborted = self._constrained.take(compiled)
        message = compiled.message
        if aborted is None:
            return
        if compiled.error is not None:
            self._refuse(message, compiled.error)
            return
        self._add(message, compiled.grammar)
        if aborted:
            self._abort([(message.request_id, index) for index in aborted])

    def _start_fetched(self, fetched: FetchedRequest) -> None:
        """Add a request that has waited for blocks from an archive, unless it has ended meanwhile."""
        aborted = None if self._fetcher is None else self._fetcher.take(fetched)
        if aborted is not None:
            self._scheduler.add_request(fetched.request)
            self._scheduler.abort([(fetched.request.request_id, index) for index in aborted])

    def _abort(self, targets: list[str | tuple[str, int]]) -> None:
        """End requests, or single sequences, wherever they are."""
        deltas = self._constrained.abort(targets)
        if self._fetcher is not None:
            deltas += self._fetcher.abort(targets)
        if deltas:
            self._emit(StepOutputs(deltas, self._stats()))
        self._scheduler.abort(targets)

    def _add(self, message: AddRequest, grammar: Grammar | None) -> None:
        try:
            request = _request(message)
            if grammar is not None:
                for sequence in request.sequences:
                    sequence.constraint_state = grammar.new_state()
            if self._fetcher is None or not self._fetcher.begin(request, self._inbox.put):
                self._scheduler.add_request(request)
        except XLLMError as error:
            self._refuse(message, error)

    def _refuse(self, message: AddRequest, error: XLLMError) -> None:
        """Tell the end of a request that the scheduler does not have."""
        deltas = [
            SequenceDelta(message.request_id, index, [], FinishReason.ERROR, error=error.message, error_kind=error.kind)
            for index in range(message.sampling.num_sequences)
        ]
        self._emit(StepOutputs(deltas, self._stats()))

    def _stats(self) -> EngineStats:
        stats = self._scheduler.stats()
        stats.pause_state = self._scheduler.pause_state.value
        stats.profile = self._profiler.state
        return stats

    def _execute(self, group: BatchGroup) -> tuple[BatchGroup, list[ForwardOutput]]:
        """Execute `group`; when that fails, what of it can be executed, and abort the requests that cannot."""
        if group.is_empty:
            return group, []
        try:
            return group, self._engine.execute(group)
        except EngineDead:
            raise
        except Exception as error:  # whatever a model raises; the requests to blame get it
            _warn_of(error)
        return self._isolate(group)

    def _collect(self, step: StepInFlight) -> tuple[BatchGroup, list[ForwardOutput]]:
        """Wait for `step`; when it failed, drop the one after it, which counts on it, and do as `_execute` does."""
        try:
            return step.group, step.collect(self._engine)
        except EngineDead:
            raise
        except Exception as error:  # whatever a model raises; the requests to blame get it
            _warn_of(error)
        self._in_flight.discard(self._engine)
        self._in_flight = NOTHING_IN_FLIGHT
        return self._isolate(self._scheduler.rewind(step.group))

    def _isolate(self, group: BatchGroup) -> tuple[BatchGroup, list[ForwardOutput]]:
        """Execute what can be executed of a step that failed, and abort the requests to blame."""
        isolated = execute_one_by_one(self._engine, group)
        self._failures |= isolated.failures
        self._scheduler.abort(list(isolated.failures))
        return isolated.group, isolated.outputs

    def _explain_failures(self, deltas: list[SequenceDelta]) -> None:
        """Where the scheduler says that a failed request was aborted, say that it failed, and why."""
        for position, delta in enumerate(deltas if self._failures else ()):
            if delta.request_id in self._failures and delta.finish_reason == FinishReason.ABORT:
                why = self._failures[delta.request_id]
                deltas[position] = msgspec.structs.replace(
                    delta, finish_reason=FinishReason.ERROR, error=why, error_kind=RequestFailed.kind
                )
        self._failures.clear()


def _warn_of(error: Exception) -> None:
    logger.warning("A step failed (%s: %s); looking for the request to blame.", type(error).__name__, error)


def _request(message: AddRequest) -> Request:
    return Request(
        message.request_id,
        message.prompt_token_ids,
        message.sampling,
        arrival_time_s=message.arrival_time_s,
        seed=message.seed,
        priority=message.priority,
        deadline_s=message.deadline_s,
        cache_salt=message.cache_salt,
        is_offline=message.is_offline,
        objectives=message.objectives,
        media=message.media,
        pooling=message.pooling,
    )
