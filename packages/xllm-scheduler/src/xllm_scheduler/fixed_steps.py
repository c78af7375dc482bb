"""Which searches run together next, where each takes a known number of steps. Knows nothing of tensors, threads or tokens.

A search needs its prompt's blocks once and nothing more later, so nobody is ever preempted: a batch that has begun runs to its
end. Searches of one batch have the same number of rounds, and either all draw or none does; their widths may differ. Smaller
priorities go first, then earlier arrivals; the first search that does not fit ends the batch, so that none starves.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from xllm_framework.errors import InvalidRequest, OutOfBlocks, QueueFull
from xllm_framework.kv_cache import BlockManager
from xllm_framework.request.rec_messages import AddSearch, SearchParams
from xllm_framework.request.sequence import Sequence


@dataclass(slots=True, eq=False)
class Search:
    """A search that waits or runs."""

    message: AddSearch
    sequence: Sequence
    """The prompt and its blocks."""
    is_aborted: bool = False
    """Nobody waits for it any more; its batch computes it to the end all the same."""

    @property
    def params(self) -> SearchParams:
        """How candidates are found."""
        return self.message.params


@dataclass(frozen=True, slots=True)
class FixedStepsLimits:
    """What one batch may hold at most."""

    max_num_seqs: int
    max_num_batched_tokens: int
    """Prompt tokens that are computed; a single longer prompt runs alone."""
    max_num_beams: int
    max_num_waiting: int


@dataclass(slots=True)
class FixedStepsCounters:
    """Counted since the start."""

    num_batches: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0


@dataclass(slots=True)
class Decision:
    """What `schedule` came to."""

    batch: list[Search] = field(default_factory=list)
    """Holds its blocks; `finish` must follow. Empty when nothing can run now."""
    expired: list[Search] = field(default_factory=list)
    """Given up: their deadline has passed."""


class FixedStepsScheduler:
    """Queue and admission of one engine side; used by one thread."""

    def __init__(self, limits: FixedStepsLimits, block_manager: BlockManager) -> None:
        self._limits = limits
        self._blocks = block_manager
        self._waiting: list[tuple[int, float, int, Search]] = []
        self._numbers = itertools.count()
        self._running: dict[str, Search] = {}
        self.counters = FixedStepsCounters()

    @property
    def num_waiting(self) -> int:
        """Searches that wait."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Searches whose batch is under way."""
        return len(self._running)

    def add(self, message: AddSearch) -> None:
        """Let a search wait.

        Raises:
            QueueFull: as many wait as may.
            OutOfBlocks: its prompt is larger than the whole cache.
            InvalidRequest: it has more beams than a batch may hold.
        """
        if len(self._waiting) >= max(self._limits.max_num_waiting, 1):
            raise QueueFull(f"{len(self._waiting)} requests wait already (max_num_waiting).")
        needed = self._blocks.num_places(len(message.prompt_token_ids))
        if needed > self._blocks.num_usable_blocks:
            raise OutOfBlocks(
                f"The prompt needs {needed} blocks, but the cache has {self._blocks.num_usable_blocks} (num_blocks)."
            )
        if message.params.beam_width > self._limits.max_num_beams:
            raise InvalidRequest(f"A search may have {self._limits.max_num_beams} beams at most.", "beam_width")
        search = Search(message, Sequence(message.request_id, 0, message.prompt_token_ids, reserve=1))
        heapq.heappush(self._waiting, (message.priority, message.arrival_time_s, next(self._numbers), search))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget searches that wait, and mark those that run; unknown ones are ignored."""
        wanted = set(request_ids)
        self._waiting = [entry for entry in self._waiting if entry[3].message.request_id not in wanted]
        heapq.heapify(self._waiting)
        for request_id in wanted & self._running.keys():
            self._running[request_id].is_aborted = True

    def schedule(self, now_s: float) -> Decision:
        """Choose the next batch and give its prompts their blocks; `now_s` reads the clock of the deadlines."""
        decision = Decision()
        num_tokens = num_beams = 0
        while self._waiting and len(decision.batch) < self._limits.max_num_seqs:
            search = self._waiting[0][3]
            if search.message.deadline_s is not None and search.message.deadline_s < now_s:
                heapq.heappop(self._waiting)
                decision.expired.append(search)
                continue
            if decision.batch and not _runs_with(decision.batch[0].params, search.params):
                break
            num_beams += search.params.beam_width
            if num_beams > self._limits.max_num_beams or not self._admit(search, num_tokens, decision):
                break
            num_tokens += search.sequence.num_uncomputed_tokens
            decision.batch.append(search)
            heapq.heappop(self._waiting)
        self._begin(decision.batch)
        return decision

    def finish(self, batch: list[Search], *, is_computed: bool) -> None:
        """Take a batch's blocks back; of prompts that were computed, later ones may share the beginnings."""
        for search in batch:
            sequence = search.sequence
            if is_computed:
                start, sequence.num_computed_tokens = sequence.num_computed_tokens, sequence.num_tokens
                self._blocks.publish(sequence, start, sequence.num_tokens, search.message.cache_salt)
                self.counters.num_generated_tokens += search.params.beam_width * search.params.num_rounds
            self._blocks.free(sequence)
            del self._running[search.message.request_id]

    def check_integrity(self) -> None:
        """Check the cache's invariants.

        Raises:
            IntegrityError: one does not hold.
        """
        self._blocks.check_integrity(search.sequence for search in self._running.values())

    def _admit(self, search: Search, num_tokens: int, decision: Decision) -> bool:
        """Give the search its blocks, if the batch has room for its prompt and the cache has blocks."""
        sequence, salt = search.sequence, search.message.cache_salt
        match = self._blocks.match_prefix(sequence, salt)
        num_new = sequence.num_tokens - len(match) * self._blocks.block_size
        if decision.batch and num_tokens + num_new > self._limits.max_num_batched_tokens:
            return False
        return self._blocks.admit(sequence, match, sequence.num_tokens, salt=salt)

    def _begin(self, batch: list[Search]) -> None:
        counters = self.counters
        counters.num_batches += bool(batch)
        for search in batch:
            self._running[search.message.request_id] = search
            counters.num_prompt_tokens += search.sequence.num_tokens
            counters.prefix_cache_queries += search.sequence.num_tokens
            counters.prefix_cache_hits += search.sequence.num_cached_tokens


def _runs_with(first: SearchParams, other: SearchParams) -> bool:
    return (first.num_rounds, first.is_sampled) == (other.num_rounds, other.is_sampled)
