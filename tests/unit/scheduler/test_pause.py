"""Pause and resume: nothing runs meanwhile, and nobody can tell afterwards."""

from __future__ import annotations

import pytest

from support.scheduler_harness import SchedulerHarness
from xllm_scheduler.pause import PauseMode, PauseState

PROMPT = [3 + 7 * i % 40 for i in range(61)]


def busy(**options) -> SchedulerHarness:
    harness = SchedulerHarness(max_num_seqs=2, **options)
    for number in range(4):
        harness.add(f"r{number}", PROMPT[number : number + 20], max_tokens=8, ignore_eos=True)
    for _ in range(3):
        harness.step()
    return harness


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_keep_gives_blocks_up_and_goes_on_with_the_same_tokens(is_overlapped: bool) -> None:
    harness = busy(is_overlapped=is_overlapped)
    harness.scheduler.pause(PauseMode.KEEP)
    assert harness.scheduler.pause_state is PauseState.PAUSING
    harness.step()
    assert harness.scheduler.pause_state is PauseState.PAUSED
    assert harness.groups[-1].is_empty
    harness.step()
    assert not harness.scheduler.has_work
    harness.check_idle()
    stats = harness.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 4)
    harness.add("new", PROMPT[:9], max_tokens=3, ignore_eos=True)
    harness.step()
    assert harness.groups[-1].is_empty
    harness.scheduler.resume()
    assert harness.scheduler.has_work
    harness.run()
    harness.check_outputs()
    assert harness.requests["r0"].sequences[0].num_preemptions == 1


def test_abort_ends_what_runs_and_what_waits_and_takes_new_requests() -> None:
    harness = busy()
    harness.scheduler.pause(PauseMode.ABORT)
    deltas = harness.step()
    assert {(delta.request_id, delta.finish_reason) for delta in deltas} == {(f"r{n}", "abort") for n in range(4)}
    assert harness.scheduler.pause_state is PauseState.PAUSED
    harness.check_idle()
    harness.add("new", PROMPT[:9], max_tokens=3, ignore_eos=True)
    assert not harness.scheduler.has_work
    harness.scheduler.resume()
    harness.run()
    assert harness.tokens["new", 0] == harness.expected("new")


def test_wait_finishes_what_has_begun_and_nothing_else() -> None:
    harness = busy()
    harness.scheduler.pause(PauseMode.WAIT)
    harness.add("urgent", PROMPT[:9], max_tokens=3, ignore_eos=True, priority=-5)
    while harness.scheduler.pause_state is PauseState.PAUSING:
        harness.step()
    ended = [delta.request_id for delta in harness.deltas if delta.finish_reason]
    assert ended == ["r0", "r1"]
    assert not harness.scheduler.has_work
    assert harness.scheduler.stats().num_waiting == 3
    harness.scheduler.resume()
    harness.run()
    harness.check_outputs()
    ended = [delta.request_id for delta in harness.deltas if delta.finish_reason]
    assert ended[2] == "urgent"


def test_what_was_preempted_while_waiting_for_the_end_still_ends() -> None:
    harness = SchedulerHarness(num_blocks=12, enable_prefix_cache=False)
    for number in range(3):
        harness.add(f"r{number}", PROMPT[number : number + 12], max_tokens=20, ignore_eos=True)
    harness.step()
    harness.scheduler.pause(PauseMode.WAIT)
    harness.add("late", PROMPT[:9], max_tokens=2, ignore_eos=True)
    while harness.scheduler.pause_state is PauseState.PAUSING:
        harness.step()
    assert harness.scheduler.stats().num_preemptions > 0
    assert [delta.request_id for delta in harness.deltas if delta.finish_reason] == ["r0", "r1", "r2"]
    harness.scheduler.resume()
    harness.run()
    harness.check_outputs()


def test_a_held_request_can_be_aborted_and_can_expire() -> None:
    harness = busy()
    harness.scheduler.pause(PauseMode.WAIT)
    harness.add("late", PROMPT[:9], deadline_s=1.0)
    harness.scheduler.abort(["r3"])
    harness.step()
    assert harness.last["r3", 0].finish_reason == "abort"
    harness.now_s = 2.0
    harness.step()
    assert harness.last["late", 0].error_kind == "deadline_exceeded"
    harness.scheduler.resume()
    harness.run()


def test_pausing_an_idle_scheduler_takes_one_empty_step_and_resuming_none() -> None:
    harness = SchedulerHarness()
    harness.scheduler.pause()
    assert harness.scheduler.has_work
    harness.step()
    assert (harness.scheduler.pause_state, harness.scheduler.has_work) == (PauseState.PAUSED, False)
    harness.scheduler.resume()
    assert (harness.scheduler.pause_state, harness.scheduler.has_work) == (PauseState.RUNNING, False)
