"""Layers share tables by window; groups hold what they need, from one pool, on the device and behind it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.beam_reference import beam_search, made_up_logprobs
from support.scheduler_harness import EOS, SchedulerHarness
from xllm_framework.errors import InvalidConfig
from xllm_framework.kv_cache import BlockManager, CacheLayout, LayerGroup, layer_groups
from xllm_framework.kv_cache.layer_groups import num_tensors
from xllm_framework.kv_cache.prefix_match import longest_usable
from xllm_framework.kv_cache.sliding_window import SlidingWindow

BLOCK_SIZE = 4
WINDOW = 9


def test_layers_of_one_kind_are_one_group() -> None:
    assert layer_groups([0] * 5) == (LayerGroup((0, 1, 2, 3, 4)),)
    assert layer_groups([8] * 3) == (LayerGroup((0, 1, 2), 8),)


def test_groups_are_of_equal_size_and_those_with_windows_come_first() -> None:
    assert layer_groups([8, 8, 0, 8, 8, 0]) == (LayerGroup((0, 1), 8), LayerGroup((3, 4), 8), LayerGroup((2, 5)))
    gemma = layer_groups([0 if layer % 6 == 5 else 512 for layer in range(26)])
    assert [len(group.layers) for group in gemma] == [5, 5, 5, 5, 2, 4]
    assert num_tensors(gemma) == 5


@given(st.lists(st.sampled_from([0, 0, 16, 64]), min_size=1, max_size=60))
def test_every_layer_is_in_one_group_of_its_window_and_few_places_are_empty(windows: list[int]) -> None:
    groups = layer_groups(windows)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    assert all(windows[layer] == group.sliding_window for group in groups for layer in group.layers)
    for window in set(windows):
        of_kind = [group for group in groups if group.sliding_window == window]
        num_places = len(of_kind) * num_tensors(groups)
        assert num_places - sum(len(group.layers) for group in of_kind) <= num_places / 4


@given(
    st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=1, max_size=3),
    st.lists(st.sampled_from([0, 1, 5, 9, 30]), min_size=3, max_size=3),
    st.integers(0, 12),
)
def test_a_prompt_goes_on_at_the_last_place_where_every_group_can(known, windows, barred) -> None:
    places = [[1 if is_known else None for is_known in column] for column in known]
    found = [SlidingWindow(window, BLOCK_SIZE, 1000) if window else None for window in windows[: len(places)]]

    def is_usable(count: int) -> bool:
        firsts = [max(0, count * BLOCK_SIZE - w + 1) // BLOCK_SIZE if w else 0 for w in windows[: len(places)]]
        return count != barred and all(all(column[f:count]) for column, f in zip(known, firsts, strict=True))

    wanted = max((count for count in range(1, 13) if is_usable(count)), default=0)
    assert longest_usable(places, found, lambda count: count != barred) == wanted


def test_a_layout_says_how_long_a_text_fits() -> None:
    layout = CacheLayout((8, 0))
    assert layout.blocks_of_sequence(400, BLOCK_SIZE, chunk=8) == 100 + 3 + 4
    assert layout.tokens_that_fit(107, BLOCK_SIZE, chunk=8) == 400
    assert CacheLayout((8,)).tokens_that_fit(50, BLOCK_SIZE, chunk=8) == 200
    with pytest.raises(InvalidConfig, match="num_blocks must be 11 or more"):
        layout.tokens_that_fit(9, BLOCK_SIZE, chunk=8)
    with pytest.raises(InvalidConfig, match="num_blocks must be 11 or more"):
        BlockManager(10, BLOCK_SIZE, sliding_windows=(8, 0))


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_a_sliding_group_holds_its_window_while_the_other_holds_all(is_overlapped: bool) -> None:
    harness = SchedulerHarness(
        num_blocks=70, sliding_windows=(WINDOW, 0), is_overlapped=is_overlapped, max_prefill_chunk=8
    )
    request = harness.add("long", list(range(1, 121)), max_tokens=60, ignore_eos=True)
    most = 0
    while not harness.is_idle:
        harness.step()
        most = max(most, harness.blocks.num_allocated_blocks)
        if request.sequences[0].block_table:
            assert len(request.sequences[0].more_tables[0]) >= len(request.sequences[0].block_table)
    assert 45 <= most <= 45 + 4 + 4
    harness.check_idle()
    harness.check_outputs()
    assert harness.scheduler.stats().num_preemptions == 0


@pytest.mark.parametrize("windows", [(WINDOW,), (WINDOW, 0), (5, WINDOW), (WINDOW, 0, 0)])
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_evicted_blocks_come_back_from_the_host_also_with_windows(windows, is_overlapped: bool) -> None:
    harness = SchedulerHarness(
        num_blocks=17 * len(windows), num_host_blocks=200, sliding_windows=windows, is_overlapped=is_overlapped
    )
    prompts = [[number] * 40 for number in (1, 2, 3, 4, 5)]
    for turn in range(3):
        for number, prompt in enumerate(prompts):
            harness.add(f"r{turn}.{number}", prompt, max_tokens=3, ignore_eos=True)
            harness.run()
    harness.check_outputs()
    assert [harness.last[f"r2.{number}", 0].num_cached_tokens for number in range(5)] == [36] * 5
    assert any(b.moves and b.moves.to_device for group in harness.groups for b in group.batches)


@pytest.mark.parametrize("windows", [(WINDOW,), (WINDOW, 0), (3, 5)])
@pytest.mark.parametrize("can_copy_blocks", [False, True])
def test_beams_are_those_of_brute_force_also_with_windows(windows, can_copy_blocks: bool) -> None:
    harness = SchedulerHarness(num_blocks=300, sliding_windows=windows, max_prefill_chunk=7)
    harness.blocks.can_copy_blocks = can_copy_blocks
    harness.store.logprobs_after = made_up_logprobs
    prompt = [1, 2, 3, 1, 2] * 4
    harness.add("beams", prompt, max_tokens=20, beam_width=4, n=2)
    harness.run()
    window = harness.sliding_window
    wanted = beam_search(lambda context: made_up_logprobs(context[-window:]), prompt, 4, 20, {EOS})
    assert [harness.tokens["beams", index] for index in range(2)] == [tokens for tokens, _, _ in wanted[:2]]
