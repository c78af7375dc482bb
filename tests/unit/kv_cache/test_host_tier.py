"""Blocks that leave the prefix cache come back from host memory; slots are never given away while they are read."""

from __future__ import annotations

import pytest

from support.scheduler_harness import SchedulerHarness
from xllm_framework.kv_cache import HostTier


def test_the_least_recently_used_slot_is_given_away_first():
    tier = HostTier(2)
    tier.offload(b"a", 1)
    tier.offload(b"b", 2)
    assert tier.find(b"a") is not None
    assert tier.find(b"c") is None
    moves = tier.take_moves()
    assert [block_id for block_id, _ in moves.to_host] == [1, 2]
    assert tier.take_moves() is None
    tier.offload(b"c", 3)
    assert [tier.find(key) is not None for key in (b"b", b"a", b"c")] == [False, True, True]
    tier.check_integrity()


def test_a_slot_that_is_read_in_this_step_is_kept():
    tier = HostTier(1)
    tier.offload(b"a", 1)
    tier.take_moves()
    slot = tier.find(b"a")
    tier.offload(b"b", 2)
    tier.restore(slot, 7)
    moves = tier.take_moves()
    assert (moves.to_host, moves.to_device) == ([], [(slot, 7)])
    tier.offload(b"b", 2)
    assert tier.find(b"b") is not None


def test_a_block_that_is_known_is_not_moved_again():
    tier = HostTier(4)
    tier.offload(b"a", 1)
    tier.take_moves()
    tier.offload(b"a", 9)
    assert tier.take_moves() is None


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_an_evicted_prompt_is_not_computed_again(is_overlapped):
    harness = SchedulerHarness(num_blocks=20, num_host_blocks=60, is_overlapped=is_overlapped)
    prompts = [[number] * 40 for number in (1, 2, 3)]
    for turn in range(3):
        for number, prompt in enumerate(prompts):
            harness.add(f"r{turn}.{number}", prompt, max_tokens=3)
            harness.run()
    harness.check_outputs()
    assert harness.store.num_computed_tokens < 3 * (40 + 3) + 6 * (4 + 3) + 9
    assert harness.last["r2.0", 0].num_cached_tokens == 36
    assert harness.scheduler.stats().prefix_cache_hits >= 6 * 36


def test_salts_share_nothing_in_host_memory_either():
    harness = SchedulerHarness(num_blocks=12, num_host_blocks=60)
    for number, salt in enumerate(["x", "y", "x", "z"]):
        harness.add(f"r{number}", [5] * 40, max_tokens=2, cache_salt=salt)
        harness.run()
    harness.check_outputs()
    assert [harness.last[f"r{number}", 0].num_cached_tokens for number in range(4)] == [0, 0, 36, 0]


def test_prompts_that_owe_log_probabilities_are_computed_whole():
    harness = SchedulerHarness(num_blocks=12, num_host_blocks=60)
    for number, k in enumerate([None, None, 1]):
        harness.add(f"r{number}", [5 + number % 2] * 40, max_tokens=2, prompt_logprobs=k)
        harness.run()
    harness.check_outputs()
    assert len(harness.last["r2", 0].prompt_logprobs or harness.deltas[-2].prompt_logprobs) == 40
