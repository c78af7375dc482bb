"""What must always hold of the blocks of a pool and the tables over it; see `BlockManager.check_integrity`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as List

from xllm_framework.errors import IntegrityError
from xllm_framework.kv_cache.block_pool import PADDING_BLOCK, BlockPool
from xllm_framework.kv_cache.table_group import TableGroup
from xllm_framework.request.sequence import Sequence


def check_blocks(
    pool: BlockPool,
    groups: List[TableGroup],
    sequences: Iterable[Sequence],
    in_flight: Mapping[int, int],
    block_size: int,
) -> None:
    """Check the pool, the tables of `sequences`, which are all that can hold blocks, and what is known of them; O(blocks).

    Raises:
        IntegrityError: names the first block or sequence that breaks an invariant.
    """
    pool.check_integrity()
    held: Counter[int] = Counter()
    private: Counter[int] = Counter()
    owners: dict[int, set[tuple[str, int]]] = {}
    """By last block: whose it is; forks have one name together."""
    for sequence in sequences:
        num_computed = max(sequence.num_computed_tokens, in_flight.get(id(sequence), 0))
        _check_lengths(sequence, groups)
        for group, table in zip(groups, sequence.tables, strict=False):
            group.check_table(sequence, table)
            held.update(block_id for block_id in table if block_id != PADDING_BLOCK)
            private.update(table[num_computed // block_size :])
            if table:
                owners.setdefault(table[-1], set()).add((sequence.request_id, sequence.index))
    for block_id in range(1, pool.num_usable + 1):
        if pool.num_references(block_id) != held[block_id]:
            raise IntegrityError(
                f"Block {block_id} has {pool.num_references(block_id)} references and {held[block_id]} holders."
            )
    for block_id, num_writers in private.items():
        is_forked = held[block_id] == num_writers and len(owners.get(block_id, ())) == 1
        if (num_writers != 1 and not is_forked) or pool.is_retained(block_id):
            raise IntegrityError(f"Block {block_id} is still written to, but by several sequences, or published.")
    for group in groups:
        group.prefix_cache.check_integrity(pool.retained_flags)
    if sum(pool.retained_flags) != sum(len(group.prefix_cache) for group in groups):
        raise IntegrityError("The pool retains blocks that the prefix cache does not know.")


def _check_lengths(sequence: Sequence, groups: List[TableGroup]) -> None:
    """The first table is the shortest, so that the scheduler need only look at that one."""
    lengths = [len(table) for table in sequence.tables]
    if lengths[0] and (len(lengths) != len(groups) or lengths[0] != min(lengths)):
        raise IntegrityError(f"{sequence} has tables of {lengths} blocks for {len(groups)} groups of layers.")
