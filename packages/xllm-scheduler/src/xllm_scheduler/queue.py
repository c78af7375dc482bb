"""The sequences that hold no blocks, in the order in which they are served. Knows nothing of blocks or budgets."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from xllm_framework.request import Request, Sequence, SequenceStatus
from xllm_scheduler.beam import BeamGroup

_MAX_DROPPED = 64
"""Entries of ended sequences that the heap may hold beside as many as there are waiting ones."""

Order = tuple[float, ...]
"""A place in a queue, smaller is served first: (1 if offline, the strategy's rank ..., arrival number, sequence index)."""


class QueueEntry:
    """A sequence as the scheduler's lists hold it.

    `order` is its place among others; a strategy may change it between steps. `seniority` never changes: it says who
    must get on in the end, so that no two sequences preempt each other for ever.
    """

    __slots__ = ("arrival", "beams", "last_scheduled_step", "next_rematch", "order", "request", "seniority", "sequence")

    def __init__(self, request: Request, sequence: Sequence, arrival: int, order: Order, seniority: Order) -> None:
        self.request = request
        self.sequence = sequence
        self.arrival = arrival
        self.order = order
        self.seniority = seniority
        self.beams: BeamGroup | None = None
        """The beams that `sequence` leads, in a beam search."""
        self.last_scheduled_step = 0
        self.next_rematch = 0
        """Computed tokens from which its prompt looks into the prefix cache again; 0 is never."""

    def __repr__(self) -> str:
        return f"QueueEntry({self.sequence}, order {self.order})"


class WaitingQueue:
    """A heap of waiting entries by `order`, and one of deadlines.

    A preempted entry keeps its arrival number, so that it comes back in front of equals who arrived later. A sequence that
    ended while it waited is dropped when it reaches the top, or when such entries are many.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Order, QueueEntry]] = []
        self._deadlines: list[tuple[float, int, Request]] = []
        self._num_waiting = 0

    def push(self, entry: QueueEntry) -> None:
        """Add an entry whose sequence waits. O(log n)."""
        heapq.heappush(self._heap, (entry.order, entry))
        self._num_waiting += 1

    def watch_deadline(self, request: Request, arrival: int) -> None:
        """Let `pop_expired` return `request`, the one with this arrival number, after its deadline, if it has one."""
        if request.deadline_s is not None:
            heapq.heappush(self._deadlines, (request.deadline_s, arrival, request))

    def peek(self) -> QueueEntry:
        """Return the first entry; the queue must not be empty."""
        while self._heap[0][1].sequence.status is not SequenceStatus.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def pop(self) -> QueueEntry:
        """Remove and return the first entry; the queue must not be empty."""
        entry = self.peek()
        heapq.heappop(self._heap)
        self._num_waiting -= 1
        return entry

    def discard(self) -> None:
        """Count one waiting entry less: its sequence is about to end. Amortised O(1)."""
        self._num_waiting -= 1
        if len(self._heap) > 2 * self._num_waiting + _MAX_DROPPED:
            self._heap = [item for item in self._heap if item[1].sequence.status is SequenceStatus.WAITING]
            heapq.heapify(self._heap)

    def reorder(self) -> None:
        """Sort anew after the `order` of entries has changed. O(n log n) at worst."""
        self._heap = [(entry.order, entry) for entry in self]
        heapq.heapify(self._heap)

    def take_all(self) -> list[QueueEntry]:
        """Remove and return every waiting entry."""
        entries = list(self)
        self._heap, self._num_waiting = [], 0
        return entries

    def pop_expired(self, now_s: float) -> list[Request]:
        """Return the requests whose deadline has passed and of which nothing was ever scheduled."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            request = heapq.heappop(self._deadlines)[2]
            if request.first_scheduled_time_s is None and not request.is_finished:
                expired.append(request)
        return expired

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[QueueEntry]:
        """Iterate over the waiting entries, in no particular order."""
        return (entry for _, entry in self._heap if entry.sequence.status is SequenceStatus.WAITING)
