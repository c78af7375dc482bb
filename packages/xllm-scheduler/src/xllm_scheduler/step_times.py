"""How long each step took, as far as the scheduler can see. Knows nothing of what steps compute."""

from __future__ import annotations

import math
from collections import deque


class StepTimes:
    """The steps that are planned and not settled, in order; with a lead there may be two. All times in seconds, by one clock."""

    def __init__(self) -> None:
        self._planned_s: deque[float] = deque()
        self._settled_s = -math.inf

    def plan(self, now_s: float) -> None:
        """Take note that a step was planned."""
        self._planned_s.append(now_s)

    def drop(self) -> None:
        """Forget the step that was planned last: it will not be computed."""
        self._planned_s.pop()

    def settle(self, now_s: float) -> float:
        """Take note that the oldest step has ended; return its time since it was planned, or since the one before it ended."""
        seconds = now_s - max(self._planned_s.popleft(), self._settled_s)
        self._settled_s = now_s
        return seconds
