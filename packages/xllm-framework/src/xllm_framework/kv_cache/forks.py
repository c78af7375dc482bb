"""Forks of a sequence share their blocks, also those that are not full; before one writes, it gets its own. Ids only.

Knows nothing of why a sequence is forked, or of how blocks are copied.
"""

from __future__ import annotations

from collections import Counter

from xllm_framework.kv_cache.block_pool import BlockPool
from xllm_framework.request.sequence import Sequence


def own_last_blocks(
    sequences: list[Sequence], pool: BlockPool, block_size: int, num_groups: int, *, can_copy: bool
) -> list[list[tuple[int, int]]] | None:
    """Give each of `sequences`, all forks of one another, last blocks of its own in each group of layers, or change nothing.

    Where blocks that are not full are shared, all but their last holder get others. Returns the (from, to) to be copied, by
    sequence; unless `can_copy`, none are, and the tokens in them count as not computed any more. None if there are too few
    blocks.
    """
    left = Counter(s.block_table[-1] for s in sequences if s.num_computed_tokens < len(s.block_table) * block_size)
    num_needed = (len(sequences) - len(left)) * num_groups
    if num_needed > pool.num_available:
        return None
    fresh = iter(pool.allocate(num_needed))
    copies: list[list[tuple[int, int]]] = []
    for sequence in sequences:
        pairs: list[tuple[int, int]] = []
        last = sequence.block_table[-1]
        if sequence.num_computed_tokens == len(sequence.block_table) * block_size:
            for table in sequence.tables:
                table.append(next(fresh))
        elif left[last] > 1:
            left[last] -= 1
            pairs = [(table[-1], next(fresh)) for table in sequence.tables]
            pool.release([old for old, _ in pairs])
            sequence.tables = [[*table[:-1], new] for table, (_, new) in zip(sequence.tables, pairs, strict=True)]
            if not can_copy:
                sequence.num_computed_tokens = (len(sequence.block_table) - 1) * block_size
                pairs = []
        copies.append(pairs)
    return copies
