"""Reference counts, states and the order of eviction."""

from __future__ import annotations

import pytest

from xllm_framework.errors import IntegrityError, OutOfBlocks
from xllm_framework.kv_cache import BlockPool


def test_block_zero_is_never_given_out_and_every_other_once() -> None:
    pool = BlockPool(6)
    assert sorted(pool.allocate(5)) == [1, 2, 3, 4, 5]
    with pytest.raises(OutOfBlocks, match="1 KV blocks are needed and 0 are available"):
        pool.allocate(1)
    pool.check_integrity()


def test_a_refused_allocation_evicts_nothing() -> None:
    evicted: list[int] = []
    pool = BlockPool(6, evicted.append)
    blocks = pool.allocate(4)
    for block_id in blocks:
        pool.retain(block_id)
    pool.release(blocks)
    with pytest.raises(OutOfBlocks):
        pool.allocate(6)
    assert evicted == []
    assert (pool.num_free, pool.num_cached, pool.num_allocated) == (1, 4, 0)
    pool.allocate(3)
    assert evicted == [blocks[3], blocks[2]]
    pool.check_integrity()


def test_a_shared_block_stays_until_its_last_holder_leaves() -> None:
    pool = BlockPool(4)
    (block_id,) = pool.allocate(1)
    pool.share([block_id])
    pool.release([block_id])
    assert (pool.num_references(block_id), pool.num_free) == (1, 2)
    pool.release([block_id])
    assert (pool.num_references(block_id), pool.num_free) == (0, 3)


def test_a_cached_block_can_be_shared_again() -> None:
    pool = BlockPool(4)
    (block_id,) = pool.allocate(1)
    pool.retain(block_id)
    pool.release([block_id])
    assert (pool.num_cached, pool.num_free) == (1, 2)
    pool.share([block_id])
    assert (pool.num_cached, pool.num_allocated, pool.num_references(block_id)) == (0, 1, 1)
    pool.check_integrity()


def test_a_block_released_twice_is_reported() -> None:
    pool = BlockPool(4)
    (block_id,) = pool.allocate(1)
    pool.release([block_id])
    pool.release([block_id])
    with pytest.raises(IntegrityError, match=f"Block {block_id}"):
        pool.check_integrity()
