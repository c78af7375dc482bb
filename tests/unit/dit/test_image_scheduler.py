"""Which images are drawn together: joined between steps, by shape, in order, with bounded overtaking."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from xllm_framework.errors import InvalidRequest, QueueFull
from xllm_scheduler.dit_batch import OVERTAKINGS_PER_PLACE, ImageBatchScheduler


def test_images_join_between_steps_up_to_the_places() -> None:
    scheduler = ImageBatchScheduler(3, 10)
    scheduler.add("a", "small", 2)
    assert scheduler.schedule(0.0).batch == [("a", 0), ("a", 1)]
    scheduler.add("b", "small", 2)
    plan = scheduler.schedule(0.0)
    assert plan.begun == [("b", 0)]
    assert plan.batch == [("a", 0), ("a", 1), ("b", 0)]
    scheduler.finish([("a", 0)])
    assert scheduler.schedule(0.0).begun == [("b", 1)]


def test_another_shape_waits_until_the_batch_has_run_out() -> None:
    scheduler = ImageBatchScheduler(2, 10)
    scheduler.add("a", "small", 1)
    scheduler.schedule(0.0)
    scheduler.add("b", "large", 1)
    assert scheduler.schedule(0.0).batch == [("a", 0)]
    assert scheduler.positions() == {"b": 0}
    scheduler.finish([("a", 0)])
    assert scheduler.schedule(0.0).batch == [("b", 0)]


def test_nobody_is_passed_for_ever() -> None:
    scheduler = ImageBatchScheduler(2, 100)
    scheduler.add("first", "small", 1)
    scheduler.schedule(0.0)
    scheduler.add("large", "large", 1)
    running = ("first", 0)
    for number in range(50):
        scheduler.add(f"small-{number}", "small", 1)
        plan = scheduler.schedule(0.0)
        if ("large", 0) in plan.batch:
            break
        scheduler.finish([running])
        running = plan.begun[0] if plan.begun else running
        if not plan.begun:
            scheduler.finish(plan.batch)
    assert number <= OVERTAKINGS_PER_PLACE * 2 + 2


def test_priority_goes_before_arrival() -> None:
    scheduler = ImageBatchScheduler(1, 10)
    scheduler.add("late", "s", 1, priority=5)
    scheduler.add("soon", "s", 1, priority=-1)
    assert scheduler.schedule(0.0).batch == [("soon", 0)]


def test_a_deadline_ends_only_what_has_not_begun() -> None:
    scheduler = ImageBatchScheduler(1, 10)
    scheduler.add("begun", "s", 2, deadline_s=1.0)
    scheduler.add("waiting", "s", 1, deadline_s=1.0)
    assert scheduler.schedule(0.5).batch == [("begun", 0)]
    plan = scheduler.schedule(2.0)
    assert plan.expired == ["waiting"]
    scheduler.finish([("begun", 0)])
    assert scheduler.schedule(2.0).batch == [("begun", 1)]


def test_the_queue_is_bounded_and_ids_are_unique() -> None:
    scheduler = ImageBatchScheduler(1, 1)
    scheduler.add("a", "s", 1)
    with pytest.raises(InvalidRequest):
        scheduler.add("a", "s", 1)
    with pytest.raises(QueueFull):
        scheduler.add("b", "s", 1)


def test_nothing_begins_while_paused() -> None:
    scheduler = ImageBatchScheduler(2, 10)
    scheduler.add("a", "s", 1)
    assert scheduler.schedule(0.0, may_begin=False).batch == []
    assert scheduler.schedule(0.0).batch == [("a", 0)]


class SchedulerMachine(RuleBasedStateMachine):
    """Every image is drawn exactly once unless its request is removed or expires."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = ImageBatchScheduler(3, 1000)
        self.expected: dict[str, int] = {}
        self.begun: set[tuple[str, int]] = set()
        self.done: set[tuple[str, int]] = set()
        self.shapes: dict[str, str] = {}
        self.number = 0
        self.batch: list[tuple[str, int]] = []

    @rule(shape=st.sampled_from("xyz"), num_images=st.integers(1, 5), priority=st.integers(-1, 1))
    def add(self, shape: str, num_images: int, priority: int) -> None:
        self.number += 1
        name = f"r{self.number}"
        self.scheduler.add(name, shape, num_images, priority=priority)
        self.expected[name], self.shapes[name] = num_images, shape

    @rule()
    def schedule(self) -> None:
        plan = self.scheduler.schedule(0.0)
        assert not self.begun & set(plan.begun)
        assert len({self.shapes[name] for name, _ in plan.batch}) <= 1
        assert plan.batch or not self.expected
        self.begun |= set(plan.begun)
        self.batch = plan.batch

    @precondition(lambda self: self.batch)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        slots = data.draw(st.sets(st.sampled_from(self.batch), min_size=1))
        self.scheduler.finish(slots)
        self.done |= slots
        self.batch = [slot for slot in self.batch if slot not in slots]
        for name in {name for name, _ in slots}:
            if sum(slot[0] == name for slot in self.done) == self.expected[name]:
                del self.expected[name]

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.expected)))
        assert self.scheduler.remove([name, "unknown"]) == [name]
        del self.expected[name]
        self.batch = [slot for slot in self.batch if slot[0] != name]

    @invariant()
    def holds(self) -> None:
        self.scheduler.check_integrity()
        assert self.scheduler.has_work == bool(self.expected)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("xy"), st.integers(1, 4)), min_size=1, max_size=12))
def test_everything_is_drawn_in_the_end(requests: list[tuple[str, int]]) -> None:
    scheduler = ImageBatchScheduler(3, 100)
    for number, (shape, num_images) in enumerate(requests):
        scheduler.add(str(number), shape, num_images)
    drawn = set()
    for _ in range(200):
        plan = scheduler.schedule(0.0)
        if not plan.batch:
            break
        drawn |= set(plan.batch)
        scheduler.finish(plan.batch)
    assert len(drawn) == sum(num_images for _, num_images in requests)
    assert not scheduler.has_work
