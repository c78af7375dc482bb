"""The rec backend's engine side: searches in, batches to idle pipelines, answers out, until told to stop.

The loop sleeps until something arrives: a message of the front side, the end of a batch, a catalogue that was read. It never
waits for a pipeline. Knows nothing of text, sockets or tensors.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xllm_framework.errors import DeadlineExceeded, XLLMError
from xllm_framework.kv_cache import BlockManager
from xllm_framework.rec import Catalogue, CatalogueStore
from xllm_framework.request.messages import (
    AbortRequests,
    EngineStats,
    FromEngine,
    Pause,
    Resume,
    SearchOutputs,
    Shutdown,
)
from xllm_framework.request.rec_messages import AddSearch, CatalogueChanged, ChangeCatalogue, FoundPaths
from xllm_runtime.master.rec_pipelines import BatchDone, Pipelines
from xllm_scheduler.fixed_steps import FixedStepsScheduler


@dataclass(frozen=True, slots=True)
class CatalogueRead:
    """A catalogue that a thread has read, or why it could not."""

    number: int
    catalogue: Catalogue | XLLMError


class RecLoop:
    """Everything happens on the thread that calls `run`, except for what pipelines and readers of catalogues do.

    Args:
        store: the catalogues; None searches without one.
        read_catalogue: (path, is extended) -> a catalogue that fits the model, or raises `XLLMError`; on any thread.
        emit: must not block.
        check_integrity: check the cache's invariants after each batch.
    """

    def __init__(
        self,
        scheduler: FixedStepsScheduler,
        block_manager: BlockManager,
        store: CatalogueStore | None,
        read_catalogue: Callable[[Path, bool], Catalogue],
        inbox: queue.SimpleQueue[Any],
        emit: Callable[[FromEngine], None],
        *,
        check_integrity: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._blocks = block_manager
        self._store = store
        self._read_catalogue = read_catalogue
        self._inbox = inbox
        self._emit = emit
        self._check_integrity = check_integrity
        self._is_paused = False
        self._step_time_s = 0.0
        self.pipelines: Pipelines | None = None
        """Set before `run`; they put their `BatchDone` into the inbox."""

    @property
    def step_began_s(self) -> float | None:
        """When the oldest batch under way began; see `Stepping`."""
        return None if self.pipelines is None else self.pipelines.began_s

    def run(self) -> None:
        """Serve until `Shutdown`, then end the pipelines."""
        assert self.pipelines is not None, "whoever makes the loop sets it"
        while not isinstance(message := self._inbox.get(), Shutdown):
            self.apply(message)
            self._start_batches(self.pipelines)
        self.pipelines.close()

    def apply(self, message: object) -> None:
        """Take one message; others than those of this backend are ignored."""
        match message:
            case AddSearch():
                self._add(message)
            case BatchDone():
                self._finish(message)
            case AbortRequests():
                self._scheduler.abort(target for target in message.request_ids if isinstance(target, str))
            case ChangeCatalogue():
                self._change_catalogue(message)
            case CatalogueRead():
                self._replace_catalogue(message)
            case Pause() | Resume():
                self._is_paused = isinstance(message, Pause)
                self._emit(SearchOutputs([], self._stats()))
            case _:
                pass

    def _add(self, message: AddSearch) -> None:
        try:
            self._scheduler.add(message)
        except XLLMError as error:
            self._refuse(message.request_id, error)

    def _refuse(self, request_id: str, error: XLLMError) -> None:
        result = FoundPaths(request_id, error=error.message, error_kind=error.kind)
        self._emit(SearchOutputs([result], self._stats()))

    def _start_batches(self, pipelines: Pipelines) -> None:
        """Give the idle pipelines what can run."""
        while pipelines.has_idle and not self._is_paused:
            decision = self._scheduler.schedule(time.monotonic())
            for search in decision.expired:
                error = DeadlineExceeded("The request's deadline passed before its search began.")
                self._refuse(search.message.request_id, error)
            if not decision.batch:
                return
            pipelines.start(decision.batch, None if self._store is None else self._store.served)

    def _finish(self, done: BatchDone) -> None:
        """Free a batch's blocks and send its answers."""
        assert self.pipelines is not None
        self.pipelines.take_back(done)
        self._step_time_s += done.duration_s
        wanted = [result for result, search in zip(done.results, done.batch, strict=True) if not search.is_aborted]
        self._scheduler.finish(done.batch, is_computed=done.is_computed)
        self._emit(SearchOutputs(wanted, self._stats()))
        if self._check_integrity:
            self._scheduler.check_integrity()

    def _change_catalogue(self, message: ChangeCatalogue) -> None:
        """Read the catalogue on a thread of its own, so that searches go on meanwhile; or go back at once."""
        if self._store is None:
            error = "The server searches without a catalogue (enable_constrained_decoding is off)."
            self._emit(CatalogueChanged(message.number, error=error))
        elif message.path:
            threading.Thread(target=self._read, args=(message,), name="xllm-catalogue", daemon=True).start()
        else:
            self._answer_change(message.number, self._store.roll_back)

    def _read(self, message: ChangeCatalogue) -> None:
        catalogue: Catalogue | XLLMError
        try:
            catalogue = self._read_catalogue(Path(message.path), message.is_extended)
        except XLLMError as error:
            catalogue = error
        except Exception as error:  # a reader's fault must be told, not lost with its thread
            catalogue = XLLMError(f"The catalogue {message.path} cannot be read: {type(error).__name__}: {error}.")
        self._inbox.put(CatalogueRead(message.number, catalogue))

    def _replace_catalogue(self, read: CatalogueRead) -> None:
        assert self._store is not None
        if isinstance(read.catalogue, XLLMError):
            self._emit(CatalogueChanged(read.number, self._store.served.version, error=read.catalogue.message))
            return
        catalogue, store = read.catalogue, self._store
        self._answer_change(read.number, lambda: store.replace(catalogue))

    def _answer_change(self, number: int, change: Callable[[], Any]) -> None:
        assert self._store is not None
        try:
            change()
        except XLLMError as error:
            self._emit(CatalogueChanged(number, self._store.served.version, error=error.message))
            return
        catalogue, version = self._store.served
        self._emit(CatalogueChanged(number, version, catalogue.items.num_items, catalogue.paths.num_leaves))

    def _stats(self) -> EngineStats:
        counters = self._scheduler.counters
        is_busy = self._scheduler.num_running > 0
        return EngineStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            num_blocks=self._blocks.num_usable_blocks,
            num_free_blocks=self._blocks.num_free_blocks,
            num_cached_blocks=self._blocks.num_cached_blocks,
            num_steps=counters.num_batches,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_generated_tokens=counters.num_generated_tokens,
            prefix_cache_queries=counters.prefix_cache_queries,
            prefix_cache_hits=counters.prefix_cache_hits,
            step_time_s=self._step_time_s,
            pause_state=("pausing" if is_busy else "paused") if self._is_paused else "running",
        )
