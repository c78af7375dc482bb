"""The block tables of one group of layers. Knows nothing of the other groups, of the pool's size or of who is admitted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as List

import numpy as np
import numpy.typing as npt

from xllm_framework.errors import IntegrityError
from xllm_framework.kv_cache.block_pool import PADDING_BLOCK, BlockPool
from xllm_framework.kv_cache.prefix_cache import KEY_BYTES, PrefixCache
from xllm_framework.kv_cache.sliding_window import SlidingWindow
from xllm_framework.request.sequence import Sequence


class TableGroup:
    """Tables over a pool that several groups share; the map of known blocks is the group's own.

    Args:
        index: its place among the groups; the table is `Sequence.tables[index]`.
        window: what its layers attend to; None for everything.
    """

    def __init__(
        self, index: int, pool: BlockPool, prefix_cache: PrefixCache, block_size: int, window: SlidingWindow | None
    ) -> None:
        self.prefix_cache = prefix_cache
        self.window = window
        self._pool = pool
        self._block_size = block_size
        self._name = f"group {index}".encode() if index else b""

    def key(self, block_key: bytes) -> bytes:
        """Return the key under which the tiers behind the device know this group's block of `block_key`."""
        if not self._name:
            return block_key
        return hashlib.blake2b(block_key, digest_size=KEY_BYTES, person=self._name).digest()

    def most_blocks(self, num_tokens: int, chunk: int) -> int:
        """Return how many blocks a sequence of `num_tokens` holds at most that is computed by chunks of `chunk`."""
        num_blocks = -(-num_tokens // self._block_size)
        return num_blocks if self.window is None else min(num_blocks, self.window.most_held(chunk))

    def footprint(self, num_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many blocks sequences of `num_tokens` tokens hold while they decode."""
        num_blocks = -(-num_tokens // self._block_size)
        return num_blocks if self.window is None else np.minimum(num_blocks, self.window.num_blocks)

    def num_behind(self, num_blocks: int) -> int:
        """Return how many leading blocks nothing looks at once `num_blocks` blocks are computed."""
        return 0 if self.window is None else self.window.num_behind(num_blocks * self._block_size)

    def find(self, keys: List[bytes]) -> list[int | None]:
        """Return the block of each key, or None."""
        block_of = self.prefix_cache.block_of
        return [block_of(key) for key in keys]

    def matched(self, found: List[int | None], count: int) -> list[int]:
        """Return the first `count` of `found`, with block 0 for what is behind the window then."""
        behind = self.num_behind(count)
        return [PADDING_BLOCK] * behind + [block for block in found[behind:count] if block is not None]

    def insert(self, sequence: Sequence, table: list[int], start: int, end: int, salt: str) -> list[int]:
        """Make the full blocks between tokens `start` and `end` known; returns those that are by this call."""
        return self.prefix_cache.insert(
            sequence.token_ids[:end], sequence.block_hashes, salt, table, start, sequence.media
        )

    def release_behind(self, table: list[int], num_computed_tokens: int, limit: int | None = None) -> list[int]:
        """Put block 0 in the place of what is behind the window, and return what was there.

        From place `limit` on that is done already.
        """
        released: list[int] = []
        if self.window is None:
            return released
        num_behind = self.window.num_behind(num_computed_tokens)
        for index in range(min(num_behind, len(table) if limit is None else limit) - 1, -1, -1):
            if table[index] == PADDING_BLOCK:
                break
            released.append(table[index])
            table[index] = PADDING_BLOCK
        self._pool.release(released[::-1])
        return released

    def check_table(self, sequence: Sequence, table: list[int]) -> None:
        """Raise `IntegrityError` if a table lacks what its sequence has computed, or holds block 0 elsewhere than behind."""
        num_behind = 0 if self.window is None else self.window.num_behind(sequence.num_computed_tokens)
        if PADDING_BLOCK in table[num_behind:]:
            raise IntegrityError(f"{sequence} holds the padding block 0.")
        held = [block_id for block_id in table if block_id != PADDING_BLOCK]
        if len(set(held)) != len(held):
            raise IntegrityError(f"{sequence} holds a block twice.")
        if sequence.num_computed_tokens > len(table) * self._block_size:
            raise IntegrityError(f"{sequence} has computed more tokens than its blocks hold.")
