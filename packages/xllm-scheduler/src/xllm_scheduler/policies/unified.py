"""One list for everything, in the order of the strategy. Knows nothing of blocks, or of how urgency is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from xllm_scheduler.budget import StepBudget
from xllm_scheduler.policy import WaitingView
from xllm_scheduler.queue import QueueEntry


class UnifiedPolicy:
    """Prompts and decodes compete by rank alone, for the tokens and for the time of a step, and for blocks.

    Made for the strategies that look at objectives: what is urgent runs, be it prompt or decode, and takes blocks from
    what is not; a step takes no longer than the objectives at hand allow.
    """

    def plan(self, waiting: WaitingView, running: Sequence[QueueEntry], budget: StepBudget) -> Iterator[QueueEntry]:
        """Yield running and waiting entries merged by `order`; see `SchedulerPolicy`."""
        budget.limit_s = budget.objective_limit_s
        if budget.limit_s == inf:
            budget.limit_s = min(budget.ttft_limit_s, budget.tpot_limit_s)
        budget.is_limiting_decodes = True
        budget.can_preempt_to_admit = True
        for entry in list(running):
            while len(waiting) and budget.can_admit and waiting.peek().order < entry.order:
                yield waiting.peek()
            yield entry
        while len(waiting) and budget.can_admit:
            yield waiting.peek()
