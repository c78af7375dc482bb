"""One step of lead: what is assumed of the step in flight while the next one is planned.

    schedule() i      update() i - 1   |  schedule() i + 1                           update() i
    step i is chosen                   |  step i is taken as done: its tokens are    the tokens of step i take the
                                       |  placeholders; step i + 1 is chosen         places of the placeholders

At most one token of a sequence is a placeholder, and only between `advance` and `update`: no output holds one, no key of
the prefix cache is made of one, and a preempted sequence drops it. A sequence whose token in flight is its last by length
gets none; it has nothing to compute until `update` ends it. Nor does a constrained sequence, whose next token's mask depends
on the one in flight: it waits for `update`, and so computes every other step. Knows nothing of blocks, queues or budgets.
"""

from __future__ import annotations

from typing import NamedTuple

from xllm_framework.batch import Batch, BatchGroup, ScheduledSequence
from xllm_framework.request import SamplingParams, Sequence, SequenceStatus, StoppingChecker


class Assumption(NamedTuple):
    """One scheduled sequence as it was when its step was planned."""

    is_sampled: bool
    """Whether the step yields a token of it."""
    was_prefill: bool
    """Whether the step computes part of its prompt."""
    block_table: list[int]
    """Preemption and the end replace it."""

    def holds(self, sequence: Sequence) -> bool:
        """Whether the sequence has neither ended nor been preempted since."""
        return sequence.status is not SequenceStatus.FINISHED and sequence.block_table is self.block_table


class StepAhead:
    """The step in flight; does nothing unless `is_used`, when two steps may be planned before the first is settled."""

    def __init__(self, stopping: StoppingChecker, *, is_used: bool) -> None:
        self._stopping = stopping
        self._is_used = is_used
        self._planned: BatchGroup | None = None
        self._planned_assumptions: dict[int, Assumption] = {}
        self._assumptions: dict[int, Assumption] = {}

    @property
    def is_ahead(self) -> bool:
        """Whether the step that is being planned counts on one in flight."""
        return bool(self._assumptions)

    def computed_in_flight(self) -> dict[int, int]:
        """Return how many tokens each sequence of the planned step will have computed, by id; empty without overlap."""
        batches = self._planned.batches if self._planned is not None else ()
        return {id(item.sequence): item.start + item.num_scheduled_tokens for batch in batches for item in batch}

    def begin(self) -> None:
        """Before a step is planned: take the one that was planned and is not settled, if any, as done."""
        if self._planned is not None:
            self._assumptions, self._planned_assumptions = self._planned_assumptions, {}
            for batch in self._planned.batches:
                self._advance(batch)
            self._planned = None

    def plan(self, group: BatchGroup) -> None:
        """Remember the step that was planned."""
        if self._is_used and not group.is_empty:
            self._planned = group
            self._planned_assumptions = {
                id(item.sequence): Assumption(
                    item.is_sampled, item.sequence.status is SequenceStatus.PREFILL, item.sequence.block_table
                )
                for batch in group.batches
                for item in batch.scheduled
            }

    def settle(self) -> dict[int, Assumption]:
        """When the oldest step's results are here: return what was assumed of it, by id of the sequence, if anything was."""
        assumptions, self._assumptions = self._assumptions, {}
        if not assumptions:
            self._planned = None
        return assumptions

    def rewind(self, group: BatchGroup) -> tuple[BatchGroup, BatchGroup]:
        """Undo what was assumed of `group`, the step in flight that failed, and drop the step planned after it.

        Returns what of `group` is still to be computed, and the dropped step.
        """
        dropped = self._planned or BatchGroup(())
        assumptions = self.settle()
        self._planned = None
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
            assumption = self._assumptions[id(sequence)]
            if assumption.holds(sequence):
                sequence.num_computed_tokens = item.start + item.num_scheduled_tokens
                sequence.turn_states()
                if assumption.is_sampled and self._may_go_on(sequence, item.request.sampling):
                    sequence.append(-1 - row)
                    sequence.status = SequenceStatus.DECODE
            row += assumption.is_sampled

    def _may_go_on(self, sequence: Sequence, sampling: SamplingParams) -> bool:
        """Whether a token after the one in flight can be planned without knowing that one."""
        if sampling.beam_width > 1:  # which beams live on depends on the tokens in flight
            return False
        return sequence.constraint_state is None and not self._stopping.ends_with_next(sequence, sampling)


def _undo(item: ScheduledSequence, assumption: Assumption) -> None:
    sequence = item.sequence
    sequence.drop_placeholder()
    sequence.num_computed_tokens = item.start
    sequence.turn_states()
    if assumption.was_prefill:
        sequence.status = SequenceStatus.PREFILL
