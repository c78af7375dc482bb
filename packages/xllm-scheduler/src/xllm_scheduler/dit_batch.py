"""Which images are drawn together in a step: all of one shape, joined and left between any two steps.

An image that waits may join those that are drawn if its shape is theirs, also past requests of another shape in front of
it; each of those is passed a bounded number of times, then the batch is let run out for it. Knows nothing of how images are
drawn: a shape is anything hashable.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from xllm_framework.errors import IntegrityError, InvalidRequest, QueueFull

ImageSlot = tuple[str, int]
"""(request id, which of its images)."""
OVERTAKINGS_PER_PLACE = 2
"""How many images may pass a waiting request of another shape, for each place of the batch."""


@dataclass(slots=True)
class _Waiting:
    """A request of which not all images have begun."""

    request_id: str
    shape: Hashable
    num_images: int
    order: tuple[int, int]
    """(priority, arrival number), smaller first."""
    deadline_s: float | None
    num_begun: int = 0
    num_passed: int = 0
    """Images of other requests that have passed it."""


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """What to do in one step."""

    begun: list[ImageSlot]
    """Images that join now; they are part of `batch`."""
    batch: list[ImageSlot]
    expired: list[str]
    """Requests given up because their deadline passed before any of their images began."""


@dataclass(slots=True)
class ImageBatchScheduler:
    """Used by one thread.

    Args:
        max_images: of one step.
        max_num_waiting: requests that may wait.
    """

    max_images: int
    max_num_waiting: int
    _queue: list[_Waiting] = field(default_factory=list)
    _running: list[ImageSlot] = field(default_factory=list)
    _shape: Hashable = None
    """Of what runs."""
    _num_arrived: int = 0

    @property
    def num_running(self) -> int:
        """Images that are drawn."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests none of whose images has begun."""
        return sum(waiting.num_begun == 0 for waiting in self._queue)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._queue)

    def add(
        self, request_id: str, shape: Hashable, num_images: int, *, priority: int = 0, deadline_s: float | None = None
    ) -> None:
        """Let a request wait.

        Raises:
            InvalidRequest: it is here already.
            QueueFull: as many requests wait as may.
        """
        if self._holds(request_id):
            raise InvalidRequest(f"Request {request_id} was submitted already.")
        if self.num_waiting >= self.max_num_waiting:
            raise QueueFull(f"{self.max_num_waiting} requests wait already (max_num_waiting).")
        self._num_arrived += 1
        waiting = _Waiting(request_id, shape, num_images, (priority, self._num_arrived), deadline_s)
        self._queue.append(waiting)
        self._queue.sort(key=lambda entry: entry.order)

    def schedule(self, now_s: float, *, may_begin: bool = True) -> ImagePlan:
        """Let images join, as far as places and shapes allow, and return what the step draws."""
        expired = [entry.request_id for entry in self._queue if _is_late(entry, now_s)]
        self._queue = [entry for entry in self._queue if not _is_late(entry, now_s)]
        begun: list[ImageSlot] = []
        passed: list[_Waiting] = []
        for entry in list(self._queue) if may_begin else ():
            num_free = self.max_images - len(self._running)
            if num_free <= 0:
                break
            if self._running and entry.shape != self._shape:
                if entry.num_passed >= OVERTAKINGS_PER_PLACE * self.max_images:
                    break
                passed.append(entry)
                continue
            begun += (joined := self._begin(entry, num_free))
            for other in passed:
                other.num_passed += len(joined)
        return ImagePlan(begun, list(self._running), expired)

    def finish(self, slots: Iterable[ImageSlot]) -> None:
        """Free the places of images that are done."""
        done = set(slots)
        self._running = [slot for slot in self._running if slot not in done]

    def remove(self, request_ids: Iterable[str]) -> list[str]:
        """Give up all images of requests, begun or not; return the ids that were here."""
        gone = {request_id for request_id in request_ids if self._holds(request_id)}
        self._queue = [entry for entry in self._queue if entry.request_id not in gone]
        self._running = [slot for slot in self._running if slot[0] not in gone]
        return sorted(gone)

    def positions(self) -> dict[str, int]:
        """Return, for each request that waits for its first image, how many such requests are in front of it."""
        waiting = [entry.request_id for entry in self._queue if entry.num_begun == 0]
        return {request_id: position for position, request_id in enumerate(waiting)}

    def check_integrity(self) -> None:
        """Raises `IntegrityError` when what runs or waits breaks a rule of this class."""
        if len(self._running) > self.max_images or len(set(self._running)) != len(self._running):
            raise IntegrityError(f"The batch of images holds {self._running}.")
        if any(not 0 <= entry.num_begun < entry.num_images for entry in self._queue):
            raise IntegrityError("A request waits of which all images have begun.")
        if [entry.order for entry in self._queue] != sorted(entry.order for entry in self._queue):
            raise IntegrityError("The queue of images is out of order.")

    def _begin(self, entry: _Waiting, num_free: int) -> list[ImageSlot]:
        """Let images of `entry` join, at most `num_free`."""
        first, last = entry.num_begun, min(entry.num_begun + num_free, entry.num_images)
        joined = [(entry.request_id, index) for index in range(first, last)]
        self._shape = entry.shape
        self._running += joined
        entry.num_begun = last
        if last == entry.num_images:
            self._queue.remove(entry)
        return joined

    def _holds(self, request_id: str) -> bool:
        return any(entry.request_id == request_id for entry in self._queue) or any(
            slot[0] == request_id for slot in self._running
        )


def _is_late(entry: _Waiting, now_s: float) -> bool:
    return entry.num_begun == 0 and entry.deadline_s is not None and entry.deadline_s < now_s
