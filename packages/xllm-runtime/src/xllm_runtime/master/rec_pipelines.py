"""The threads that run batches of searches, and what comes of a batch. Knows nothing of queues of requests or of messages.

A pipeline takes one batch at a time and puts a `BatchDone` into the loop's inbox, which wakes the loop: nobody polls.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from xllm_framework.batch.search_batch import FoundBeams
from xllm_framework.errors import RequestFailed, XLLMError
from xllm_framework.rec.catalogue_store import Served
from xllm_framework.request.rec_messages import FoundPaths
from xllm_runtime.engine.rec import RecEngine, SearchedPrompt
from xllm_runtime.master.rec_conversion import PathConversion
from xllm_runtime.worker.rec import Searcher
from xllm_scheduler.fixed_steps import Search

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class BatchDone:
    """The end of a batch."""

    pipeline: int
    batch: list[Search]
    results: list[FoundPaths] = field(default_factory=list)
    is_computed: bool = True
    """Whether the KV of all prompts is in the cache."""
    duration_s: float = 0.0


class Pipelines:
    """One thread for each searcher of `engine`; used by the loop's thread.

    Args:
        done: takes what a pipeline has finished; must not block.
        conversion: makes answers of paths.
    """

    def __init__(self, engine: RecEngine, done: Callable[[BatchDone], None], conversion: PathConversion) -> None:
        self._engine = engine
        self._done = done
        self._conversion = conversion
        self._idle = list(range(len(engine.searchers)))
        self._began_s: dict[int, float] = {}
        self._inboxes: list[queue.SimpleQueue[tuple[list[Search], Served | None] | None]] = [
            queue.SimpleQueue() for _ in engine.searchers
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(index, searcher), name=f"xllm-pipeline-{index}", daemon=True)
            for index, searcher in enumerate(engine.searchers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def has_idle(self) -> bool:
        """Whether a batch could begin now."""
        return bool(self._idle)

    @property
    def began_s(self) -> float | None:
        """When the oldest batch under way began; None when there is none. Any thread."""
        return min(self._began_s.copy().values(), default=None)

    def start(self, batch: list[Search], served: Served | None) -> None:
        """Give a batch to an idle pipeline; it searches the paths of `served`, or all."""
        index = self._idle.pop()
        self._began_s[index] = time.monotonic()
        self._inboxes[index].put((batch, served))

    def take_back(self, done: BatchDone) -> None:
        """Count a pipeline that has said `BatchDone` as idle again."""
        del self._began_s[done.pipeline]
        self._idle.append(done.pipeline)

    def close(self) -> None:
        """End the threads after the batches under way."""
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, index: int, searcher: Searcher) -> None:
        while (work := self._inboxes[index].get()) is not None:
            batch, served = work
            began_s = time.monotonic()
            try:
                done = BatchDone(index, batch, self._search(searcher, batch, served))
            except Exception as error:  # whatever a model raises
                logger.warning("A batch failed (%s: %s); trying its searches alone.", type(error).__name__, error)
                done = BatchDone(index, batch, self._search_alone(searcher, batch, served), is_computed=False)
            done.duration_s = time.monotonic() - began_s
            self._done(done)

    def _search(self, searcher: Searcher, batch: list[Search], served: Served | None) -> list[FoundPaths]:
        prompts = [
            SearchedPrompt(search.sequence, search.params, search.message.seed, search.message.tensors)
            for search in batch
        ]
        paths = None if served is None else served.catalogue.paths
        scheduled_s = time.monotonic()
        found = searcher.search(self._engine.batch(prompts, paths))
        return [self._answer(search, beams, served, scheduled_s) for search, beams in zip(batch, found, strict=True)]

    def _search_alone(self, searcher: Searcher, batch: list[Search], served: Served | None) -> list[FoundPaths]:
        """Search one at a time, so that only those fail which are to blame."""
        results = []
        for search in batch:
            try:
                results += self._search(searcher, [search], served)
            except Exception as error:  # whatever a model raises is this search's failure
                message = error.message if isinstance(error, XLLMError) else f"{type(error).__name__}: {error}"
                results.append(FoundPaths(search.message.request_id, error=message, error_kind=RequestFailed.kind))
        return results

    def _answer(self, search: Search, beams: FoundBeams, served: Served | None, scheduled_s: float) -> FoundPaths:
        return FoundPaths(
            search.message.request_id,
            self._conversion.paths(beams, search.params, served, search.message.seed),
            num_cached_tokens=search.sequence.num_cached_tokens,
            first_scheduled_time_s=scheduled_s,
            catalogue_version=0 if served is None else served.version,
        )
