"""The order in which a step considers sequences. Knows nothing of how blocks are allocated or budgets charged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from xllm_scheduler.budget import StepBudget
from xllm_scheduler.queue import QueueEntry


class WaitingView(Protocol):
    """What a policy sees of the waiting sequences."""

    def __len__(self) -> int:
        """Return how many may be offered."""

    def peek(self) -> QueueEntry:
        """Return the first of them; there must be one."""


class SchedulerPolicy(Protocol):
    """Proposes candidates; the scheduler's one loop decides how many tokens and blocks each gets, or none."""

    def plan(self, waiting: WaitingView, running: Sequence[QueueEntry], budget: StepBudget) -> Iterator[QueueEntry]:
        """Yield candidates, best first; each running one at most once.

        Changes none of its arguments. Between two candidates the scheduler acts on the first: an admitted entry leaves
        `waiting` and joins `running`, a preempted one goes back, `budget` is charged. Hence:

        - take a copy of what you iterate over of `running`, which is sorted by `order`;
        - offer `waiting.peek()` again and again, while there is one and `budget.can_admit`;
        - look at `budget` after a yield to learn what came of it. The scheduler stops asking once no token is left.

        A policy may set `budget.limit_s` to one of the budget's time limits, and the budget's two flags.
        """
