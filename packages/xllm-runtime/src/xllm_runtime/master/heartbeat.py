"""The engine side's heartbeat, from a thread of its own, and what the front side makes of it. Knows nothing of requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from xllm_framework.request.messages import Heartbeat

PERIOD_S = 1.0
SILENCE_S = 30.0
"""Without a heartbeat for this long, the engine side is stopped or stuck where no thread of it can run."""


class Stepping(Protocol):
    """What the heartbeat tells of a loop."""

    @property
    def step_began_s(self) -> float | None:
        """Reading of the monotonic clock at the begin of the step under way; None between steps."""


class HeartbeatThread:
    """Emits a `Heartbeat` about once a second until `stop`; its `emit` must not block."""

    def __init__(self, loop: Stepping, emit: Callable[[Heartbeat], None]) -> None:
        self._loop = loop
        self._emit = emit
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xllm-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; nothing is emitted after this returns."""
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopped.wait(PERIOD_S):
            began_s = self._loop.step_began_s
            self._emit(Heartbeat(0.0 if began_s is None else time.monotonic() - began_s))


class EnginePulse:
    """The newest heartbeat. `beat` and `complaint` may be called on different threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard = (clock(), 0.0)
        """When the newest heartbeat came, and the age of its step."""

    def beat(self, heartbeat: Heartbeat) -> None:
        """Take a heartbeat."""
        self._heard = (self._clock(), heartbeat.step_age_s)

    def complaint(self, step_timeout_s: float) -> str | None:
        """Return what is wrong with the engine side, or None; 0 is no limit for a step."""
        heard_s, step_age_s = self._heard
        silence_s = self._clock() - heard_s
        if silence_s > SILENCE_S:
            return f"The engine has not been heard of for {silence_s:.0f} s."
        if step_timeout_s and step_age_s > step_timeout_s:
            return f"A step of the engine has been under way for {step_age_s + silence_s:.0f} s (step_timeout)."
        return None
