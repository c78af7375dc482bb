"""Stops the scheduler for a while and lets it go on. Knows nothing of blocks: it only moves sequences.

RUNNING --pause--> PAUSING --nothing runs any more--> PAUSED --resume--> RUNNING
"""

from __future__ import annotations

from enum import StrEnum

from xllm_scheduler.lifecycle import Lifecycle


class PauseMode(StrEnum):
    """What becomes of the work at hand."""

    KEEP = "keep"
    """Running sequences give up their blocks and are computed anew after `resume`; what they generated stays."""
    ABORT = "abort"
    """All unfinished requests end."""
    WAIT = "wait"
    """Requests that have begun run to their end; the others wait for `resume`."""


class PauseState(StrEnum):
    """Whether steps are planned."""

    RUNNING = "running"
    PAUSING = "pausing"
    """Until requests that have begun have ended, and until a step in flight is back."""
    PAUSED = "paused"
    """Nothing runs; new requests wait."""


class PauseControl:
    """The pause state of one scheduler."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.state = PauseState.RUNNING
        self._lifecycle = lifecycle
        self._mode = PauseMode.WAIT

    def pause(self, mode: PauseMode) -> None:
        """Begin to pause; while it pauses already, the later mode counts."""
        self._mode = mode
        if self.state is not PauseState.PAUSED:
            self.state = PauseState.PAUSING
        if mode is PauseMode.ABORT:
            self._lifecycle.abort(list(self._lifecycle.records))
        if mode is PauseMode.WAIT:
            self._lifecycle.hold_new()

    def resume(self) -> None:
        """Go on, whatever the state is."""
        self.state = PauseState.RUNNING
        self._lifecycle.release_held()

    def may_plan(self) -> bool:
        """Whether the coming step may compute anything; call it when the step is planned."""
        if self.state is PauseState.RUNNING:
            return True
        lifecycle = self._lifecycle
        if self._mode is PauseMode.KEEP:
            for entry in list(lifecycle.running):
                lifecycle.preempt(entry)
        has_begun_work = bool(lifecycle.running) or (self._mode is PauseMode.WAIT and len(lifecycle.waiting) > 0)
        if not has_begun_work:
            self.state = PauseState.PAUSED
        return has_begun_work and self.state is PauseState.PAUSING
