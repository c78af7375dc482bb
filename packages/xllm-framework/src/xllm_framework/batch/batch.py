"""The work of one step on one data-parallel rank. Knows nothing of how it was chosen or how it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass, field

from xllm_framework.kv_cache.host_tier import BlockMoves
from xllm_framework.request.request import Request
from xllm_framework.request.sequence import Sequence


@dataclass(slots=True)
class ScheduledSequence:
    """A sequence with the tokens it computes in this step: positions [start, start + num_scheduled_tokens)."""

    request: Request
    sequence: Sequence
    start: int
    """`num_computed_tokens` when it was scheduled."""
    num_scheduled_tokens: int
    """At least 1; blocks for all of them are allocated."""
    announcers: frozenset[Sequence] = frozenset()
    """Other sequences of the same batch, earlier in it: it shares blocks that they compute only in this step."""

    block_copies: List[tuple[int, int]] = ()
    """(from, to): its last block in each group of layers holds another sequence's tokens, too, and is copied before the step."""

    @property
    def is_sampled(self) -> bool:
        """Whether its last scheduled token is its newest, so that the step yields a next token.

        Never where the prompt is only to be pooled.
        """
        is_complete = self.start + self.num_scheduled_tokens == self.sequence.num_tokens
        return is_complete and self.request.pooling is None


@dataclass(slots=True)
class Batch:
    """The scheduled sequences of one step; decodes first, then prefill chunks."""

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    num_tokens: int = 0
    """Sum of `num_scheduled_tokens`."""
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    """`block_copies` of all."""
    moves: BlockMoves | None = None
    """Blocks that come from the host's memory, or go there, before the step."""

    def add(self, item: ScheduledSequence) -> None:
        """Append one scheduled sequence."""
        self.scheduled.append(item)
        self.num_tokens += item.num_scheduled_tokens
        self.block_copies.extend(item.block_copies)

    def __len__(self) -> int:
        return len(self.scheduled)

    def __iter__(self) -> Iterator[ScheduledSequence]:
        return iter(self.scheduled)
