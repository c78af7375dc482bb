"""Beam search: keeps the `beam_width` most probable beginnings of answers and grows them together.

Each step, every live beam is followed by its most probable tokens. The continuations are gone through from the most to
the least probable (sum of log-probabilities; of equals, that of the better beam first) until `beam_width` live ones are
found; those on the way that end the text are finished answers, of which the best `beam_width` are kept. The search ends at
the length limit, or when no live beam can beat them. Answers are ranked by

    log-probability / (number of tokens, an ending one included) ** length_penalty

To a scheduler a beam request is one entry, whose sequence leads: its prompt is computed once; then the beams are sequences
that share blocks, scheduled all together or not at all. When blocks are short, the search begins anew. Knows nothing of
queues, policies or budgets.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import ForwardOutput
from xllm_framework.kv_cache import BlockManager
from xllm_framework.request import FinishReason, Request, Sequence, SequenceStatus, StoppingChecker
from xllm_framework.request.messages import WireLogprob
from xllm_scheduler.logprobs import row_logprobs

_FIRST_LOOK = 1024
"""More continuations than this, beside two for each beam, are rarely gone through."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A beam that has ended."""

    token_ids: list[int]
    logprob: float
    """Sum over `token_ids`."""
    reason: FinishReason
    stop_reason: int | None
    logprobs: list[WireLogprob]


@dataclass(slots=True)
class Beam:
    """A live beam; `logprobs` has one entry a token if the request asked for any."""

    sequence: Sequence
    logprob: float = 0.0
    logprobs: list[WireLogprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Continuation:
    parent: Beam
    row: int
    token_id: int
    logprob: float


class BeamGroup:
    """The beams of one request. The request's first sequence always is one of them."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._leader = request.sequences[0]
        self._width = request.sampling.beam_width
        self._answers: list[Answer] = []
        self.beams = [Beam(self._leader)]
        """Live ones, the most probable first; only the leader while the prompt is computed."""

    @property
    def followers(self) -> list[Sequence]:
        """The sequences of the live beams but the leader's."""
        return [beam.sequence for beam in self.beams if beam.sequence is not self._leader]

    def release(self, blocks: BlockManager) -> None:
        """Give up all sequences but the leader, and their blocks."""
        for sequence in self.followers:
            _release(sequence, blocks)
        self.beams = [beam for beam in self.beams if beam.sequence is self._leader]

    def restart(self, blocks: BlockManager) -> None:
        """Give up everything but the prompt, and all blocks but the leader's."""
        self.release(blocks)
        self._leader.drop_output()
        self._answers = []
        self.beams = [Beam(self._leader)]

    def advance(
        self, rows: List[tuple[Sequence, int]], output: ForwardOutput, blocks: BlockManager, stopping: StoppingChecker
    ) -> bool:
        """Grow the beams by the results of a step, in which each of them is sampled, as (sequence, row).

        Returns whether the search has ended; then `best_answers` are known.
        """
        row_of = {id(sequence): row for sequence, row in rows}
        survivors = self._choose([(beam, row_of[id(beam.sequence)]) for beam in self.beams], output, stopping)
        self._grow(survivors, output, blocks)
        if not self.beams:
            return True
        length = self._leader.num_output_tokens
        max_length = stopping.max_output_tokens(self._leader, self.request.sampling)
        if length >= max_length:
            self._finish_live()
        return length >= max_length or self._cannot_improve(length, max_length)

    def finish_early(self) -> None:
        """Count the live beams as answers of full length: there is no room for more."""
        if self._leader.num_output_tokens:
            self._finish_live()

    def best_answers(self) -> list[Answer]:
        """Return at most `n` answers, best first."""
        return sorted(self._answers, key=lambda answer: -self._score(answer.logprob, len(answer.token_ids)))[
            : self.request.sampling.n
        ]

    def _choose(
        self, beams: list[tuple[Beam, int]], output: ForwardOutput, stopping: StoppingChecker
    ) -> list[_Continuation]:
        """Return the continuations that live on, best first; those that end join the answers."""
        ending = stopping.ending_tokens(self.request.sampling)
        may_end = self._leader.num_output_tokens >= self.request.sampling.min_tokens
        survivors: list[_Continuation] = []
        for found in self._continuations(beams, output):
            if found.token_id not in ending:
                survivors.append(found)
                if len(survivors) == self._width:
                    break
            elif may_end:
                self._keep(self._answer(found, output))
        return survivors

    @staticmethod
    def _continuations(beams: list[tuple[Beam, int]], output: ForwardOutput) -> Iterator[_Continuation]:
        """Yield what the step offers, the most probable first; of equals, that of the better beam first."""
        if output.top_ids is None or output.top_logprobs is None:
            return
        rows = [row for _, row in beams]
        token_ids = output.top_ids[rows]
        logprobs = output.top_logprobs[rows].astype(np.float64) + np.array([[beam.logprob] for beam, _ in beams])
        logprobs[token_ids < 0] = -np.inf
        for position in _best_first(logprobs.ravel(), 2 * len(beams) + _FIRST_LOOK):
            index, rank = divmod(position, token_ids.shape[1])
            if token_ids[index, rank] < 0:
                return
            beam, row = beams[index]
            yield _Continuation(beam, row, int(token_ids[index, rank]), float(logprobs[index, rank]))

    def _grow(self, survivors: list[_Continuation], output: ForwardOutput, blocks: BlockManager) -> None:
        """Make the survivors the live beams: the first child of a beam goes on in its sequence, others fork it."""
        taken: set[int] = set()
        placed: list[tuple[_Continuation, Sequence | None]] = []
        for found in survivors:
            sequence = found.parent.sequence
            placed.append((found, None if id(sequence) in taken else sequence))
            taken.add(id(sequence))
        if survivors and id(self._leader) not in taken:
            self._move_leader(survivors[0].parent, blocks)
            placed = [(f, self._leader if f.parent is survivors[0].parent and s is not None else s) for f, s in placed]
            taken.add(id(self._leader))
        for beam in self.beams:
            if id(beam.sequence) not in taken and beam.sequence is not self._leader:
                _release(beam.sequence, blocks)
        forks = [found.parent.sequence.fork() if sequence is None else sequence for found, sequence in placed]
        grown = []
        for (found, own), sequence in zip(placed, forks, strict=True):
            if own is None:
                blocks.fork(found.parent.sequence, sequence)
            grown.append(Beam(sequence, found.logprob, self._with_entry(found, output)))
        for (found, _), beam in zip(placed, grown, strict=True):
            beam.sequence.append(found.token_id)
        self.beams = grown

    def _move_leader(self, heir: Beam, blocks: BlockManager) -> None:
        """Let the leader, whose own beam dies, take the place of the sequence of `heir`."""
        sequence = heir.sequence
        blocks.free(self._leader)
        self._leader.take_over(sequence)
        sequence.finish(FinishReason.ABORT)
        for beam in self.beams:
            if beam.sequence is self._leader and beam is not heir:
                beam.sequence = sequence  # it is dead, and so is its beam
        heir.sequence = self._leader

    def _answer(self, found: _Continuation, output: ForwardOutput) -> Answer:
        token_ids = [*found.parent.sequence.output_token_ids.tolist(), found.token_id]
        logprobs = self._with_entry(found, output)
        return Answer(token_ids, found.logprob, FinishReason.STOP, found.token_id, logprobs)

    def _with_entry(self, found: _Continuation, output: ForwardOutput) -> list[WireLogprob]:
        """Return the log-probabilities of a beam with those of its newest token, if any were asked for."""
        num_top = self.request.sampling.logprobs
        if num_top is None:
            return []
        entry = row_logprobs(output, found.row, found.token_id, num_top) or []
        own = found.logprob - found.parent.logprob
        return found.parent.logprobs + [WireLogprob(e.token_id, own, e.top_ids, e.top_logprobs) for e in entry]

    def _finish_live(self) -> None:
        for beam in self.beams:
            token_ids = beam.sequence.output_token_ids.tolist()
            self._keep(Answer(token_ids, beam.logprob, FinishReason.LENGTH, None, beam.logprobs))

    def _keep(self, answer: Answer) -> None:
        """Add an answer; forget the worst when there are more than `beam_width`."""
        self._answers.append(answer)
        if len(self._answers) > self._width:
            self._answers.sort(key=lambda kept: -self._score(kept.logprob, len(kept.token_ids)))
            self._answers.pop()

    def _cannot_improve(self, length: int, max_length: int) -> bool:
        """Whether no live beam can become better than the worst answer that is kept."""
        if len(self._answers) < self._width:
            return False
        worst = min(self._score(answer.logprob, len(answer.token_ids)) for answer in self._answers)
        best_length = max_length if self.request.sampling.length_penalty > 0 else length + 1
        return self._score(self.beams[0].logprob, best_length) <= worst

    def _score(self, logprob: float, length: int) -> float:
        score: float = logprob / length**self.request.sampling.length_penalty
        return score


def _best_first(scores: npt.NDArray[np.float64], count: int) -> Iterator[int]:
    """Yield the positions of `scores` [N], the largest first and equals in order; quick for the first `count`."""
    seen = 0
    if count < len(scores):
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        best = np.flatnonzero(scores >= least)
        seen = len(best)
        yield from best[np.argsort(-scores[best], kind="stable")].tolist()
    yield from np.argsort(-scores, kind="stable")[seen:].tolist()


def _release(sequence: Sequence, blocks: BlockManager) -> None:
    blocks.free(sequence)
    sequence.status = SequenceStatus.FINISHED
