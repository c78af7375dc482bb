"""The loop of images: progress, places in the queue, cancelling, deadlines, pauses, failures that stay with who is to blame."""

from __future__ import annotations

import queue
from collections.abc import Hashable, Sequence

from xllm_framework.errors import OutOfMemory, RequestFailed, XLLMError
from xllm_framework.request.image_messages import AddImages, ImageUpdate
from xllm_framework.request.image_params import ImageParams, RawImage
from xllm_framework.request.messages import AbortRequests, ImageUpdates, Pause, Resume, Shutdown
from xllm_runtime.master.dit_loop import DiTLoop
from xllm_scheduler.dit_batch import ImageBatchScheduler, ImageSlot


class FakeEngine:
    """Counts steps instead of drawing."""

    def __init__(self) -> None:
        self.steps: dict[ImageSlot, int] = {}
        self.num_steps: dict[ImageSlot, int] = {}
        self.batches: list[list[ImageSlot]] = []
        self.failing: dict[str, XLLMError] = {}
        self.is_out_of_memory = False

    def shape(self, params: ImageParams) -> Hashable:
        return params.width, params.height

    def begin(self, request_id: str, params: ImageParams) -> None:
        if request_id in self.failing:
            raise self.failing[request_id]
        for index in range(params.num_images):
            self.steps[request_id, index] = 0
            self.num_steps[request_id, index] = params.num_steps

    def step(self, slots: Sequence[ImageSlot]) -> dict[str, XLLMError]:
        self.batches.append(list(slots))
        if self.is_out_of_memory:
            return {request_id: OutOfMemory("full") for request_id, _ in slots}
        for slot in slots:
            self.steps[slot] += 1
        return {}

    def finish(self, slots: Sequence[ImageSlot]) -> tuple[dict[ImageSlot, RawImage], dict[str, XLLMError]]:
        for slot in slots:
            del self.steps[slot]
        return {slot: RawImage(1, 1, b"rgb") for slot in slots}, {}

    def progress(self, slot: ImageSlot) -> tuple[int, int]:
        return self.steps[slot], self.num_steps[slot]

    def drop(self, request_id: str) -> None:
        for slot in [slot for slot in self.steps if slot[0] == request_id]:
            del self.steps[slot]


class Driven:
    """A loop without a thread."""

    def __init__(self, max_images: int = 4) -> None:
        self.engine = FakeEngine()
        self.updates: list[ImageUpdate] = []
        self.outputs: list[ImageUpdates] = []
        self.now_s = 0.0
        self.loop = DiTLoop(
            ImageBatchScheduler(max_images, 3),
            self.engine,
            queue.SimpleQueue(),
            self._take,
            clock=lambda: self.now_s,
            check_integrity=True,
        )

    def _take(self, outputs: ImageUpdates) -> None:
        self.outputs.append(outputs)
        self.updates += outputs.updates

    def add(self, request_id: str, *, num_steps: int = 3, num_images: int = 1, width: int = 8, **more: object) -> None:
        params = ImageParams("p", width, 8, num_steps, num_images=num_images)
        self.loop.apply(AddImages(request_id, params, 0.0, **more))  # type: ignore[arg-type]

    def of(self, request_id: str) -> list[ImageUpdate]:
        return [update for update in self.updates if update.request_id == request_id]

    def finish(self) -> None:
        for _ in range(100):
            if not self.loop.has_work:
                return
            self.loop.step()
        raise AssertionError("the loop does not come to an end")


def test_progress_then_the_image() -> None:
    driven = Driven()
    driven.add("a")
    driven.finish()
    steps = [(update.num_steps_done, update.num_steps, update.finished) for update in driven.of("a")]
    assert steps == [(1, 3, False), (2, 3, False), (3, 3, True)]
    assert driven.of("a")[-1].image == RawImage(1, 1, b"rgb")
    assert driven.engine.steps == {}


def test_images_of_one_request_end_once_all_are_drawn() -> None:
    driven = Driven(max_images=2)
    driven.add("a", num_images=3, num_steps=2)
    driven.finish()
    images = [update.index for update in driven.of("a") if update.image is not None]
    assert sorted(index for index in images if index is not None) == [0, 1, 2]
    assert [update.finished for update in driven.of("a")].count(True) == 1
    assert driven.of("a")[-1].finished
    assert driven.of("a")[-1].num_steps_done == driven.of("a")[-1].num_steps == 6


def test_a_request_joins_between_steps_and_places_are_told() -> None:
    driven = Driven(max_images=1)
    driven.add("a", num_steps=2)
    driven.loop.step()
    driven.add("b")
    driven.add("c")
    driven.loop.step()
    driven.finish()
    assert [update.position for update in driven.of("c") if update.position is not None] == [1, 0]
    assert driven.engine.batches[2] == [("b", 0)]


def test_cancelling_frees_the_place_before_the_next_step() -> None:
    driven = Driven()
    driven.add("a", num_steps=10)
    driven.add("b", num_steps=10)
    driven.loop.step()
    driven.loop.apply(AbortRequests(["a", "unknown"]))
    driven.loop.step()
    assert driven.of("a")[-1].is_aborted
    assert driven.engine.batches[-1] == [("b", 0)]
    assert set(driven.engine.steps) == {("b", 0)}


def test_out_of_memory_fails_that_batch_alone() -> None:
    driven = Driven(max_images=2)
    for name in "abc":
        driven.add(name)
    driven.engine.is_out_of_memory = True
    driven.loop.step()
    driven.engine.is_out_of_memory = False
    driven.finish()
    assert [driven.of(name)[-1].error_kind for name in "abc"] == ["out_of_memory", "out_of_memory", None]
    assert driven.of("c")[-1].image is not None
    assert driven.engine.steps == {}


def test_a_request_that_cannot_begin_fails_alone() -> None:
    driven = Driven()
    driven.engine.failing["a"] = RequestFailed("no")
    driven.add("a")
    driven.add("b")
    driven.finish()
    assert driven.of("a")[-1].error_kind == "request_failed"
    assert driven.of("b")[-1].image is not None


def test_a_deadline_passes_while_waiting() -> None:
    driven = Driven(max_images=1)
    driven.add("a", num_steps=5)
    driven.add("b", deadline_s=1.0)
    driven.loop.step()
    driven.now_s = 2.0
    driven.loop.step()
    assert driven.of("b")[-1].error_kind == "deadline_exceeded"


def test_a_full_queue_refuses() -> None:
    driven = Driven(max_images=1)
    for name in "abcd":
        driven.add(name)
    assert driven.of("d")[-1].error_kind == "queue_full"


def test_pausing_keeps_waits_or_aborts() -> None:
    driven = Driven()
    driven.add("a", num_steps=3)
    driven.loop.step()
    driven.loop.apply(Pause("keep"))
    assert not driven.loop.has_work
    assert driven.outputs[-1].stats.pause_state == "paused"
    driven.loop.apply(Resume())
    driven.loop.apply(Pause("wait"))
    assert driven.outputs[-1].stats.pause_state == "pausing"
    driven.add("b")
    driven.finish()
    assert driven.outputs[-1].stats.pause_state == "paused"
    assert driven.of("a")[-1].finished
    assert not driven.of("b") or not driven.of("b")[-1].finished
    driven.loop.apply(Pause("abort"))
    assert driven.of("b")[-1].is_aborted


def test_the_loop_ends_when_told() -> None:
    engine, inbox = FakeEngine(), queue.SimpleQueue()
    outputs: list[ImageUpdates] = []
    loop = DiTLoop(ImageBatchScheduler(1, 1), engine, inbox, outputs.append)
    inbox.put(AddImages("a", ImageParams("p", 8, 8, 2), 0.0))
    inbox.put(Shutdown())
    loop.run()
    assert engine.batches == []
