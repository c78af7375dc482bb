"""A clock that moves only when told to. Stands in for `time.monotonic` wherever a clock can be injected."""

from __future__ import annotations


class ManualClock:
    """Callable like `time.monotonic`; `advance` moves it."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Return the present reading, in seconds."""
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds` (0 or more)."""
        if seconds < 0:
            raise ValueError("a monotonic clock never goes back")
        self.now_s += seconds
