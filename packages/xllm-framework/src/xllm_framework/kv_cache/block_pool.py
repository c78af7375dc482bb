"""Counts who holds which block. Knows nothing of sequences, of tokens or of what a block contains.

Every block but block 0 is in exactly one of three states:

                 allocate                     release, retained
      +------+ -----------> +-----------+ -----------------------> +--------+
      | free |              | allocated |                          | cached |
      +------+ <----------- +-----------+ <----------------------- +--------+
         ^    release, not retained            share                    |
         +--------------------------------------------------------------+
                      evicted, least recently used first

    num_allocated + num_cached + num_free = num_usable = num_blocks - 1

"Retained" is the prefix cache's word that the block's content can be found again. Block 0 is padding: block tables are
filled up with it, and it is never given out. All operations are O(1) a block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from xllm_framework.errors import IntegrityError, InvalidConfig, OutOfBlocks

PADDING_BLOCK = 0
"""The block that no sequence owns. It may stand in lists of blocks to be shared or released, which does nothing."""
_ALWAYS_HELD = 1 << 60


class BlockPool:
    """Blocks [1, num_blocks) with reference counts; block 0 is padding.

    Args:
        num_blocks: blocks of the cache, the padding block included; at least 2.
        on_evict: called with the id of each retained block that is taken for other content.

    Raises:
        InvalidConfig: `num_blocks` is below 2.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] | None = None) -> None:
        if num_blocks < 2:
            raise InvalidConfig(f"num_blocks must be 2 or more (block 0 is padding), not {num_blocks}.")
        self._on_evict = on_evict
        self._references = [0] * num_blocks
        self._references[PADDING_BLOCK] = _ALWAYS_HELD
        self._is_retained = bytearray(num_blocks)
        self._free = list(range(num_blocks - 1, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_usable(self) -> int:
        """Blocks that can be given out in all."""
        return len(self._references) - 1

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds, with content that can be found again; they can be taken."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_allocated(self) -> int:
        """Blocks that somebody holds."""
        return self.num_usable - self.num_available

    def num_references(self, block_id: int) -> int:
        """How many holders the block has."""
        return self._references[block_id]

    def count_unheld(self, blocks: Iterable[int]) -> int:
        """Return how many of `blocks` nobody holds: so many fewer are available once they are shared."""
        references = self._references
        return [references[block_id] for block_id in blocks].count(0)

    def count_private(self, table: Sequence[int]) -> int:
        """Return how many blocks at the end of `table` have one holder; O(that many)."""
        references, count = self._references, 0
        for block_id in reversed(table):
            if references[block_id] > 1:
                break
            count += 1
        return count

    def is_retained(self, block_id: int) -> bool:
        """Whether the block's content can be found again."""
        return bool(self._is_retained[block_id])

    @property
    def retained_flags(self) -> bytearray:
        """`is_retained` of every block, by id; not to be changed."""
        return self._is_retained

    def allocate(self, count: int) -> list[int]:
        """Give `count` blocks, each with one reference: free ones first, then the least recently used cached ones.

        Raises:
            OutOfBlocks: fewer than `count` are available; nothing changes.
        """
        if count > self.num_available:
            raise OutOfBlocks(f"{count} KV blocks are needed and {self.num_available} are available.")
        while len(self._free) < count:
            self._evict()
        split = len(self._free) - count
        blocks = self._free[split:]
        del self._free[split:]
        blocks.reverse()
        for block_id in blocks:
            self._references[block_id] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each of `blocks`, which are allocated or cached."""
        for block_id in blocks:
            if self._references[block_id] == 0:
                del self._cached[block_id]
            self._references[block_id] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each of `blocks`, the last one first.

        A block without holders becomes cached if it is retained, else free. Because the last block of a table is
        released first, the deepest block of a prompt is the least recently used, and is evicted before its prefix.
        """
        for block_id in reversed(blocks):
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                if self._is_retained[block_id]:
                    self._cached[block_id] = None
                else:
                    self._free.append(block_id)

    def retain(self, block_id: int) -> None:
        """Keep the content of an allocated block when its last holder leaves."""
        self._is_retained[block_id] = True

    def _evict(self) -> None:
        block_id, _ = self._cached.popitem(last=False)
        self._is_retained[block_id] = False
        self._free.append(block_id)
        if self._on_evict is not None:
            self._on_evict(block_id)

    def check_integrity(self) -> None:
        """Check that the three states part the pool; O(num_blocks).

        Raises:
            IntegrityError: a block is in no state or in two, or the padding block was given out.
        """
        free = set(self._free)
        if len(free) != len(self._free):
            raise IntegrityError("The free list of the block pool holds a block twice.")
        if (
            PADDING_BLOCK in free
            or PADDING_BLOCK in self._cached
            or self._references[PADDING_BLOCK] < _ALWAYS_HELD // 2
        ):
            raise IntegrityError("The padding block 0 was given out.")
        for block_id in range(1, len(self._references)):
            references = self._references[block_id]
            states = (references > 0) + (block_id in free) + (block_id in self._cached)
            if states != 1 or references < 0:
                raise IntegrityError(
                    f"Block {block_id} has {references} references, is {'' if block_id in free else 'not '}free and is "
                    f"{'' if block_id in self._cached else 'not '}cached: it must be exactly one of the three."
                )
            if (block_id in free and self._is_retained[block_id]) or (
                block_id in self._cached and not self._is_retained[block_id]
            ):
                raise IntegrityError(f"Block {block_id} is free but retained, or cached but not retained.")
