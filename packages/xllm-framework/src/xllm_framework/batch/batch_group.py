"""The batches of all data-parallel ranks in one step. Knows nothing of ranks beyond their number."""

from __future__ import annotations

from dataclasses import dataclass

from xllm_framework.batch.batch import Batch


@dataclass(slots=True, frozen=True)
class BatchGroup:
    """One `Batch` a data-parallel rank, empty where a rank idles: every rank enters every step."""

    batches: tuple[Batch, ...]

    @property
    def is_empty(self) -> bool:
        """Whether no rank has work."""
        return all(len(batch) == 0 for batch in self.batches)

    @property
    def num_tokens(self) -> int:
        """Tokens that all ranks compute."""
        return sum(batch.num_tokens for batch in self.batches)
