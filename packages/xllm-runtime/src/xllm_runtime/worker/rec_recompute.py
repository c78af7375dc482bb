"""Beams without KV of their own: each round computes every beam's tokens again, from the prompt's last block on.

Slow and simple: what searches with their own KV are compared with. Every beam writes to blocks of its own, behind the pool, and
shares the prompt's other blocks. Knows nothing of how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import ForwardInput
from xllm_framework.batch.prompt_steps import TokenStretch, build_steps
from xllm_framework.batch.search_batch import SearchBatch
from xllm_framework.config import RecConfig
from xllm_framework.request.rec_messages import MAX_ROUNDS
from xllm_runtime.worker.rec import Beams, Float32s

BEAMS_PER_STEP = 128

Forward = Callable[[list[ForwardInput]], Float32s]
"""Computes steps and returns the logits of all sampled rows, in order."""


def blocks_per_beam(block_size: int) -> int:
    """Return the blocks that a beam writes: the prompt's last one and what its path takes."""
    return -(-(block_size + MAX_ROUNDS) // block_size)


def num_scratch_blocks(config: RecConfig, block_size: int) -> int:
    """Return the blocks behind the pool that `RecomputedBeams` of all pipelines need; none unless they are asked for."""
    if not config.enable_rec_prefill_only:
        return 0
    return config.rec_worker_max_concurrency * BEAMS_PER_STEP * blocks_per_beam(block_size)


class RecomputedBeams:
    """A `BeamModel` over `forward`; its scratch blocks are [first_block, first_block + BEAMS_PER_STEP x blocks_per_beam)."""

    def __init__(self, forward: Forward, first_block: int, block_size: int) -> None:
        self._forward = forward
        self._block_size = block_size
        count = blocks_per_beam(block_size)
        self._scratch = first_block + np.arange(BEAMS_PER_STEP * count, dtype=np.int32).reshape(BEAMS_PER_STEP, count)

    def prefill(self, batch: SearchBatch) -> Float32s:
        """See `BeamModel.prefill`."""
        return self._forward(batch.prefills)

    def step(self, batch: SearchBatch, beams: Beams) -> Float32s:
        """See `BeamModel.step`."""
        search_of = np.repeat(np.arange(batch.num_requests), np.diff(beams.row_start))
        parts = []
        for begin in range(0, len(search_of), BEAMS_PER_STEP):
            rows = range(begin, min(begin + BEAMS_PER_STEP, len(search_of)))
            stretches = [
                self._stretch(batch, int(search_of[row]), beams.token_ids[row], self._scratch[row - begin])
                for row in rows
            ]
            num_tokens = sum(stretch.num_tokens for stretch in stretches)
            parts.append(self._forward(build_steps(stretches, self._block_size, num_tokens)))
        return np.concatenate(parts)

    def _stretch(
        self, batch: SearchBatch, search: int, path: npt.NDArray[np.int32], scratch: npt.NDArray[np.int32]
    ) -> TokenStretch:
        num_full_blocks = len(batch.prompts[search]) // self._block_size
        table = np.concatenate([batch.block_tables[search, :num_full_blocks], scratch])
        return TokenStretch(np.concatenate([batch.prompts[search], path]), num_full_blocks * self._block_size, table)
