"""Blocks behind a sliding window are given back, prompts are found without them, and answers show no trace of it."""

from __future__ import annotations

import pytest

from support.scheduler_harness import SchedulerHarness
from xllm_framework.errors import InvalidConfig
from xllm_framework.kv_cache.prefix_match import longest_usable
from xllm_framework.kv_cache.sliding_window import SlidingWindow

BLOCK_SIZE = 4


@pytest.mark.parametrize(
    ("num_tokens", "num_computed", "num_behind"),
    [(1, 0, 0), (1, 4, 1), (4, 4, 0), (4, 6, 0), (4, 7, 1), (5, 8, 1), (5, 7, 0), (6, 8, 0), (9, 16, 2)],
)
def test_a_block_is_behind_once_the_next_token_does_not_see_its_last_one(num_tokens, num_computed, num_behind):
    window = SlidingWindow(num_tokens, BLOCK_SIZE, 100)
    assert window.num_behind(num_computed) == num_behind
    first_seen = num_computed - num_tokens + 1
    assert BLOCK_SIZE * num_behind <= max(first_seen, 0) < BLOCK_SIZE * (num_behind + 1)


@pytest.mark.parametrize(
    ("known", "matched"),
    [
        ("abcdef", [0, 0, 0, 4, 5, 6]),  # 24 tokens: the next sees from 15 on
        ("def", [0, 0, 0, 4, 5, 6]),
        ("abcd", [0, 2, 3, 4]),
        ("a", [1]),
        ("bcd", [0, 2, 3, 4]),
        ("cdf", []),
        ("abef", [1, 2]),
    ],
)
def test_the_longest_beginning_whose_window_is_known_is_found(known: str, matched: list[int]) -> None:
    blocks = [ord(letter) - ord("a") + 1 if letter in known else None for letter in "abcdef"]
    window = SlidingWindow(10, BLOCK_SIZE, 100)
    count = longest_usable([blocks], [window])
    behind = window.num_behind(count * BLOCK_SIZE)
    assert [0] * behind + blocks[behind:count] == matched


def test_a_pool_must_hold_a_window_and_some_more() -> None:
    with pytest.raises(InvalidConfig, match="num_blocks must be 7 or more"):
        SlidingWindow(9, BLOCK_SIZE, 5)
    assert SlidingWindow(9, BLOCK_SIZE, 6).max_chunk == BLOCK_SIZE


@pytest.mark.parametrize("is_overlapped", [False, True])
@pytest.mark.parametrize("enable_prefix_cache", [False, True])
def test_a_sequence_much_longer_than_the_pool_runs_to_its_end(is_overlapped: bool, enable_prefix_cache: bool) -> None:
    harness = SchedulerHarness(
        num_blocks=10,
        block_size=BLOCK_SIZE,
        sliding_windows=(9,),
        is_overlapped=is_overlapped,
        enable_prefix_cache=enable_prefix_cache,
    )
    harness.add("long", list(range(1, 121)), max_tokens=100, ignore_eos=True)
    most = 0
    while not harness.is_idle:
        harness.step()
        most = max(most, harness.blocks.num_allocated_blocks)
    assert most <= 10
    harness.check_idle()
    harness.check_outputs()
    assert harness.scheduler.stats().num_preemptions == 0


def test_a_prompt_is_found_though_its_beginning_was_evicted() -> None:
    harness = SchedulerHarness(num_blocks=14, block_size=BLOCK_SIZE, sliding_windows=(9,))
    prompt = list(range(1, 45))
    harness.add("first", prompt, max_tokens=2, ignore_eos=True)
    harness.run()
    harness.add("other", [50] * 20, max_tokens=2, ignore_eos=True)
    harness.run()
    harness.add("again", prompt, max_tokens=2, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    assert harness.requests["again"].sequences[0].num_cached_tokens == 40


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_many_sequences_preempt_each_other_and_go_on(is_overlapped: bool) -> None:
    harness = SchedulerHarness(
        num_blocks=24,
        block_size=BLOCK_SIZE,
        sliding_windows=(17,),
        is_overlapped=is_overlapped,
        max_num_batched_tokens=30,
    )
    for number in range(8):
        harness.add(f"r{number}", list(range(1 + number, 60)), seed=number, max_tokens=60, n=2, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    assert harness.scheduler.stats().num_preemptions > 0
