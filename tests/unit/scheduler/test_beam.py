"""Beam search through the scheduler equals brute force, also in tiny pools, with neighbours, aborts and overlap."""

from __future__ import annotations

import random

import pytest

from support.beam_reference import beam_search, made_up_logprobs
from support.scheduler_harness import EOS, SchedulerHarness


def harness(**options) -> SchedulerHarness:
    side = SchedulerHarness(**options)
    side.store.logprobs_after = made_up_logprobs
    return side


def check(side: SchedulerHarness, request_id: str) -> None:
    request = side.requests[request_id]
    sampling = request.sampling
    prompt = request.sequences[0].prompt_token_ids.tolist()
    ending = set() if sampling.ignore_eos else {EOS}
    wanted = beam_search(
        made_up_logprobs, prompt, sampling.beam_width, sampling.max_tokens, ending, sampling.length_penalty
    )
    for index, (tokens, _, reason) in enumerate(wanted[: sampling.n]):
        assert side.tokens[request_id, index] == tokens
        assert side.last[request_id, index].finish_reason == reason


@pytest.mark.parametrize("can_copy_blocks", [False, True])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -0.5])
@pytest.mark.parametrize(("width", "n"), [(2, 1), (4, 4), (30, 12)])
def test_beams_are_those_of_brute_force(width: int, n: int, length_penalty: float, can_copy_blocks: bool) -> None:
    side = harness(num_blocks=400)
    side.blocks.can_copy_blocks = can_copy_blocks
    for number in range(4):
        options = {"beam_width": width, "n": n, "length_penalty": length_penalty}
        side.add(f"r{number}", [7] * (3 + number), max_tokens=6, ignore_eos=number == 3, **options)
    side.run()
    for number in range(4):
        check(side, f"r{number}")
    has_copied = any(item.block_copies for group in side.groups for batch in group.batches for item in batch)
    assert has_copied == can_copy_blocks


def test_one_prefill_serves_all_beams() -> None:
    side = harness(num_blocks=400)
    side.blocks.can_copy_blocks = True
    side.add("a", [5] * 30, max_tokens=5, beam_width=8, n=8, ignore_eos=True)
    side.run()
    assert side.store.num_computed_tokens == 30 + 4 * 8


def test_all_beams_run_in_the_same_steps() -> None:
    side = harness(num_blocks=400, max_num_batched_tokens=20, max_num_seqs=20)
    side.blocks.can_copy_blocks = True
    side.add("a", [5] * 30, max_tokens=8, beam_width=12, ignore_eos=True)
    side.add("b", [6] * 30, max_tokens=8, beam_width=12, ignore_eos=True)
    side.run()
    for request_id in "ab":
        check(side, request_id)
        for group in side.groups:
            scheduled = [item for batch in group.batches for item in batch if item.request.request_id == request_id]
            if any(item.sequence.num_output_tokens for item in scheduled) and scheduled[0].start >= 30:
                assert len(scheduled) == 12


@pytest.mark.parametrize("can_copy_blocks", [False, True])
@pytest.mark.parametrize("is_overlapped", [False, True])
@pytest.mark.parametrize("enable_prefix_cache", [False, True])
def test_beams_survive_preemption_and_leave_no_block(enable_prefix_cache, is_overlapped, can_copy_blocks) -> None:
    draw = random.Random(1)
    side = harness(num_blocks=24, enable_prefix_cache=enable_prefix_cache, is_overlapped=is_overlapped)
    side.blocks.can_copy_blocks = can_copy_blocks
    aborted = set()
    for number in range(40):
        prompt = [7] * draw.randrange(1, 12) + [draw.randrange(1, 50)]
        if draw.random() < 0.5:
            side.add(f"b{number}", prompt, max_tokens=6, beam_width=draw.randrange(2, 6), n=2)
        else:
            side.add(f"s{number}", prompt, seed=number, max_tokens=20)
        for _ in range(draw.randrange(4)):
            side.step()
        if draw.random() < 0.2:
            victim = draw.choice(sorted(side.requests))
            side.scheduler.abort([victim if draw.random() < 0.5 else (victim, 0)])
            aborted.add(victim)
    side.run()
    assert side.scheduler.stats().num_preemptions > 3
    for request_id in side.requests:
        if side.last[request_id, 0].finish_reason == "abort":
            assert request_id in aborted
        elif request_id.startswith("b"):
            check(side, request_id)
        else:
            assert side.tokens[request_id, 0] == side.expected(request_id)


def test_a_pool_too_small_for_the_beams_ends_them_by_length() -> None:
    side = harness(num_blocks=6)
    side.add("a", [5] * 6, max_tokens=30, beam_width=4, n=2, ignore_eos=True)
    side.run()
    assert side.last["a", 0].finish_reason == "length"
    assert 0 < len(side.tokens["a", 0]) < 30


def test_more_beams_than_sequences_run_at_once_are_refused() -> None:
    from xllm_framework.errors import InvalidRequest

    side = harness(max_num_seqs=4)
    with pytest.raises(InvalidRequest, match="4 is the limit"):
        side.add("a", [5], beam_width=5)
