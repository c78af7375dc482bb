"""From what the engine side has found to callbacks: texts, timings, changes of the catalogue. Knows nothing of JSON."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from xllm_framework.errors import EngineDead
from xllm_framework.request import FinishReason, RequestOutput, SequenceOutput, TokenLogprob
from xllm_framework.request.messages import EngineFailed, SearchOutputs, StepOutputs
from xllm_framework.request.rec_messages import CatalogueChanged, FoundPath, FoundPaths
from xllm_framework.tokenizer import Tokenizer
from xllm_runtime.master.front_side import AbortTarget
from xllm_runtime.master.rec_request import PreparedSearch
from xllm_runtime.master.whole_outputs import InFlight, WholeOutputDispatcher

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class SearchOutput(RequestOutput):
    """The one output of a search: `outputs` holds the paths as sequences, best first, `paths` the items."""

    paths: list[FoundPath] = field(default_factory=list)
    catalogue_version: int = 0


OnSearchOutput = Callable[[SearchOutput], None]


_Search = InFlight[PreparedSearch, SearchOutput]


class SearchDispatcher(WholeOutputDispatcher[PreparedSearch, SearchOutput]):
    """Owns the searches in flight and the changes of the catalogue; see `WholeOutputDispatcher`.

    Args:
        tokenizer: None leaves the texts of paths empty.
    """

    def __init__(
        self,
        events: queue.SimpleQueue[Any],
        tokenizer: Tokenizer | None,
        abort: Callable[[list[AbortTarget]], None],
        on_failure: Callable[[EngineFailed], None],
    ) -> None:
        super().__init__(events, abort, on_failure)
        self._tokenizer = tokenizer
        self._changes: dict[int, Future[CatalogueChanged]] = {}

    def expect_change(self, number: int) -> Future[CatalogueChanged]:
        """Return what the answer to `ChangeCatalogue` `number` will be put into; raises `EngineDead` as `add` does."""
        future: Future[CatalogueChanged] = Future()
        with self._lock:
            self._check_alive()
            self._changes[number] = future
        return future

    def _take(self, event: object) -> None:
        match event:
            case SearchOutputs():
                self.stats = event.stats
                for result in event.results:
                    self._deliver(result.request_id, partial(self._output, result))
            case StepOutputs():
                self.stats = event.stats
            case CatalogueChanged():
                if (future := self._changes.pop(event.number, None)) is not None:
                    future.set_result(event)
            case _:
                logger.error("The engine side says something unknown: %s.", type(event).__name__)

    def _end_all(self, failure: EngineFailed, reason: FinishReason) -> None:
        """End every search and every change of the catalogue."""
        super()._end_all(failure, reason)
        with self._lock:
            changes, self._changes = self._changes, {}
        for future in changes.values():
            future.set_exception(EngineDead(failure.message))

    def _ended(self, in_flight: _Search, reason: FinishReason, failure: EngineFailed | None) -> SearchOutput:
        output = _new_output(in_flight.prepared)
        output.outputs = [SequenceOutput(0, finish_reason=reason)]
        if failure is not None and reason is FinishReason.ERROR:
            output.error, output.error_kind = failure.message, failure.kind
        return output

    def _output(self, found: FoundPaths, in_flight: _Search) -> SearchOutput:
        if found.error is not None:
            failure = EngineFailed(found.error, found.error_kind or "internal")
            return self._ended(in_flight, FinishReason.ERROR, failure)
        output, timings = _new_output(in_flight.prepared), in_flight.timings
        output.outputs = [self._sequence(index, path) for index, path in enumerate(found.paths)]
        output.paths, output.catalogue_version = found.paths, found.catalogue_version
        output.num_cached_tokens = found.num_cached_tokens
        timings.first_scheduled_s = found.first_scheduled_time_s
        timings.first_token_s = timings.last_token_s = timings.finished_s = time.monotonic()
        output.timings = timings
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
