"""Whether everybody can run to an assumed length without a preemption. Knows nothing of how blocks are given out.

The future is simulated in token times: at time t each sequence has t tokens more, and the blocks for them; it ends when
it has reached its assumed length, and gives its blocks back. Between two ends the need only grows, so that it is enough
to look at the moments just before an end.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from xllm_framework.kv_cache import BlockManager, PrefixMatch
from xllm_framework.request import Request, Sequence
from xllm_scheduler.queue import QueueEntry


class ZeroEvictGate:
    """Refuses a sequence whose admission would lead to a preemption.

    Args:
        num_output_tokens: output length assumed of each sequence, at most its own `max_tokens`; one that is longer
            already is assumed to need another block.
    """

    def __init__(self, num_output_tokens: int) -> None:
        self._num_output_tokens = num_output_tokens

    def allows(
        self,
        candidate: QueueEntry,
        match: PrefixMatch,
        running: Iterable[QueueEntry],
        blocks: BlockManager,
    ) -> bool:
        """Return whether `candidate` can join `running`, those that hold blocks of `blocks`; takes nothing.

        Whoever would run alone may. `match` are the blocks that it would share. Shared blocks are counted once, and as
        held to the end of time: who shares them may outlive whoever brought them.
        """
        total, num_shared = int(blocks.footprint(np.array(candidate.sequence.num_tokens))), match.num_blocks
        num_new = max(0, total - num_shared)
        num_left = blocks.num_available_blocks - num_new - blocks.count_unheld(match)
        holders = [(entry.request, entry.sequence) for entry in running]
        if not holders:
            return True
        joined = [*holders, (candidate.request, candidate.sequence)]
        tokens = np.array([sequence.num_tokens for _, sequence in joined])
        times = np.array([self._num_tokens_left(request, sequence, blocks.block_size) for request, sequence in joined])
        held = np.array([blocks.num_held(sequence) for _, sequence in holders] + [num_new + num_shared])
        if num_left >= int((blocks.footprint(tokens + times) - held).clip(0).sum()):
            return True
        private = np.array([blocks.count_private(sequence) for _, sequence in holders] + [num_new])
        for time in np.unique(times):
            is_alive = times >= time
            grown = (blocks.footprint(tokens + time) - held).clip(0)
            if int(grown[is_alive].sum()) - int(private[~is_alive].sum()) > num_left:
                return False
        return True

    def _num_tokens_left(self, request: Request, sequence: Sequence, block_size: int) -> int:
        max_tokens = request.sampling.max_tokens
        left = max(self._num_output_tokens - sequence.num_output_tokens, block_size)
        return left if max_tokens is None else min(left, max(max_tokens - sequence.num_output_tokens, 0))
