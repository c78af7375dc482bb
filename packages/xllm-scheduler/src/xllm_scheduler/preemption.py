"""Who gives up its blocks when a running sequence finds none. Knows nothing of how they are given back."""

from __future__ import annotations

from collections.abc import Sequence

from xllm_scheduler.queue import QueueEntry


def choose_victim(running: Sequence[QueueEntry], step: int) -> QueueEntry:
    """Return the last entry of `running` (sorted by `order`) that is not yet scheduled in `step`.

    The newest has the least work to lose, and because it is always the newest, the oldest always gets on: no two
    sequences can preempt each other for ever. At least one entry of `running` must be unscheduled.
    """
    return next(entry for entry in reversed(running) if entry.last_scheduled_step != step)
