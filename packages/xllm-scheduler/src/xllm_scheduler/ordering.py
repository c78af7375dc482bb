"""Applies an ordering strategy to the scheduler's lists. Knows nothing of what the order is used for."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from xllm_framework.config import SchedulerConfig
from xllm_framework.request import Request, Sequence
from xllm_scheduler.latency import LatencyModel
from xllm_scheduler.objectives import ObjectiveAssessor
from xllm_scheduler.queue import Order, QueueEntry, WaitingQueue
from xllm_scheduler.strategies import OrderingStrategy

_ORDER = attrgetter("order")
_FAR_OFF = 2.0


class Ordering:
    """Gives sequences their places, once for fixed ranks, before each step for assessed ones."""

    def __init__(self, strategy: OrderingStrategy, config: SchedulerConfig, latency: LatencyModel) -> None:
        self.strategy = strategy
        self._assessor = ObjectiveAssessor(config, latency)
        self._seconds_a_token = 1e-6 * latency.per_token_us

    @property
    def is_dynamic(self) -> bool:
        """Whether `reorder` does anything."""
        return self.strategy.assessed_rank is not None

    def entry(self, request: Request, sequence: Sequence, arrival: int) -> QueueEntry:
        """Return the entry of a sequence that is about to wait; the request is the `arrival`th."""
        seniority: Order = (request.is_offline, arrival, sequence.index)
        if self.strategy.rank is not None:
            seniority = (request.is_offline, *self.strategy.rank(request), arrival, sequence.index)
        entry = QueueEntry(request, sequence, arrival, seniority, seniority)
        if self.strategy.paced_rank is not None:
            entry.order = self._paced_order(entry)
        return entry

    def keep_pace(self, seconds_a_token: float, queues: Iterable[WaitingQueue], running: list[QueueEntry]) -> None:
        """Rank all entries anew if a prompt token takes less than half, or more than twice, what was counted with."""
        is_near = (
            seconds_a_token < _FAR_OFF * self._seconds_a_token and self._seconds_a_token < _FAR_OFF * seconds_a_token
        )
        if self.strategy.paced_rank is None or is_near:
            return
        self._seconds_a_token = seconds_a_token
        for entry in [*running, *(entry for queue in queues for entry in queue)]:
            entry.order = self._paced_order(entry)
        for queue in queues:
            queue.reorder()
        running.sort(key=_ORDER)

    def _paced_order(self, entry: QueueEntry) -> Order:
        request, rank = entry.request, self.strategy.paced_rank
        paced = () if rank is None else rank(request, self._seconds_a_token)
        return (request.is_offline, *paced, entry.arrival, entry.sequence.index)

    def reorder(self, waiting: WaitingQueue, running: list[QueueEntry], now_s: float) -> float:
        """Rank everything anew and sort both lists; return the most seconds that the next step should take."""
        rank = self.strategy.assessed_rank
        if rank is None:
            return float("inf")
        entries = [*waiting, *running]
        assessments, limit_s = self._assessor.assess(entries, now_s)
        for entry, assessment in zip(entries, assessments, strict=True):
            request = entry.request
            entry.order = (request.is_offline, *rank(request, assessment), entry.arrival, entry.sequence.index)
        waiting.reorder()
        running.sort(key=_ORDER)
        return limit_s
