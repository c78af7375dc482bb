"""Short prompts overtake long ones, but not for ever; and chunks follow the time that steps take."""

from __future__ import annotations

import pytest

from support.scheduler_harness import SchedulerHarness
from xllm_scheduler.budget import UNLIMITED
from xllm_scheduler.latency import LatencyModel
from xllm_scheduler.pace import FIRST_TOKENS, MIN_TOKENS, StepPace
from xllm_scheduler.strategies import PATIENCE, STRATEGIES

LONG = list(range(1, 41))
SHORT = [7, 8, 9]
COSTS = [name for name in LatencyModel.__struct_fields__ if name.endswith("_us")]


def first_step_of(harness: SchedulerHarness, request_id: str) -> int:
    """Return the number of the step that computes the last token of the request's prompt."""
    num_prompt_tokens = harness.requests[request_id].sequences[0].num_prompt_tokens
    return next(
        number
        for number, group in enumerate(harness.groups)
        for item in group.batches[0]
        if item.request.request_id == request_id and item.start + item.num_scheduled_tokens >= num_prompt_tokens
    )


@pytest.mark.parametrize(("strategy", "is_overtaking"), [("fair", True), ("priority", False), ("fcfs", False)])
def test_a_short_prompt_overtakes_long_ones_in_flight_and_waiting(strategy: str, is_overtaking: bool) -> None:
    harness = SchedulerHarness(max_num_batched_tokens=8, priority_strategy=strategy, enable_prefix_cache=False)
    for number in range(3):
        harness.add(f"long{number}", LONG, max_tokens=2, ignore_eos=True)
    harness.step()
    harness.add("short", SHORT, max_tokens=2, ignore_eos=True)
    harness.run()
    harness.check_outputs()
    assert (first_step_of(harness, "short") == 1) is is_overtaking


def test_a_long_prompt_is_not_overtaken_by_those_that_come_much_later() -> None:
    harness = SchedulerHarness(max_num_batched_tokens=8, enable_prefix_cache=False)
    harness.add("long", LONG, max_tokens=2, ignore_eos=True)
    harness.step()
    harness.now_s += PATIENCE * 25e-6 * len(LONG)
    harness.add("late", SHORT, max_tokens=2, ignore_eos=True)
    harness.run()
    assert first_step_of(harness, "late") >= first_step_of(harness, "long")


def test_orders_are_made_anew_when_tokens_take_much_longer_than_was_thought() -> None:
    harness = SchedulerHarness(max_num_batched_tokens=64, enable_prefix_cache=False, num_blocks=400)
    harness.add("first", LONG * 10, max_tokens=2, ignore_eos=True)
    harness.add("second", LONG * 10, max_tokens=2, ignore_eos=True)

    def take_time() -> None:
        harness.now_s += 0.001 * harness.groups[-1].num_tokens

    for _ in range(8):
        harness.step(before_update=take_time)
    harness.now_s += PATIENCE * 25e-6 * len(LONG) * 10
    harness.add("short", SHORT, max_tokens=2, ignore_eos=True)
    harness.step()
    assert first_step_of(harness, "short") == 8
    harness.run()
    harness.check_outputs()


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("zero", [*COSTS, "all"])
def test_a_fit_may_leave_any_cost_at_nothing(zero: str, strategy: str) -> None:
    costs = dict.fromkeys(COSTS if zero == "all" else [zero], 0.0)
    harness = SchedulerHarness(
        latency=LatencyModel(**costs), max_num_batched_tokens=16, priority_strategy=strategy, prefill_step_ms=20.0
    )

    def take_time() -> None:
        harness.now_s += 0.001 * harness.groups[-1].num_tokens

    for number in range(4):
        harness.add(f"request{number}", LONG[: 40 - 9 * number], max_tokens=3, ignore_eos=True)
    while harness.scheduler.has_work:
        harness.step(before_update=take_time)
    harness.check_outputs()


def test_priority_goes_before_length() -> None:
    harness = SchedulerHarness(max_num_batched_tokens=8, enable_prefix_cache=False)
    harness.add("short", SHORT, max_tokens=2, ignore_eos=True, priority=1)
    harness.add("urgent", LONG, max_tokens=2, ignore_eos=True, priority=0)
    harness.run()
    assert first_step_of(harness, "urgent") < first_step_of(harness, "short")


def test_where_steps_are_short_one_with_an_overtaker_holds_no_chunk_of_a_long_prompt() -> None:
    harness = SchedulerHarness(prefill_step_ms=100.0, enable_prefix_cache=False, num_blocks=400)
    harness.add("long", LONG * 10, max_tokens=2, ignore_eos=True)
    harness.step()
    harness.add("short", SHORT, max_tokens=2, ignore_eos=True)
    harness.step()
    harness.step()
    names = [[item.request.request_id for item in group.batches[0]] for group in harness.groups]
    assert names == [["long"], ["short"], ["short", "long"]]
    harness.run()
    harness.check_outputs()


def test_chunks_shrink_until_a_step_takes_the_time_it_should() -> None:
    harness = SchedulerHarness(prefill_step_ms=100.0, enable_prefix_cache=False, num_blocks=2000)
    harness.add("long", LONG * 50, max_tokens=1, ignore_eos=True)

    while not harness.is_idle:
        harness.step(before_update=lambda: take_time(harness))
    sizes = [num_tokens for _, num_tokens in harness.chunks("long")]
    assert sizes[0] == FIRST_TOKENS
    assert all(40 <= size <= 50 for size in sizes[3:15])
    assert all(90 <= size <= 100 for size in sizes[25:-1]), "nobody has come for long: steps take twice as long"


def test_steps_stay_short_while_somebody_decodes_or_comes() -> None:
    harness = SchedulerHarness(prefill_step_ms=100.0, enable_prefix_cache=False, num_blocks=3000)
    harness.add("decoding", SHORT, max_tokens=70, ignore_eos=True)
    harness.step()
    harness.add("long", LONG * 100, max_tokens=1, ignore_eos=True)
    while not harness.is_idle:
        harness.step(before_update=lambda: take_time(harness))
    last = harness.chunks("decoding")[-1][0]
    sizes = [size for _, size in harness.chunks("long")]
    assert last == len(SHORT) + 68
    assert all(40 <= size <= 50 for size in sizes[3:65])
    assert max(sizes[70:]) > 80, "nobody decodes any more"
    harness.add("another", LONG * 10, max_tokens=1, ignore_eos=True)
    harness.step(before_update=lambda: take_time(harness))
    assert harness.chunks("another")[-1][1] <= 50


def take_time(harness: SchedulerHarness) -> None:
    harness.now_s += 0.005 + 0.002 * harness.groups[-1].num_tokens


def test_the_first_step_takes_on_what_a_latency_model_says() -> None:
    model = LatencyModel.linear(constant_us=1000, per_token_us=100, per_kv_token_us=0)
    harness = SchedulerHarness(prefill_step_ms=5.0, num_blocks=2000, latency=model)
    harness.add("long", LONG * 50, max_tokens=1, ignore_eos=True)
    harness.step()
    assert harness.chunks("long") == [(0, 40)]


def test_a_pace_keeps_its_bounds_and_ignores_small_steps() -> None:
    pace = StepPace(0.1, 512)
    pace.observe(10, 5.0)
    assert pace.num_tokens == FIRST_TOKENS
    for _ in range(10):
        pace.observe(pace.num_tokens, 10.0)
    assert pace.num_tokens == MIN_TOKENS
    for _ in range(10):
        pace.observe(pace.num_tokens, 0.001)
    assert pace.num_tokens == 512


def test_without_a_time_nothing_is_limited() -> None:
    pace = StepPace(0.0, 512)
    pace.observe(512, 10.0)
    assert (pace.is_kept, pace.num_tokens) == (False, UNLIMITED)
