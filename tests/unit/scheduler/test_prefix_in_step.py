"""Prompts share blocks within one step and at later chunk boundaries, and only what was really computed."""

from __future__ import annotations

import numpy as np
import pytest

from support.scheduler_harness import SchedulerHarness
from xllm_framework.batch import Batch, BatchGroup, ForwardOutput

PROMPT = [3 + 7 * i % 40 for i in range(400)]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_prompts_of_one_step_share_the_blocks_that_the_first_computes(is_enabled: bool) -> None:
    harness = SchedulerHarness(enable_in_batch_prefix=is_enabled)
    for number in range(4):
        harness.add(f"r{number}", [*PROMPT[:40], number, 9], max_tokens=3, ignore_eos=True)
    harness.step()
    assert len(harness.groups[0].batches[0]) == 4
    assert harness.store.num_computed_tokens == (42 + 3 * 2 if is_enabled else 4 * 42)
    harness.run()
    harness.check_outputs()
    assert harness.last["r1", 0].num_cached_tokens == (40 if is_enabled else 0)


def test_only_what_the_step_computes_is_shared_and_others_continue_from_there() -> None:
    harness = SchedulerHarness(max_prefill_chunk=16, max_num_batched_tokens=24, chunked_match_frequency=0)
    for number in range(2):
        harness.add(f"r{number}", [*PROMPT[:40], number], max_tokens=3, ignore_eos=True)
    harness.step()
    assert harness.chunks("r0") == [(0, 16)]
    assert harness.chunks("r1") == [(16, 8)]
    harness.run()
    harness.check_outputs()


def test_a_sharer_computes_at_least_two_tokens() -> None:
    harness = SchedulerHarness()
    for number in range(2):
        harness.add(f"r{number}", PROMPT[:41], max_tokens=3, ignore_eos=True)
    harness.step()
    assert harness.chunks("r1") == [(36, 5)]
    harness.run()
    harness.check_outputs()


def test_salts_and_prompt_logprobs_do_not_share_within_a_step_either() -> None:
    harness = SchedulerHarness()
    harness.add("plain", PROMPT[:41], max_tokens=2, ignore_eos=True)
    harness.add("salted", PROMPT[:41], max_tokens=2, ignore_eos=True, cache_salt="s")
    harness.add("scored", PROMPT[:41], max_tokens=2, ignore_eos=True, prompt_logprobs=0)
    harness.step()
    assert harness.chunks("salted") == harness.chunks("scored") == [(0, 41)]


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_who_shares_with_a_row_that_fails_is_computed_anew(is_overlapped: bool) -> None:
    harness = SchedulerHarness(is_overlapped=is_overlapped)
    harness.store.fail_rows["bad"] = "logits are not finite"
    harness.add("bad", PROMPT[:42], max_tokens=3)
    harness.add("good", [*PROMPT[:42], 5], max_tokens=6, ignore_eos=True)
    harness.add("fine", [*PROMPT[:42], 5, 6, 7], max_tokens=6, ignore_eos=True)
    harness.run()
    assert harness.last["bad", 0].error == "logits are not finite"
    for name in ("good", "fine"):
        assert harness.tokens[name, 0] == harness.expected(name)
        assert harness.requests[name].sequences[0].num_preemptions == 1
    assert harness.chunks("good")[0] == (40, 3)
    assert (0, 43) in harness.chunks("good")[1:]


def test_what_could_not_be_computed_at_all_is_not_shared() -> None:
    harness = SchedulerHarness()
    harness.add("bad", PROMPT[:42], max_tokens=3)
    harness.add("good", [*PROMPT[:42], 5], max_tokens=6, ignore_eos=True)
    group = harness.scheduler.schedule()
    rest = Batch()
    rest.add(group.batches[0].scheduled[1])
    harness.scheduler.abort(["bad"])
    deltas = harness.scheduler.update(BatchGroup((rest,)), [ForwardOutput(np.full(1, 7, np.int32))])
    assert [delta.request_id for delta in deltas] == ["bad"]
    harness.scheduler.check_integrity()
    harness.last.clear()
    harness.run()
    assert harness.tokens["good", 0] == harness.expected("good")


def test_a_leader_that_is_aborted_in_flight_has_still_computed_what_is_shared() -> None:
    harness = SchedulerHarness()
    harness.add("leader", PROMPT[:42], max_tokens=3)
    harness.add("sharer", [*PROMPT[:42], 5], max_tokens=6, ignore_eos=True)
    harness.step(before_update=lambda: harness.scheduler.abort(["leader"]))
    harness.run()
    assert harness.tokens["sharer", 0] == harness.expected("sharer")
    assert harness.requests["sharer"].sequences[0].num_preemptions == 0


def test_a_prompt_in_chunks_looks_into_the_cache_again() -> None:
    computed = {}
    for frequency in (0, 2, 50):
        harness = SchedulerHarness(
            num_blocks=400,
            max_prefill_chunk=32,
            max_num_batched_tokens=48,
            chunked_match_frequency=frequency,
            enable_in_batch_prefix=False,
        )
        for name in ("ahead", "behind"):
            harness.add(name, PROMPT, max_tokens=2, ignore_eos=True)
        harness.run()
        harness.check_outputs()
        assert harness.chunks("ahead")[:2] == [(0, 32), (32, 32)]
        computed[frequency] = sum(size for _, size in harness.chunks("behind")) - 1
        assert computed[frequency] == 400 - harness.last["behind", 0].num_cached_tokens
    assert computed[0] == 400
    assert computed[50] < computed[2] < 300


def test_a_prompt_in_flight_announces_its_next_chunk_too() -> None:
    harness = SchedulerHarness(max_prefill_chunk=32, max_num_batched_tokens=64)
    harness.add("ahead", PROMPT[:80], max_tokens=2, ignore_eos=True)
    harness.step()
    harness.add("behind", PROMPT[:90], max_tokens=2, ignore_eos=True)
    harness.step()
    assert harness.chunks("ahead")[-1] == (32, 32)
    assert harness.chunks("behind") == [(64, 26)]
    harness.run()
    harness.check_outputs()


def test_a_leader_whose_row_fails_leaves_its_followers_a_leader() -> None:
    harness = SchedulerHarness()
    harness.store.fail_rows["r"] = "broken"
    harness.add("r", PROMPT[:20], n=3, max_tokens=4, ignore_eos=True)
    harness.step()
    harness.store.fail_rows.clear()
    harness.run()
    assert harness.last["r", 0].error == "broken"
    for index in (1, 2):
        assert harness.tokens["r", index] == harness.expected("r", index)
