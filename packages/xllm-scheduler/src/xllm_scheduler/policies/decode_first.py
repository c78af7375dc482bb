"""Mixed batches: every decode, then prefill chunks in what is left. Knows nothing of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xllm_framework.request import SequenceStatus
from xllm_scheduler.budget import StepBudget
from xllm_scheduler.policy import WaitingView
from xllm_scheduler.queue import QueueEntry


class DecodeFirstPolicy:
    """Steady token intervals: a long prompt is spread over steps, and delays running sequences by a chunk at most."""

    def plan(self, waiting: WaitingView, running: Sequence[QueueEntry], budget: StepBudget) -> Iterator[QueueEntry]:
        """Yield decodes, then prompts in flight and waiting ones by `order`; see `SchedulerPolicy`.

        Where steps are kept short, one in which a waiting prompt overtakes those in flight ends with it: its first token
        would come later by their chunks.
        """
        budget.limit_s = budget.tpot_limit_s
        decode = SequenceStatus.DECODE
        decodes = [entry for entry in running if entry.sequence.status is decode]
        prefills = [entry for entry in running if entry.sequence.status is not decode]
        yield from decodes
        has_overtaken = False
        for entry in prefills:
            while len(waiting) and budget.can_admit and waiting.peek().order < entry.order:
                overtaker = waiting.peek()
                yield overtaker
                has_overtaken = has_overtaken or overtaker.sequence.status is SequenceStatus.PREFILL
            if has_overtaken and budget.is_paced:
                return
            yield entry
        while len(waiting) and budget.can_admit:
            yield waiting.peek()
