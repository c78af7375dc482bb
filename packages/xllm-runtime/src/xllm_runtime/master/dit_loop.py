"""The engine side's loop for images: schedule, begin, step, finish, until told to stop.

What may not be added here: text, files' formats, sockets, tensors, or a decision about who is drawn. It never waits for a
client: messages come from an inbox, and `emit` must not block.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from xllm_framework.errors import DeadlineExceeded, XLLMError
from xllm_framework.request.image_messages import AddImages, ImageUpdate
from xllm_framework.request.image_params import ImageParams, RawImage
from xllm_framework.request.messages import (
    AbortRequests,
    EngineStats,
    ImageUpdates,
    Pause,
    PauseState,
    Resume,
    Shutdown,
)
from xllm_scheduler.dit_batch import ImageBatchScheduler, ImageSlot

logger = logging.getLogger(__name__)


class ImageEngine(Protocol):
    """What the loop needs of an engine; see `DiTEngine`."""

    def shape(self, params: ImageParams) -> Hashable:
        """What must be equal for images to be drawn together."""

    def begin(self, request_id: str, params: ImageParams) -> None:
        """Make a request's samples; raises `XLLMError`."""

    def step(self, slots: Sequence[ImageSlot]) -> dict[str, XLLMError]:
        """Take a batch one step further; return the requests that cannot go on."""

    def finish(self, slots: Sequence[ImageSlot]) -> tuple[dict[ImageSlot, RawImage], dict[str, XLLMError]]:
        """Decode samples that are done."""

    def progress(self, slot: ImageSlot) -> tuple[int, int]:
        """Return the steps done and the steps in all."""

    def drop(self, request_id: str) -> None:
        """Forget a request's samples."""


class _Request:
    """A request that has not ended."""

    __slots__ = ("has_begun", "num_done", "params", "position")

    def __init__(self, params: ImageParams) -> None:
        self.params = params
        self.has_begun = False
        self.num_done = 0
        self.position: int | None = None


class DiTLoop:
    """Runs `engine` on what `scheduler` plans. Everything happens on the thread that calls `run`."""

    def __init__(
        self,
        scheduler: ImageBatchScheduler,
        engine: ImageEngine,
        inbox: queue.SimpleQueue[Any],
        emit: Callable[[ImageUpdates], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        check_integrity: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._inbox = inbox
        self._emit = emit
        self._clock = clock
        self._check_integrity = check_integrity
        self._requests: dict[str, _Request] = {}
        self._pause_state: PauseState = "running"
        self._num_steps = 0
        self._step_time_s = 0.0
        self.step_began_s: float | None = None
        """Reading of the monotonic clock at the begin of the step under way. Read on other threads."""

    def run(self) -> None:
        """Step while there is work, wait for messages while there is none; return after `Shutdown`."""
        while self._take_messages():
            self.step_began_s = time.monotonic()
            self.step()
            self.step_began_s = None

    def step(self) -> None:
        """Draw one step of what the scheduler plans, and emit what it brought."""
        began_s = self._clock()
        plan = self._scheduler.schedule(began_s, may_begin=self._pause_state == "running")
        updates = [self._expired(request_id) for request_id in plan.expired]
        updates += self._begin(plan.begun)
        batch = [slot for slot in plan.batch if slot[0] in self._requests]
        if batch:
            updates += self._draw(batch)
            self._num_steps += 1
            self._step_time_s += self._clock() - began_s
        updates += self._positions()
        if self._pause_state == "pausing" and not self._scheduler.num_running:
            self._pause_state = "paused"
        self._send(updates)
        if self._check_integrity:
            self._scheduler.check_integrity()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work and self._pause_state != "paused"

    def apply(self, message: object) -> None:
        """Add a request, abort some, pause or resume; between two steps."""
        match message:
            case AddImages():
                self._add(message)
            case AbortRequests():
                targets = [target if isinstance(target, str) else target[0] for target in message.request_ids]
                self._send([self._aborted(request_id) for request_id in self._scheduler.remove(targets)])
            case Pause():
                self._pause(message.mode)
            case Resume():
                self._pause_state = "running"
                self._send([])
            case _:
                logger.error("This engine does not know what %s means.", type(message).__name__)

    def _take_messages(self) -> bool:
        """Apply all messages that have arrived, and wait for one while idle. False after `Shutdown`."""
        while True:
            try:
                message = self._inbox.get(block=not self.has_work)
            except queue.Empty:
                return True
            if isinstance(message, Shutdown):
                return False
            self.apply(message)

    def _add(self, message: AddImages) -> None:
        try:
            self._scheduler.add(
                message.request_id,
                self._engine.shape(message.params),
                message.params.num_images,
                priority=message.priority,
                deadline_s=message.deadline_s,
            )
        except XLLMError as error:
            self._send([_failed(message.request_id, error)])
            return
        self._requests[message.request_id] = _Request(message.params)

    def _begin(self, begun: list[ImageSlot]) -> list[ImageUpdate]:
        """Make the samples of requests whose first image joins; one that cannot begin fails alone."""
        updates = []
        for request_id in dict.fromkeys(request_id for request_id, _ in begun):
            request = self._requests[request_id]
            if request.has_begun:
                continue
            request.has_begun = True
            try:
                self._engine.begin(request_id, request.params)
            except XLLMError as error:
                updates.append(self._fail(request_id, error))
        return updates

    def _draw(self, batch: list[ImageSlot]) -> list[ImageUpdate]:
        """Take the batch one step further, and decode what is done by it."""
        failures = self._engine.step(batch)
        images: dict[ImageSlot, RawImage] = {}
        drawn = [slot for slot in batch if slot[0] not in failures]
        progress = {slot: self._engine.progress(slot) for slot in drawn}
        done = [slot for slot in drawn if progress[slot][0] >= progress[slot][1]]
        if done:
            images, more_failures = self._engine.finish(done)
            failures |= more_failures
            self._scheduler.finish(done)
        updates = [self._fail(request_id, error) for request_id, error in failures.items()]
        for request_id in dict.fromkeys(request_id for request_id, _ in drawn if request_id not in failures):
            updates += self._news(request_id, images, {s: p[0] for s, p in progress.items() if s[0] == request_id})
        return updates

    def _news(
        self, request_id: str, images: dict[ImageSlot, RawImage], steps: dict[ImageSlot, int]
    ) -> list[ImageUpdate]:
        """Return one update an image that is done, or one that tells of progress."""
        request = self._requests[request_id]
        done = {slot: image for slot, image in images.items() if slot[0] == request_id}
        before = request.num_done
        request.num_done += len(done)
        each = _steps_each(request.params)
        num_done = before * each + sum(steps.values())
        num_steps = each * request.params.num_images
        if not done:
            return [ImageUpdate(request_id, num_steps_done=num_done, num_steps=num_steps)]
        is_finished = request.num_done == request.params.num_images
        if is_finished:
            del self._requests[request_id]
            self._engine.drop(request_id)
        last = max(done)
        return [
            ImageUpdate(request_id, None, num_done, num_steps, slot[1], image, finished=is_finished and slot == last)
            for slot, image in sorted(done.items())
        ]

    def _positions(self) -> list[ImageUpdate]:
        """Return an update for each request whose place in the queue has changed."""
        updates = []
        for request_id, position in self._scheduler.positions().items():
            request = self._requests[request_id]
            if request.position != position:
                request.position = position
                updates.append(ImageUpdate(request_id, position))
        return updates

    def _fail(self, request_id: str, error: XLLMError) -> ImageUpdate:
        self._scheduler.remove([request_id])
        self._engine.drop(request_id)
        del self._requests[request_id]
        return _failed(request_id, error)

    def _expired(self, request_id: str) -> ImageUpdate:
        del self._requests[request_id]
        return _failed(request_id, DeadlineExceeded("The deadline passed before any of the images was begun."))

    def _aborted(self, request_id: str) -> ImageUpdate:
        self._engine.drop(request_id)
        del self._requests[request_id]
        return ImageUpdate(request_id, finished=True, is_aborted=True)

    def _pause(self, mode: str) -> None:
        """Stop between two steps; images under way stay in memory, end, or are finished first."""
        aborted = self._scheduler.remove(list(self._requests)) if mode == "abort" else []
        is_waiting = mode == "wait" and self._scheduler.num_running > 0
        self._pause_state = "pausing" if is_waiting else "paused"
        self._send([self._aborted(request_id) for request_id in aborted])

    def _send(self, updates: list[ImageUpdate]) -> None:
        stats = EngineStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            num_steps=self._num_steps,
            step_time_s=self._step_time_s,
            pause_state=self._pause_state,
        )
        self._emit(ImageUpdates(updates, stats))


def _failed(request_id: str, error: XLLMError) -> ImageUpdate:
    return ImageUpdate(request_id, finished=True, error=error.message, error_kind=error.kind)


def _steps_each(params: ImageParams) -> int:
    """Return the steps of one image: fewer than asked for where a given image is changed in part."""
    return params.num_steps - int(max(params.num_steps - min(params.num_steps * params.strength, params.num_steps), 0))
