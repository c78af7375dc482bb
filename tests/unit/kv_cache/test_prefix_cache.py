"""Keys are chained, keyed by the process and by the salt; only full blocks are known."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xllm_framework.kv_cache import HashPrefixCache

TOKENS = st.lists(st.integers(0, 2), max_size=24)


def keys_of(cache: HashPrefixCache, tokens: list[int], salt: str = "") -> list[bytes]:
    keys: list[bytes] = []
    cache.match(np.array(tokens, np.int32), keys, salt, len(tokens) // 2)
    return keys


@given(TOKENS, TOKENS, st.sampled_from(["", "a"]), st.sampled_from(["", "a"]))
def test_keys_are_equal_exactly_where_salt_and_all_tokens_so_far_are(first, second, salt, other_salt) -> None:
    cache = HashPrefixCache(2)
    ours, theirs = keys_of(cache, first, salt), keys_of(cache, second, other_salt)
    for index, (key, other) in enumerate(zip(ours, theirs, strict=False)):
        end = 2 * (index + 1)
        assert (key == other) == (salt == other_salt and first[:end] == second[:end])


def test_keys_differ_between_processes_and_not_with_one_secret() -> None:
    tokens = [1, 2, 3, 4]
    assert keys_of(HashPrefixCache(2), tokens) != keys_of(HashPrefixCache(2), tokens)
    assert keys_of(HashPrefixCache(2, b"s" * 32), tokens) == keys_of(HashPrefixCache(2, b"s" * 32), tokens)
    assert all(len(key) == 16 for key in keys_of(HashPrefixCache(2), tokens))


@given(TOKENS, st.integers(0, 12))
def test_keys_computed_in_parts_are_those_computed_at_once(tokens: list[int], split: int) -> None:
    cache = HashPrefixCache(2)
    array, keys = np.array(tokens, np.int32), []
    cache.match(array, keys, "", min(split, len(tokens) // 2))
    cache.match(array, keys, "", len(tokens) // 2)
    assert keys == keys_of(cache, tokens)


@given(TOKENS, TOKENS)
def test_the_longest_common_run_of_full_blocks_is_found(stored: list[int], wanted: list[int]) -> None:
    cache = HashPrefixCache(2)
    table = list(range(1, len(stored) // 2 + 1))
    assert cache.insert(np.array(stored, np.int32), [], "", table, 0) == table
    common = 0
    while common < min(len(stored), len(wanted)) and stored[common] == wanted[common]:
        common += 1
    found = cache.match(np.array(wanted, np.int32), [], "", len(wanted) // 2)
    assert found == table[: common // 2]
    assert cache.match(np.array(wanted, np.int32), [], "other", len(wanted) // 2) == []


def test_evicted_blocks_end_the_run() -> None:
    cache = HashPrefixCache(2)
    tokens = np.arange(8, dtype=np.int32)
    cache.insert(tokens, [], "", [5, 6, 7, 8], 0)
    cache.evict(7)
    assert cache.match(tokens, [], "", 4) == [5, 6]
    assert len(cache) == 3
