"""What a model keeps of each sequence, as far as those who give out blocks must know. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass

from xllm_framework.kv_cache.sliding_window import SlidingWindow, most_held


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Block tables, and maybe a state."""

    sliding_windows: tuple[int, ...] = (0,)
    """One entry a group of layers with a table of its own, those with windows first: the tokens that a token attends to there;
    0 for all."""
    has_states: bool = False
    """Whether there are layers with linear state."""

    def blocks_of_sequence(self, num_tokens: int, block_size: int, chunk: int) -> int:
        """Return how many blocks a sequence of `num_tokens` takes at most that is computed by chunks of `chunk`.

        Where all layers share one table, all its places count, window or not.
        """
        num_blocks = -(-num_tokens // block_size)
        if len(self.sliding_windows) == 1:
            return num_blocks
        return sum(
            min(num_blocks, most_held(window, block_size, chunk)) if window else num_blocks
            for window in self.sliding_windows
        )

    def tokens_that_fit(self, num_usable_blocks: int, block_size: int, chunk: int) -> int:
        """Return how long a sequence may become that has the pool for itself.

        Raises:
            InvalidConfig: the pool is too small for a window.
        """
        num_groups = len(self.sliding_windows)
        windows = [SlidingWindow(w, block_size, num_usable_blocks, num_groups) for w in self.sliding_windows if w]
        chunk = min([chunk, *(window.max_chunk for window in windows)])
        fits, fails = 0, num_usable_blocks + 1
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if self.blocks_of_sequence(middle * block_size, block_size, chunk) <= num_usable_blocks:
                fits = middle
            else:
                fails = middle
        return fits * block_size
