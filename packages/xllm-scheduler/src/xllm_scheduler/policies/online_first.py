"""Runs any policy twice in a step: over what somebody waits for, then over offline work. Knows nothing of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xllm_scheduler.budget import StepBudget
from xllm_scheduler.policy import SchedulerPolicy
from xllm_scheduler.queue import QueueEntry, WaitingQueue


class _OnlineWaiting:
    """The online part of a queue, in which offline entries come last."""

    def __init__(self, waiting: WaitingQueue) -> None:
        self._waiting = waiting

    def __len__(self) -> int:
        return 0 if len(self._waiting) == 0 or self._waiting.peek().request.is_offline else len(self._waiting)

    def peek(self) -> QueueEntry:
        return self._waiting.peek()


def plan_online_first(
    policy: SchedulerPolicy, waiting: WaitingQueue, running: Sequence[QueueEntry], budget: StepBudget
) -> Iterator[QueueEntry]:
    """Yield what `policy` does of the online entries, then of the offline ones, which get what is left of the step.

    An offline sequence that gets nothing keeps its blocks, unless an online one takes them.
    """
    online = [entry for entry in running if not entry.request.is_offline]
    yield from policy.plan(_OnlineWaiting(waiting), online, budget)
    offline = [entry for entry in running if entry.request.is_offline]
    yield from policy.plan(waiting, offline, budget)
