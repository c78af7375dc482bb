"""Steps that were sent to an engine and are not collected yet. Knows nothing of how they were planned or what they bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from xllm_framework.batch import BatchGroup, ForwardOutput
from xllm_framework.errors import EngineDead
from xllm_runtime.master.isolation import Engine


class OverlappedEngine(Engine, Protocol):
    """An engine that computes a step while the next is planned; `execute` is `submit`, then `collect`."""

    def submit(self, group: BatchGroup) -> None:
        """Send one step; at most two may be sent and not collected."""

    def collect(self) -> list[ForwardOutput]:
        """Wait for the oldest step that was sent; one output a batch. Raises anything when it failed as a whole."""


@dataclass(slots=True)
class StepInFlight:
    """A step that was sent, unless it is empty or could not even be sent."""

    group: BatchGroup
    error: Exception | None = None
    """Why it could not be sent."""

    @classmethod
    def send(cls, engine: OverlappedEngine, group: BatchGroup) -> StepInFlight:
        """Send `group`, if it is not empty. Whatever is wrong with it comes out of `collect`.

        Raises:
            EngineDead: the engine is gone.
        """
        try:
            if not group.is_empty:
                engine.submit(group)
        except EngineDead:
            raise
        except Exception as error:  # of one of its sequences; found out when its turn comes
            return cls(group, error)
        return cls(group)

    def collect(self, engine: OverlappedEngine) -> list[ForwardOutput]:
        """Wait for its outputs, of which an empty step has none. Raises what the step raised."""
        if self.error is not None:
            raise self.error
        return [] if self.group.is_empty else engine.collect()

    def discard(self, engine: OverlappedEngine) -> None:
        """Wait for its end, and forget what it brought.

        Raises:
            EngineDead: the engine is gone.
        """
        try:
            self.collect(engine)
        except EngineDead:
            raise
        except Exception:  # nobody asks for it any more
            return


NOTHING_IN_FLIGHT = StepInFlight(BatchGroup(()))
