"""Which blocks of a sequence no later token attends to, and which of a prompt are enough to go on from. Arithmetic only.

With a window of w tokens, a token sees itself and the w - 1 before it. Once n tokens are computed, the next one sees none before
n - w + 1: blocks that end there are behind the window. Their places in a table hold block 0, which is never read there.

    [0 0 0 0 | b b b b]        n = 8 blocks, w = 3.5 blocks
     behind    needed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xllm_framework.errors import InvalidConfig
from xllm_framework.kv_cache.block_pool import PADDING_BLOCK

_STEPS_AT_ONCE = 2


class SlidingWindow:
    """A window of `num_tokens` over blocks of `block_size` tokens, in a pool of `num_usable_blocks`.

    Raises:
        InvalidConfig: the pool does not hold a window and one block more.
    """

    def __init__(self, num_tokens: int, block_size: int, num_usable_blocks: int) -> None:
        self._num_tokens = num_tokens
        self._block_size = block_size
        num_window_blocks = -(-num_tokens // block_size) + 1
        num_chunk_blocks = (num_usable_blocks - num_window_blocks) // _STEPS_AT_ONCE
        if num_chunk_blocks < 1:
            raise InvalidConfig(
                f"num_blocks must be {num_window_blocks + _STEPS_AT_ONCE + 1} or more: a sliding window of {num_tokens} "
                f"tokens takes {num_window_blocks} blocks, and what a step computes some more."
            )
        self.max_chunk = num_chunk_blocks * block_size
        """The most prompt tokens that a step may compute: they fit beside the window, and beside those of a step in flight."""

    def num_behind(self, num_computed_tokens: int) -> int:
        """Return how many leading blocks no token behind `num_computed_tokens` sees."""
        return max(0, num_computed_tokens - self._num_tokens + 1) // self._block_size

    def match(self, keys: Sequence[bytes], find: Callable[[bytes], int | None]) -> list[int]:
        """Return the blocks of the longest beginning whose last window is known whole; block 0 stands for what is behind.

        What is behind may be known or not. O(len(keys)).
        """
        blocks = [find(key) for key in keys]
        runs, length = [], 0
        for block_id in blocks:
            length = 0 if block_id is None else length + 1
            runs.append(length)
        for count in range(len(keys), 0, -1):
            behind = self.num_behind(count * self._block_size)
            if runs[count - 1] >= count - behind:
                return [PADDING_BLOCK] * behind + [block for block in blocks[behind:count] if block is not None]
        return []
