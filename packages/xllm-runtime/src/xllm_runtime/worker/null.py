"""A worker without model, device or compute, for benchmarks and tests of everything around it.

Its tokens are a function of seed and step alone and never end a text, so that runs of the scheduler, the engine and the
front side can be repeated exactly and have the lengths that were asked for.
"""

from __future__ import annotations

import numpy as np

from xllm_framework.batch import ForwardInput, ForwardOutput
from xllm_framework.config import XLLMConfig
from xllm_framework.kv_cache import BlockMoves, CacheLayout
from xllm_framework.model import ModelArgs
from xllm_runtime.auto_config import cache_window
from xllm_runtime.worker.client import PutPayload

NUM_BLOCKS = 65536
"""Pool size when no option names one: it costs nothing."""
_STRIDE = np.uint64(0x9E3779B97F4A7C15)


class NullWorker:
    """See `Worker`. Every log-probability is 0, as of a model that is certain; all prompts have one vector, of ones."""

    def __init__(self, config: XLLMConfig, args: ModelArgs) -> None:
        self._num_blocks = config.kv_cache.num_blocks or NUM_BLOCKS
        self._tokens = np.setdiff1d(np.arange(args.vocab_size, dtype=np.int32), args.eos_token_ids).astype(np.int32)
        self._hidden_size = args.hidden_size
        self.model_impl = "null"
        self.device = "null"
        self.dtype = "null"
        self.vocab_size = args.vocab_size
        self.can_copy_blocks = True
        self.cache_layout = CacheLayout((cache_window(args),))

    def num_state_slots_that_fit(self) -> int:
        """Return 0: there is no linear state."""
        return 0

    def allocate_states(self, num_slots: int) -> None:
        """Do nothing: there is no linear state."""

    def num_blocks_that_fit(self, block_size: int) -> int:
        """Return the option's number of blocks, or a large one."""
        return self._num_blocks

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """Do nothing: there is nothing to keep."""

    def allocate_host_blocks(self, num_host_blocks: int) -> None:
        """Do nothing."""

    def attach_archive(self, put: PutPayload) -> None:
        """Do nothing."""

    def payload_bytes(self) -> int:
        """Return 0: there is nothing to keep."""
        return 0

    def move_blocks(self, moves: BlockMoves) -> None:
        """Do nothing."""

    def execute(self, forward_input: ForwardInput) -> ForwardOutput:
        """Return tokens that no model computed."""
        rows = forward_input.sampling
        mixed = (rows.seed + rows.step.astype(np.uint64)) * _STRIDE >> np.uint64(32)
        token_ids = self._tokens[(mixed % np.uint64(len(self._tokens))).astype(np.int64)]
        output = ForwardOutput(token_ids)
        num_top = int(rows.num_logprobs.max(initial=-1))
        if num_top >= 0:
            output.logprobs = np.zeros(len(token_ids), np.float32)
        if num_top > 0:
            output.top_ids = np.repeat(token_ids[:, None], num_top, axis=1)
            output.top_logprobs = np.zeros(output.top_ids.shape, np.float32)
        if forward_input.prompt_logprobs:
            output.prompt_logprobs = {
                index: (
                    np.zeros(len(targets), np.float32),
                    np.repeat(targets[:, None], k, axis=1),
                    np.zeros((len(targets), k), np.float32),
                )
                for index, k, targets in forward_input.prompt_logprobs
            }
        output.pooled = {
            rows.index: np.ones(len(rows.logit_ids) or self._hidden_size, np.float32) for rows in forward_input.pooled
        }
        return output
