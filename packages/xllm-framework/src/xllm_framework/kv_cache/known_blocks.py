"""Which of a pool's blocks can be found again: made known, announced, kept by the tiers behind, forgotten.

Knows nothing of who is admitted, or of how many blocks are left.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from xllm_framework.kv_cache.block_pool import PADDING_BLOCK, BlockPool
from xllm_framework.kv_cache.prefix_match import PrefixMatch
from xllm_framework.kv_cache.table_group import TableGroup
from xllm_framework.kv_cache.tiers import CacheTiers, OnDevice, Place
from xllm_framework.request.sequence import Sequence


class KnownBlocks:
    """What the prefix caches of `groups` know of the blocks of `pool`, and what `tiers` behind it keep of them."""

    def __init__(
        self, pool: BlockPool, groups: List[TableGroup], block_size: int, num_blocks: int, tiers: CacheTiers | None
    ) -> None:
        self._pool, self._groups, self._block_size, self._tiers = pool, groups, block_size, tiers
        self._group_of = bytearray(num_blocks)
        """By block that a prefix cache knows: whose it is."""
        self.announced: dict[int, Sequence] = {}
        """By block that is known before it is computed: who computes it."""

    def insert(self, sequence: Sequence, start: int, end: int, salt: str) -> None:
        """Make the blocks that tokens [start, end) have filled known; they stay so until they are evicted."""
        first = start // self._block_size
        for index, table in enumerate(sequence.tables):
            for block_id in self._groups[index].insert(sequence, table, first, end, salt):
                self._pool.retain(block_id)
                self._group_of[block_id] = index

    def announce(self, sequence: Sequence, end: int, salt: str) -> None:
        """Make the blocks known that become full when the first `end` tokens are computed; of one group of layers only."""
        first = sequence.num_computed_tokens // self._block_size
        if end // self._block_size != first:
            for block_id in self._groups[0].insert(sequence, sequence.block_table, first, end, salt):
                self.announced[block_id] = sequence

    def announcers(self, match: PrefixMatch) -> frozenset[Sequence]:
        """Return the sequences that have yet to compute some of the blocks in `match`."""
        announced = self.announced
        if not announced or not match.tables:
            return frozenset()
        return frozenset(announced[block_id] for block_id in match.tables[0] if block_id in announced)

    def withdraw_announced(self) -> None:
        """Forget what was announced."""
        for block_id in self.announced:
            self._groups[0].prefix_cache.evict(block_id)
        self.announced.clear()

    def release_behind(self, sequence: Sequence, num_computed_tokens: int, limit: int | None = None) -> None:
        """Give back what is behind windows; from place `limit` on that is done already."""
        for group, table in zip(self._groups, sequence.tables, strict=True):
            self.archive(group.release_behind(table, num_computed_tokens, limit))

    def archive(self, blocks: List[int]) -> None:
        """Keep blocks in the archive that a sequence gives up, as far as they can be found again."""
        if self._tiers is not None and self._tiers.has_archive:
            for block_id in blocks:
                if self._pool.is_retained(block_id):
                    self._tiers.archive(self._key_of(block_id), block_id)

    def bring(self, place: Place | None) -> int:
        """Return a block with the content of `place`, a new one unless it is on the device; block 0 for None."""
        if place is None or self._tiers is None:
            return PADDING_BLOCK
        if isinstance(place, OnDevice):
            return place.block_id
        (block_id,) = self._pool.allocate(1)
        self._tiers.restore(place, block_id)
        return block_id

    def evict(self, block_id: int) -> None:
        """Forget a block that is taken for other content; the tiers behind may keep what it holds."""
        if self._tiers is not None:
            self._tiers.offload(self._key_of(block_id), block_id)
        self._groups[self._group_of[block_id]].prefix_cache.evict(block_id)

    def _key_of(self, block_id: int) -> bytes:
        """Return the key under which the tiers know a block that the prefix cache knows."""
        group = self._groups[self._group_of[block_id]]
        return group.key(group.prefix_cache.key_of(block_id))
