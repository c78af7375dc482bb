"""What one step may still spend. Knows nothing of blocks: the block manager counts those."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepBudget:
    """The limits of one step; the scheduler charges it, policies read it."""

    num_tokens_left: int
    """Tokens that the step can still compute."""
    num_scheduled: int = 0
    """Sequences scheduled in this step so far."""
    can_admit: bool = True
    """False once a waiting sequence was refused, or a running one preempted: nobody else is admitted in this step."""

    def charge(self, num_tokens: int) -> None:
        """Count one scheduled sequence with `num_tokens` tokens."""
        self.num_tokens_left -= num_tokens
        self.num_scheduled += 1
