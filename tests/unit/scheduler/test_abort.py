"""Aborts in every state: blocks come back, tokens in flight are dropped, neighbours do not notice."""

from __future__ import annotations

import pytest

from support.scheduler_harness import SchedulerHarness

PROMPT = [3 + 7 * i % 40 for i in range(61)]


def harness_in(state: str, **options) -> SchedulerHarness:
    """Return a harness whose request "r" is in `state`, beside "other", which decodes."""
    harness = SchedulerHarness(max_prefill_chunk=8, **options)
    harness.add("other", PROMPT[:7], max_tokens=30, ignore_eos=True)
    harness.step()
    if state == "preempted":
        harness.add("r", PROMPT[10:30], max_tokens=30, ignore_eos=True)
        for _ in range(200):
            harness.step()
            if harness.requests["r"].sequences[0].num_preemptions:
                return harness
        raise AssertionError("never preempted")
    harness.add("r", PROMPT[10:30], max_tokens=10, ignore_eos=True)
    for _ in range({"waiting": 0, "prefill": 1, "decode": 5}[state]):
        harness.step()
    return harness


@pytest.mark.parametrize("is_in_flight", [False, True])
@pytest.mark.parametrize("state", ["waiting", "prefill", "decode", "preempted"])
def test_an_abort_frees_blocks_and_leaves_the_neighbour_alone(state: str, is_in_flight: bool) -> None:
    harness = harness_in(state, **({"num_blocks": 13, "block_size": 4} if state == "preempted" else {}))
    sequence = harness.requests["r"].sequences[0]
    expected_status = {"waiting": "WAITING", "prefill": "PREFILL", "decode": "DECODE", "preempted": "WAITING"}
    assert sequence.status.name == expected_status[state]
    num_tokens = len(harness.tokens["r", 0])

    def abort() -> None:
        harness.scheduler.abort(["r", "unknown", ("r", 0), ("r", 7)])
        assert sequence.block_table == []

    if not is_in_flight:
        abort()
    deltas = harness.step(before_update=abort if is_in_flight else None)
    (delta,) = [delta for delta in deltas if delta.request_id == "r"]
    assert (delta.finish_reason, delta.token_ids, delta.error) == ("abort", [], None)
    assert len(harness.tokens["r", 0]) == num_tokens
    assert harness.scheduler.stats().num_running == 1
    harness.run()
    assert harness.tokens["other", 0] == harness.expected("other")


def test_aborting_the_only_request_leaves_one_empty_step_that_reports_it() -> None:
    harness = SchedulerHarness()
    harness.add("r", PROMPT, max_tokens=10)
    harness.scheduler.abort(["r"])
    assert harness.scheduler.has_work
    (delta,) = harness.step()
    assert delta.finish_reason == "abort"
    assert harness.groups[0].is_empty
    assert not harness.scheduler.has_work
    assert harness.scheduler.stats().num_steps == 0
    harness.add("r", PROMPT, max_tokens=2, ignore_eos=True)


@pytest.mark.parametrize("enable_prefix_cache", [True, False])
@pytest.mark.parametrize("num_steps", [0, 1, 4])
@pytest.mark.parametrize("index", [0, 1])
def test_one_sequence_of_several_can_be_aborted(index: int, num_steps: int, enable_prefix_cache: bool) -> None:
    harness = SchedulerHarness(enable_prefix_cache=enable_prefix_cache, max_prefill_chunk=8)
    harness.add("r", PROMPT[:20], n=3, max_tokens=6, ignore_eos=True)
    for _ in range(num_steps):
        harness.step()
    harness.scheduler.abort([("r", index)])
    harness.run()
    assert harness.last["r", index].finish_reason == "abort"
    for other in {0, 1, 2} - {index}:
        assert harness.last["r", other].finish_reason == "length"
        assert harness.tokens["r", other] == harness.expected("r", other)


def test_aborting_a_request_ends_all_its_sequences_once() -> None:
    harness = SchedulerHarness(max_prefill_chunk=8)
    harness.add("r", PROMPT[:20], n=4, max_tokens=6, prompt_logprobs=1)
    harness.step()
    harness.scheduler.abort([("r", 2), "r", "r"])
    deltas = harness.step()
    assert sorted(delta.index for delta in deltas) == [0, 1, 2, 3]
    assert all(delta.finish_reason == "abort" and delta.prompt_logprobs is None for delta in deltas)
    harness.check_idle()


def test_what_an_aborted_prompt_computed_stays_in_the_cache() -> None:
    harness = SchedulerHarness(block_size=4, max_prefill_chunk=8)
    harness.add("r", PROMPT[:32], max_tokens=6)
    harness.step()
    harness.step()
    harness.scheduler.abort(["r"])
    harness.run()
    harness.add("again", PROMPT[:32], max_tokens=2, ignore_eos=True)
    harness.run()
    assert harness.last["again", 0].num_cached_tokens == 16
    assert harness.tokens["again", 0] == harness.expected("again")


def test_an_aborted_step_in_flight_publishes_nothing() -> None:
    harness = SchedulerHarness(block_size=4, max_prefill_chunk=8)
    harness.add("r", PROMPT[:32], max_tokens=6)
    harness.step(before_update=lambda: harness.scheduler.abort(["r"]))
    assert harness.blocks.num_cached_blocks == 0
    harness.check_idle()


def test_tokens_of_a_step_go_to_their_own_sequences_when_an_earlier_row_is_aborted() -> None:
    harness = SchedulerHarness()
    for number in range(4):
        harness.add(f"r{number}", PROMPT[number : number + 9], max_tokens=6, ignore_eos=True)
    harness.step()
    harness.step(before_update=lambda: harness.scheduler.abort(["r0", "r2"]))
    harness.run()
    for name in ("r1", "r3"):
        assert harness.tokens[name, 0] == harness.expected(name)


def test_the_queue_does_not_keep_what_was_aborted_behind_a_head_that_cannot_run() -> None:
    harness = SchedulerHarness(max_num_seqs=1)
    for number in range(500):
        harness.add(f"r{number}", PROMPT[:20], max_tokens=3, ignore_eos=True, n=2)
        if number >= 3:
            harness.scheduler.abort([f"r{number}"])
    assert harness.scheduler.stats().num_waiting == 3
    assert len(list(harness.scheduler._lifecycle.waiting._heap)) < 100
    harness.run()
    for number in range(3):
        assert harness.tokens[f"r{number}", 1] == harness.expected(f"r{number}", 1)
