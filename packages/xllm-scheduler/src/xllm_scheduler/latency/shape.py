"""What decides the time of a step: how many tokens it computes behind how many others. Knows nothing of sequences."""

from __future__ import annotations

from dataclasses import dataclass

from xllm_framework.batch import Batch
from xllm_framework.request import SequenceStatus


@dataclass(frozen=True, slots=True)
class StepShape:
    """One step: its prefill chunks and its decodes."""

    chunks: tuple[tuple[int, int], ...] = ()
    """(tokens computed, tokens before them) of each prefill chunk."""
    decodes: tuple[tuple[int, int], ...] = ()
    """The same of each decode: 1 token, or 1 and the speculative ones that are validated with it."""

    @classmethod
    def of(cls, batch: Batch) -> StepShape:
        """Return the shape of `batch`."""
        chunks: list[tuple[int, int]] = []
        decodes: list[tuple[int, int]] = []
        for item in batch:
            is_decode = item.sequence.status is SequenceStatus.DECODE
            (decodes if is_decode else chunks).append((item.num_scheduled_tokens, item.start))
        return cls(tuple(chunks), tuple(decodes))

    def terms(self) -> tuple[float, ...]:
        """Return what the coefficients of a `LatencyModel` are multiplied with, in the order of its fields."""
        return (
            1.0,
            float(sum(tokens for tokens, _ in self.chunks)),
            float(sum(tokens * tokens for tokens, _ in self.chunks)),
            float(sum(tokens * before for tokens, before in self.chunks)),
            float(sum(before for _, before in self.chunks)),
            float(sum(tokens for tokens, _ in self.decodes)),
            float(sum(tokens * before for tokens, before in self.decodes)),
        )
