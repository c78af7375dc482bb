"""Who gives up its blocks, and for whom. Knows nothing of how they are given back.

Two sequences must not preempt each other for ever. A junior (by `QueueEntry.seniority`) may always lose its blocks to a
senior; a senior loses them to a junior only a few times in its life. So, after a finite number of steps, nobody takes
from its senior any more, and then the most senior sequence of all gets on with every step that schedules it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xllm_scheduler.queue import QueueEntry

MAX_LOSSES_TO_JUNIORS = 3


def choose_victim(running: Sequence[QueueEntry], candidate: QueueEntry, step: int) -> QueueEntry:
    """Return who gives up its blocks so that `candidate`, which runs and is not scheduled yet, can grow.

    It is the last entry of `running` (sorted by `order`) on the same rank that is not yet scheduled in `step`. The last
    has the least work to lose or is the least urgent; it may be the candidate itself.
    """
    return next(
        entry
        for entry in _unscheduled(running, candidate.sequence.rank, step)
        if entry is candidate or _may_take(candidate, entry)
    )


def admission_victims(
    running: Sequence[QueueEntry], candidate: QueueEntry, rank: int, step: int, num_class_parts: int
) -> Iterator[QueueEntry]:
    """Yield those of `rank` that may give up their blocks so that `candidate`, which waits, is admitted; the last first.

    The first `num_class_parts` parts of `order` tell the classes; only lower classes lose blocks.
    """
    if not num_class_parts:
        return
    own_class = candidate.order[:num_class_parts]
    for entry in _unscheduled(running, rank, step):
        if entry.order[:num_class_parts] > own_class and _may_take(candidate, entry):
            yield entry


def _unscheduled(running: Sequence[QueueEntry], rank: int, step: int) -> Iterator[QueueEntry]:
    for entry in reversed(running):
        if entry.last_scheduled_step != step and entry.sequence.rank == rank:
            yield entry


def _may_take(candidate: QueueEntry, victim: QueueEntry) -> bool:
    return candidate.seniority < victim.seniority or victim.sequence.num_preemptions < MAX_LOSSES_TO_JUNIORS
