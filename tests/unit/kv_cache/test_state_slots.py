"""Sequences use two slots of linear state in turns, and go on from states that were saved."""

from __future__ import annotations

import pytest

from support.scheduler_harness import SchedulerHarness
from xllm_framework.errors import InvalidConfig, InvalidRequest
from xllm_framework.kv_cache import BlockManager, StateSlots
from xllm_framework.request import Sequence


def test_slots_are_given_in_pairs_and_saved_states_make_room() -> None:
    slots = StateSlots(6, 8)
    first, second = Sequence("a", 0, [1]), Sequence("b", 0, [1])
    slots.take(first, None)
    slots.save(first, b"key")
    assert slots.knows(b"key")
    (copy,) = slots.take_copies()
    assert copy[0] == first.state_slots[0]
    assert copy[1] not in first.state_slots
    slots.take(second, b"key")
    assert slots.take_copies() == [(copy[1], second.state_slots[0])]
    assert not slots.has_room
    slots.release(first)
    slots.take(first, None)
    assert slots.knows(b"key")
    slots.release(first)
    slots.release(second)
    for number in range(5):
        slots.take(first, None)
        slots.save(first, bytes([number]))
        slots.release(first)
    assert slots.num_saved <= 3
    assert not slots.knows(b"key")
    slots.check_integrity([])


def test_a_state_turns_with_each_step_and_back() -> None:
    slots, sequence = StateSlots(4, 8), Sequence("a", 0, [1])
    slots.take(sequence, None)
    pair = sequence.state_slots
    sequence.turn_states()
    assert sequence.state_slots == (pair[1], pair[0])
    sequence.turn_states()
    assert sequence.state_slots == pair


def test_impossible_sizes_are_named() -> None:
    with pytest.raises(InvalidConfig, match="num_state_slots must be 3"):
        StateSlots(2, 8)
    with pytest.raises(InvalidConfig, match="every 6 tokens"):
        BlockManager(10, 4, states=StateSlots(5, 6))


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_a_prompt_ends_its_steps_where_states_are_saved_and_later_ones_start_there(is_overlapped: bool) -> None:
    harness = SchedulerHarness(
        num_state_slots=20, state_stride=8, is_overlapped=is_overlapped, max_num_batched_tokens=20
    )
    prompt = list(range(1, 31))
    harness.add("first", prompt, max_tokens=20, ignore_eos=True)
    harness.run()
    assert harness.chunks("first")[:3] == [(0, 16), (16, 8), (24, 6)]
    harness.add("again", prompt, max_tokens=3, ignore_eos=True)
    harness.add("longer", [*prompt, *harness.tokens["first", 0], 9], max_tokens=3, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    assert harness.last["again", 0].num_cached_tokens == 24
    assert harness.last["longer", 0].num_cached_tokens == 48


def test_sequences_wait_for_slots() -> None:
    harness = SchedulerHarness(num_state_slots=6, enable_prefix_cache=False)
    for number in range(5):
        harness.add(f"r{number}", [1 + number] * 9, max_tokens=9, ignore_eos=True)
    most = 0
    while not harness.is_idle:
        harness.step()
        most = max(most, harness.scheduler.stats().num_running)
    harness.check_outputs()
    assert most == 2


def test_beams_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="linear state"):
        SchedulerHarness(num_state_slots=9).add("beams", [1, 2], beam_width=2)
