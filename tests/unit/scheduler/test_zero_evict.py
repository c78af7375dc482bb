"""The gate's answer equals a step-by-step simulation, and with it nobody is preempted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from support.scheduler_harness import SchedulerHarness
from xllm_framework.kv_cache import NO_MATCH, BlockManager
from xllm_framework.request import Request, SamplingParams, Sequence
from xllm_scheduler.queue import QueueEntry
from xllm_scheduler.zero_evict import ZeroEvictGate

BLOCK_SIZE = 4


def entry(number: int, num_tokens: int, max_tokens: int) -> QueueEntry:
    request = Request(f"r{number}", [number] * num_tokens, SamplingParams(max_tokens=max_tokens), arrival_time_s=0.0)
    return QueueEntry(request, request.sequences[0], number, (number,), (number,))


def runs_out(lengths: list[tuple[int, int]], num_blocks: int, assumed: int) -> bool:
    """Whether sequences of (tokens, max_tokens), with blocks of their own, ever need more than there are; token by token."""
    for time in range(200):
        needed = 0
        for num_tokens, max_tokens in lengths:
            if time <= min(max(assumed, BLOCK_SIZE), max_tokens):
                needed += -(-(num_tokens + time) // BLOCK_SIZE)
        if needed > num_blocks:
            return True
    return False


@given(
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 40)), min_size=1, max_size=6),
    spare=st.integers(0, 30),
    assumed=st.integers(1, 50),
)
@settings(deadline=None, max_examples=300)
def test_the_gate_agrees_with_a_simulation_token_by_token(lengths, spare: int, assumed: int) -> None:
    held = sum(-(-num_tokens // BLOCK_SIZE) for num_tokens, _ in lengths)
    blocks = BlockManager(held + spare + 1, BLOCK_SIZE, enable_prefix_cache=False)
    entries = [entry(number, *length) for number, length in enumerate(lengths)]
    *running, candidate = entries
    for other in running:
        assert blocks.admit(other.sequence, NO_MATCH, other.sequence.num_tokens)
    allowed = ZeroEvictGate(assumed).allows(candidate, NO_MATCH, running, blocks)
    assert allowed is (len(lengths) == 1 or not runs_out(lengths, held + spare, assumed))


def test_shared_blocks_are_counted_once() -> None:
    blocks = BlockManager(13, BLOCK_SIZE)
    first = entry(1, 33, 3)
    assert blocks.admit(first.sequence, NO_MATCH, 33)
    first.sequence.num_computed_tokens = 33
    blocks.publish(first.sequence, 0, 33)
    second = QueueEntry(first.request, Sequence("s", 0, [1] * 33), 1, (1,), (1,))
    matched = blocks.match_prefix(second.sequence)
    assert len(matched) == 8
    gate = ZeroEvictGate(100)
    assert gate.allows(second, matched, [first], blocks)
    assert not gate.allows(second, NO_MATCH, [first], blocks)


def test_with_true_lengths_nobody_is_preempted_and_without_the_gate_somebody_is() -> None:
    preemptions = {}
    for is_on in (True, False):
        harness = SchedulerHarness(
            num_blocks=30, enable_zero_evict=is_on, zero_evict_output_tokens=100, enable_prefix_cache=False
        )
        for number in range(12):
            harness.add(
                f"r{number}", [3 + number] * (5 + number % 7), max_tokens=10 + 5 * (number % 5), ignore_eos=True
            )
            harness.step()
        harness.run()
        harness.check_outputs()
        preemptions[is_on] = harness.scheduler.stats().num_preemptions
    assert preemptions[True] == 0
    assert preemptions[False] > 0


def test_a_sequence_that_runs_alone_is_always_admitted() -> None:
    harness = SchedulerHarness(num_blocks=10, enable_zero_evict=True, zero_evict_output_tokens=9999)
    harness.add("r", [5] * 12, max_tokens=9000, ignore_eos=True)
    harness.run()
    assert harness.last["r", 0].finish_reason == "length"
