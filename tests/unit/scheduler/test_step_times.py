"""How long steps took: alone, with one of lead, and where one was dropped."""

from __future__ import annotations

import pytest

from xllm_scheduler.step_times import StepTimes


def test_a_step_alone_takes_from_its_plan_to_its_end() -> None:
    times = StepTimes()
    times.plan(1.0)
    assert times.settle(1.25) == 0.25
    times.plan(5.0)
    assert times.settle(5.5) == 0.5


def test_a_step_planned_ahead_begins_when_the_one_before_it_ends() -> None:
    times = StepTimes()
    times.plan(1.0)
    times.plan(1.125)
    assert times.settle(2.0) == 1.0
    times.plan(2.125)
    assert times.settle(2.75) == 0.75
    assert times.settle(3.0) == 0.25


def test_a_dropped_step_leaves_no_time() -> None:
    times = StepTimes()
    times.plan(1.0)
    times.plan(1.5)
    times.drop()
    assert times.settle(2.0) == 1.0
    with pytest.raises(IndexError):
        times.settle(3.0)
