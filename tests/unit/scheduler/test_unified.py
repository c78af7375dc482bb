"""The unified policy: one list by rank, urgent work at the cost of what is not, and steps that end in time."""

from __future__ import annotations

import pytest

from support.scheduler_harness import SchedulerHarness
from xllm_framework.request import ServiceObjectives
from xllm_scheduler.chunking import MIN_CHUNK
from xllm_scheduler.latency import LatencyModel
from xllm_scheduler.preemption import MAX_LOSSES_TO_JUNIORS

PROMPT = [3 + 7 * i % 40 for i in range(400)]
LATENCY = LatencyModel.linear(constant_us=1000, per_token_us=100, per_kv_token_us=0)
"""A step takes 1 ms, and 0.1 ms a token."""


def names(harness: SchedulerHarness, step: int = -1) -> list[str]:
    return [item.request.request_id for item in harness.groups[step].batches[0]]


def test_a_prompt_of_higher_priority_takes_the_blocks_of_lower_ones_and_no_more_than_it_needs() -> None:
    harness = SchedulerHarness(num_blocks=30, policy="unified", enable_prefix_cache=False)
    for number in range(3):
        harness.add(f"low{number}", PROMPT[number : number + 32], max_tokens=8, ignore_eos=True, priority=5)
    harness.step()
    assert harness.scheduler.stats().num_running == 3
    harness.add("high", PROMPT[50:82], max_tokens=8, ignore_eos=True)
    harness.step()
    preempted = {name: request.sequences[0].num_preemptions for name, request in harness.requests.items()}
    assert preempted == {"low0": 0, "low1": 0, "low2": 1, "high": 0}
    harness.run()
    harness.check_outputs()


def test_equal_priority_never_preempts_to_admit() -> None:
    harness = SchedulerHarness(num_blocks=30, policy="unified", enable_prefix_cache=False)
    for number in range(4):
        harness.add(f"r{number}", PROMPT[number : number + 32], max_tokens=8, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    assert harness.scheduler.stats().num_preemptions == 0


def test_nobody_is_preempted_for_a_prompt_that_would_not_fit_even_so() -> None:
    harness = SchedulerHarness(num_blocks=30, policy="unified", enable_prefix_cache=False)
    harness.add("first", PROMPT[:60], max_tokens=8, ignore_eos=True, priority=0)
    harness.add("low", PROMPT[60:80], max_tokens=8, ignore_eos=True, priority=9)
    harness.step()
    harness.add("huge", PROMPT[:100], max_tokens=2, ignore_eos=True, priority=1)
    harness.step()
    assert harness.scheduler.stats().num_preemptions == 0
    harness.run()
    harness.check_outputs()


def test_other_policies_do_not_preempt_to_admit() -> None:
    for policy in ("decode_first", "prefill_first"):
        harness = SchedulerHarness(num_blocks=30, policy=policy, enable_prefix_cache=False)
        harness.add("low", PROMPT[:80], max_tokens=8, ignore_eos=True, priority=5)
        harness.step()
        harness.add("high", PROMPT[50:98], max_tokens=8, ignore_eos=True)
        harness.run()
        assert harness.scheduler.stats().num_preemptions == 0


def test_a_senior_loses_its_blocks_to_juniors_only_a_few_times() -> None:
    harness = SchedulerHarness(
        num_blocks=24,
        policy="unified",
        priority_strategy="multi_slo_and_prio",
        enable_prefix_cache=False,
        latency=LATENCY,
    )
    harness.add("old", PROMPT[:60], max_tokens=30, ignore_eos=True)
    for number in range(12):
        harness.step()
        harness.add(
            f"urgent{number}",
            PROMPT[number : number + 60],
            max_tokens=2,
            ignore_eos=True,
            objectives=ServiceObjectives(ttft_slo_ms=9.0),
        )
    harness.run()
    harness.check_outputs()
    assert 0 < harness.requests["old"].sequences[0].num_preemptions <= MAX_LOSSES_TO_JUNIORS


def test_an_urgent_prompt_goes_before_calm_decodes_and_they_wait_if_time_is_short() -> None:
    harness = SchedulerHarness(
        policy="unified", priority_strategy="multi_slo_and_prio", max_num_batched_tokens=40, latency=LATENCY
    )
    harness.add("calm", PROMPT[:8], max_tokens=20, ignore_eos=True)
    harness.step()
    harness.add("urgent", PROMPT[20:60], max_tokens=2, objectives=ServiceObjectives(ttft_slo_ms=5.5))
    harness.step()
    assert names(harness) == ["urgent"]
    harness.run()
    harness.check_outputs()


def test_a_chunk_ends_in_time_and_a_tiny_one_waits() -> None:
    harness = SchedulerHarness(policy="decode_first", default_tpot_slo_ms=21.0, latency=LATENCY)
    harness.add("r", PROMPT[:350], max_tokens=2, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    assert harness.chunks("r") == [(0, 200), (200, 150), (350, 1)]


@pytest.mark.parametrize("policy", ["decode_first", "prefill_first", "unified"])
def test_an_impossible_time_limit_still_makes_progress(policy: str) -> None:
    harness = SchedulerHarness(
        policy=policy, default_tpot_slo_ms=0.5, default_ttft_slo_ms=0.5, latency=LATENCY, max_num_batched_tokens=200
    )
    for number in range(4):
        harness.add(f"r{number}", PROMPT[number : number + 120], max_tokens=4, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    assert max(size for _, size in harness.chunks("r0")) == MIN_CHUNK


def test_prefill_first_limits_prompts_by_their_objective_and_decodes_by_theirs() -> None:
    harness = SchedulerHarness(
        policy="prefill_first", default_tpot_slo_ms=10.0, default_ttft_slo_ms=16.0, latency=LATENCY
    )
    harness.add("r", PROMPT[:300], max_tokens=2, ignore_eos=True)
    harness.run()
    assert harness.chunks("r") == [(0, 150), (150, 150), (300, 1)]


def test_leftover_tokens_make_chunks_longer_only_if_asked() -> None:
    for is_shared, sizes in ((False, [16, 16, 8]), (True, [40])):
        harness = SchedulerHarness(
            max_prefill_chunk=16, max_num_batched_tokens=64, share_leftover_tokens=is_shared, enable_prefix_cache=False
        )
        harness.add("r", PROMPT[:40], max_tokens=2, ignore_eos=True)
        harness.add("s", PROMPT[40:80], max_tokens=2, ignore_eos=True)
        harness.run()
        harness.check_outputs()
        assert [size for _, size in harness.chunks("r")][: len(sizes)] == sizes
        assert max(group.num_tokens for group in harness.groups) <= 64


def test_no_sequence_is_admitted_while_too_many_blocks_are_in_use() -> None:
    for share, num_running in ((0.3, 1), (0.5, 2), (1.0, 3)):
        harness = SchedulerHarness(num_blocks=40, max_block_use=share, enable_prefix_cache=False)
        for number in range(3):
            harness.add(f"r{number}", PROMPT[number : number + 47], max_tokens=2, ignore_eos=True)
        harness.step()
        assert harness.scheduler.stats().num_running == num_running
        harness.run()
        harness.check_outputs()


def test_a_short_prompt_among_long_ones_waits_for_one_short_step_only() -> None:
    harness = SchedulerHarness(
        num_blocks=4000,
        policy="unified",
        priority_strategy="sjf",
        default_tpot_slo_ms=7.5,
        latency=LATENCY,
        enable_prefix_cache=False,
    )
    for number in range(4):
        harness.add(f"long{number}", [3 + (number + 7 * i) % 40 for i in range(3000)], max_tokens=2, ignore_eos=True)
    for _ in range(3):
        harness.step()
    harness.add("short", PROMPT[:30], max_tokens=3, ignore_eos=True)
    harness.step()
    assert harness.chunks("short") == [(0, 30)]
    assert max(group.num_tokens for group in harness.groups) <= 65
    harness.run()
    harness.check_outputs()
