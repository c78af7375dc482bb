"""Separate batches: prompts while there are any, else decodes. Knows nothing of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xllm_framework.request import SequenceStatus
from xllm_scheduler.budget import StepBudget
from xllm_scheduler.policy import WaitingView
from xllm_scheduler.queue import QueueEntry


class PrefillFirstPolicy:
    """Short times to first token and large decode batches; running sequences pause while prompts are computed."""

    def plan(self, waiting: WaitingView, running: Sequence[QueueEntry], budget: StepBudget) -> Iterator[QueueEntry]:
        """Yield prompts in flight, then waiting ones; decodes only if none was scheduled; see `SchedulerPolicy`."""
        budget.limit_s = budget.ttft_limit_s
        decode = SequenceStatus.DECODE
        yield from [entry for entry in running if entry.sequence.status is not decode]
        while len(waiting) and budget.can_admit:
            yield waiting.peek()
        if budget.num_scheduled == 0:
            budget.limit_s = budget.tpot_limit_s
            yield from [entry for entry in running if entry.sequence.status is decode]
