"""Which blocks of a sequence no later token attends to, and how much of a prompt a step may compute. Arithmetic only.

With a window of w tokens, a token sees itself and the w - 1 before it. Once n tokens are computed, the next one sees none before
n - w + 1: blocks that end there are behind the window. Their places in a table hold block 0, which is never read there.

    [0 0 0 0 | b b b b]        n = 8 blocks, w = 3.5 blocks
     behind    needed
"""

from __future__ import annotations

from xllm_framework.errors import InvalidConfig

_STEPS_AT_ONCE = 2


class SlidingWindow:
    """A window of `num_tokens` over blocks of `block_size` tokens, in a pool that `num_groups` groups of layers share.

    Raises:
        InvalidConfig: an equal share of the pool does not hold a window and one block more.
    """

    def __init__(self, num_tokens: int, block_size: int, num_usable_blocks: int, num_groups: int = 1) -> None:
        self._num_tokens = num_tokens
        self._block_size = block_size
        self.num_blocks = _num_touched(num_tokens, block_size)
        """Blocks that a window touches at most."""
        num_chunk_blocks = (num_usable_blocks // num_groups - self.num_blocks) // _STEPS_AT_ONCE
        if num_chunk_blocks < 1:
            raise InvalidConfig(
                f"num_blocks must be {num_groups * (self.num_blocks + _STEPS_AT_ONCE) + 1} or more: a sliding window of "
                f"{num_tokens} tokens takes {self.num_blocks} blocks, and what a step computes some more."
            )
        self.max_chunk = num_chunk_blocks * block_size
        """The most prompt tokens that a step may compute: they fit beside the window, and beside those of a step in flight."""

    def num_behind(self, num_computed_tokens: int) -> int:
        """Return how many leading blocks no token behind `num_computed_tokens` sees."""
        return max(0, num_computed_tokens - self._num_tokens + 1) // self._block_size

    def most_held(self, chunk: int) -> int:
        """Return how many blocks a sequence holds at most that is computed by chunks of `chunk` tokens."""
        return most_held(self._num_tokens, self._block_size, min(chunk, self.max_chunk))

    def covers(self, num_known: int, num_blocks: int) -> bool:
        """Whether one can go on behind `num_blocks` blocks when the last `num_known` of them are known."""
        return num_known >= num_blocks - self.num_behind(num_blocks * self._block_size)


def most_held(num_tokens: int, block_size: int, chunk: int) -> int:
    """Return how many blocks a window of `num_tokens` takes at most, with the chunks of the steps that are planned at once."""
    return _num_touched(num_tokens, block_size) + _STEPS_AT_ONCE * -(-chunk // block_size)


def _num_touched(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size) + 1
