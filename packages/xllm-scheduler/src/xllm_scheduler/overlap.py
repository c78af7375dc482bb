"""One step of lead: what is assumed of the step in flight while the next one is planned.

    schedule() i      update() i - 1   |  schedule() i + 1                           update() i
    step i is chosen                   |  step i is taken as done: its tokens are    the tokens of step i take the
                                       |  placeholders; step i + 1 is chosen         places of the placeholders

At most one token of a sequence is a placeholder, and only between `advance` and `update`: no output holds one, no key of
the prefix cache is made of one, and a preempted sequence drops it. A sequence whose token in flight is its last by length
gets none; it has nothing to compute until `update` ends it. Knows nothing of blocks, queues or budgets.
"""

from __future__ import annotations

from typing import NamedTuple

from xllm_framework.batch import Batch, BatchGroup, ScheduledSequence
from xllm_framework.request import Sequence, SequenceStatus, StoppingChecker


class Assumption(NamedTuple):
    """What `advance` made of one scheduled sequence."""

    is_sampled: bool
    """Whether the step yields a token of it."""
    was_prefill: bool
    """Whether its prompt was not computed before the step."""
    block_table: list[int]
    """Its block table then; preemption replaces it."""

    def holds(self, sequence: Sequence) -> bool:
        """Whether the sequence has neither ended nor been preempted since."""
        return sequence.status is not SequenceStatus.FINISHED and sequence.block_table is self.block_table


class StepAhead:
    """The step in flight. Without overlap each step is settled before the next is begun, and nothing is ever assumed."""

    def __init__(self, stopping: StoppingChecker) -> None:
        self._stopping = stopping
        self._in_flight: BatchGroup | None = None
        self._assumptions: dict[int, Assumption] = {}

    @property
    def is_ahead(self) -> bool:
        """Whether the results of a step are assumed, and not here yet."""
        return bool(self._assumptions)

    def begin(self) -> None:
        """Before a step is planned: take the one that was begun and is not settled, if any, as done."""
        if self._in_flight is not None:
            for batch in self._in_flight.batches:
                self._advance(batch)
            self._in_flight = None

    def plan(self, group: BatchGroup) -> None:
        """Remember the step that was planned."""
        self._in_flight = None if group.is_empty else group

    def settle(self) -> dict[int, Assumption]:
        """When the oldest step's results are here: return what was assumed of it, by id of the sequence; mostly nothing."""
        assumptions, self._assumptions = self._assumptions, {}
        if not assumptions:
            self._in_flight = None
        return assumptions

    def rewind(self, group: BatchGroup) -> tuple[BatchGroup, BatchGroup]:
        """Undo what was assumed of `group`, the step in flight that failed, and drop the step planned after it.

        Returns what of `group` is still to be computed, and the dropped step.
        """
        dropped = self._in_flight or BatchGroup(())
        assumptions = self.settle()
        self._in_flight = None
        if not assumptions:
            return group, BatchGroup(())
        batches = []
        for batch in group.batches:
            rest = Batch()
            for item in batch:
                assumption = assumptions[id(item.sequence)]
                if assumption.holds(item.sequence):
                    _undo(item, assumption)
                    rest.add(item)
            batches.append(rest)
        return BatchGroup(tuple(batches)), dropped

    def _advance(self, batch: Batch) -> None:
        row = 0
        for item in batch.scheduled:
            sequence = item.sequence
            end = item.start + item.num_scheduled_tokens
            is_sampled = end == sequence.num_tokens
            was_prefill = sequence.status is SequenceStatus.PREFILL
            self._assumptions[id(sequence)] = Assumption(is_sampled, was_prefill, sequence.block_table)
            if sequence.status is not SequenceStatus.FINISHED:
                sequence.num_computed_tokens = end
                if is_sampled and not self._stopping.ends_with_next(sequence, item.request.sampling):
                    sequence.append(-1 - row)
                    sequence.status = SequenceStatus.DECODE
            row += is_sampled


def _undo(item: ScheduledSequence, assumption: Assumption) -> None:
    sequence = item.sequence
    sequence.drop_placeholder()
    sequence.num_computed_tokens = item.start
    if assumption.was_prefill:
        sequence.status = SequenceStatus.PREFILL
