"""Moves sequences between waiting, running and finished, and reports their news. Knows nothing of budgets or policies.

    add -> waiting --start--> running (prefill, then decode) --end--> finished
              ^                  |
              +---- preempt -----+

With a prefix cache only the first sequence of a request waits at once; the others follow when its prompt is computed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as List
from operator import attrgetter

from xllm_framework.errors import IntegrityError, InvalidRequest, XLLMError
from xllm_framework.kv_cache import BlockManager
from xllm_framework.request import FinishReason, Request, Sequence, SequenceStatus
from xllm_framework.request.messages import SequenceDelta, WireLogprob
from xllm_scheduler.beam import BeamGroup
from xllm_scheduler.ordering import Ordering
from xllm_scheduler.queue import QueueEntry, WaitingQueue
from xllm_scheduler.record import RequestRecord

_ORDER = attrgetter("order")
_NO_TOKENS: list[int] = []


class Lifecycle:
    """The unfinished requests, and where each of their sequences is.

    Args:
        block_managers: one a data-parallel rank; take back the blocks of sequences that end or are preempted.
        ordering: gives each sequence its place.
    """

    def __init__(self, block_managers: List[BlockManager], ordering: Ordering) -> None:
        self.records: dict[str, RequestRecord] = {}
        self.waiting = WaitingQueue()
        self.held = WaitingQueue()
        """What must not be admitted for now: see `hold_new`."""
        self.running: list[QueueEntry] = []
        """Sorted by `order`."""
        self.num_offline = 0
        """Unfinished offline requests."""
        self.num_preemptions = 0
        """Since the start."""
        self._blocks = block_managers
        self._ordering = ordering
        self._deltas: list[SequenceDelta] = []
        self._num_arrivals = 0
        self._has_finished = False
        self._is_holding = False

    @property
    def has_work(self) -> bool:
        """Whether anything runs, waits and may be admitted, or is to be reported."""
        return bool(self.running or self._deltas or len(self.waiting))

    @property
    def has_news(self) -> bool:
        """Whether `take_deltas` would return any."""
        return bool(self._deltas)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: an unfinished request has the same id, or the prompt is empty.
        """
        if request.request_id in self.records:
            raise InvalidRequest(f"request_id {request.request_id!r} is in use.", "request_id")
        if request.sequences[0].num_prompt_tokens == 0:
            raise InvalidRequest("prompt must hold at least one token.", "prompt")
        record = RequestRecord(request, self._num_arrivals)
        self._num_arrivals += 1
        record.is_held = self._is_holding
        self.records[request.request_id] = record
        self.num_offline += request.is_offline
        if request.sampling.beam_width > 1:
            record.beams = BeamGroup(request)
        has_one_leader = record.beams is not None or self._blocks[0].enable_prefix_cache
        num_leaders = 1 if has_one_leader else len(request.sequences)
        record.followers = request.sequences[num_leaders:]
        for sequence in request.sequences[:num_leaders]:
            self._enqueue(record, sequence)
        self.waiting.watch_deadline(request, record.arrival)

    def hold_new(self) -> None:
        """Keep apart every request of which nothing was ever scheduled, those still to come included."""
        self._is_holding = True
        for entry in self.waiting.take_all():
            record = self.records[entry.request.request_id]
            record.is_held = entry.request.first_scheduled_time_s is None
            self._queue_of(record).push(entry)

    def release_held(self) -> None:
        """Let all that is held wait as usual again."""
        self._is_holding = False
        for entry in self.held.take_all():
            self.records[entry.request.request_id].is_held = False
            self.waiting.push(entry)

    def start(self, entry: QueueEntry) -> None:
        """Move the first waiting entry, which has got its blocks, to the running ones."""
        self.waiting.pop()
        insort(self.running, entry, key=_ORDER)
        entry.sequence.status = SequenceStatus.PREFILL

    def start_decode(self, record: RequestRecord, sequence: Sequence) -> None:
        """Mark the prompt of `sequence` as computed, and queue those that waited to share it."""
        sequence.status = SequenceStatus.DECODE
        if record.beams is not None:
            return
        followers, record.followers = record.followers, []
        for follower in followers:
            self._enqueue(record, follower)

    def preempt(self, entry: QueueEntry) -> None:
        """Take the blocks of a running sequence and queue it again; all its tokens will be computed anew."""
        sequence = entry.sequence
        if entry.beams is not None:
            entry.beams.restart(self._blocks[sequence.rank])
        self._blocks[sequence.rank].free(sequence)
        sequence.drop_placeholder()
        sequence.status = SequenceStatus.WAITING
        sequence.num_cached_tokens = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        if sequence.index == 0:
            self.records[sequence.request_id].forget_prompt()
        self.running.remove(entry)
        self.waiting.push(entry)

    def abort(self, targets: Iterable[str | tuple[str, int]]) -> None:
        """End requests, or single sequences as (request id, index); unknown and finished ones are ignored."""
        for target in targets:
            request_id, index = (target, None) if isinstance(target, str) else target
            record = self.records.get(request_id)
            if record is None:
                continue
            index = None if record.beams is not None else index
            for sequence in reversed(record.request.sequences):
                if index is None or index == sequence.index:
                    self.end_early(record, sequence, FinishReason.ABORT)
        self.remove_finished()

    def fail(self, request: Request, error: XLLMError) -> None:
        """End every unfinished sequence of a request with `error`."""
        record = self.records[request.request_id]
        for sequence in reversed(request.sequences):
            self.end_early(record, sequence, FinishReason.ERROR, error)
        self.remove_finished()

    def end_early(
        self, record: RequestRecord, sequence: Sequence, reason: FinishReason, error: XLLMError | None = None
    ) -> None:
        """End a sequence in whatever state it is; if it led followers, the first of them leads from now on."""
        if sequence.is_finished:
            return
        if sequence in record.followers:
            record.followers.remove(sequence)
        else:
            if sequence.status is SequenceStatus.WAITING:
                self._queue_of(record).discard()
            if record.followers and record.beams is None:
                self._enqueue(record, record.followers.pop(0))
        if sequence.index == 0:
            record.forget_prompt()
        self.end(record, sequence, reason, error=error)

    def end(
        self,
        record: RequestRecord,
        sequence: Sequence,
        reason: FinishReason,
        *,
        stop_reason: int | None = None,
        error: XLLMError | None = None,
        token_ids: list[int] = _NO_TOKENS,
        logprobs: list[WireLogprob] | None = None,
    ) -> None:
        """Free the blocks of a sequence that runs, mark it finished, and report it. `remove_finished` must follow."""
        if record.beams is not None and sequence.index == 0:
            record.beams.release(self._blocks[sequence.rank])
        self._blocks[sequence.rank].free(sequence)
        self._has_finished = True
        sequence.finish(reason, stop_reason=stop_reason, error=None if error is None else error.message)
        self.report(record, sequence, token_ids, logprobs, error)
        if record.request.is_finished:
            del self.records[sequence.request_id]
            self.num_offline -= record.request.is_offline

    def end_beams(self, record: RequestRecord, beams: BeamGroup) -> None:
        """End a beam search with its best answers. `remove_finished` must follow."""
        answers = beams.best_answers()
        record.followers = []
        for sequence in record.request.sequences:
            if sequence.index < len(answers):
                answer = answers[sequence.index]
                logprobs = answer.logprobs if record.request.sampling.logprobs is not None else None
                self.end(
                    record,
                    sequence,
                    answer.reason,
                    stop_reason=answer.stop_reason,
                    token_ids=answer.token_ids,
                    logprobs=logprobs,
                )
            else:
                self.end(record, sequence, FinishReason.LENGTH)

    def report(
        self,
        record: RequestRecord,
        sequence: Sequence,
        token_ids: list[int],
        logprobs: list[WireLogprob] | None,
        error: XLLMError | None = None,
    ) -> None:
        """Note new tokens, or the end, of a sequence; its prompt's log-probabilities go with the first note."""
        prompt_logprobs = None
        if record.prompt_logprobs and sequence.index == 0:
            prompt_logprobs, record.prompt_logprobs = record.prompt_logprobs, []
        reason = sequence.finish_reason
        pooled = None if record.pooled is None or reason is None else record.pooled.astype("<f4").tobytes()
        self._deltas.append(
            SequenceDelta(
                sequence.request_id,
                sequence.index,
                token_ids,
                None if reason is None else reason.value,
                sequence.stop_reason,
                logprobs,
                prompt_logprobs,
                record.num_cached_tokens,
                record.request.first_scheduled_time_s,
                sequence.error,
                None if error is None else error.kind,
                pooled,
            )
        )

    def report_token(
        self, record: RequestRecord, sequence: Sequence, token_id: int, logprobs: list[WireLogprob] | None
    ) -> None:
        """Do as `report` does with one token of a sequence that goes on, which is most of all reports."""
        if record.prompt_logprobs:
            self.report(record, sequence, [token_id], logprobs)
            return
        self._deltas.append(
            SequenceDelta(
                sequence.request_id,
                sequence.index,
                [token_id],
                None,
                None,
                logprobs,
                None,
                record.num_cached_tokens,
                record.request.first_scheduled_time_s,
            )
        )

    def remove_finished(self) -> None:
        """Drop finished sequences from the running ones."""
        if self._has_finished:
            self._has_finished = False
            self.running[:] = [entry for entry in self.running if not entry.sequence.is_finished]

    def take_deltas(self) -> list[SequenceDelta]:
        """Return all news since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def check_integrity(self, in_flight: Mapping[int, int]) -> None:
        """Check that every unfinished sequence is in exactly one list, in a state that fits, and the block managers.

        `in_flight` as in `BlockManager.check_integrity`.

        Raises:
            IntegrityError: names what is wrong.
        """
        waiting = [entry.sequence for queue in (self.waiting, self.held) for entry in queue]
        running = [entry.sequence for entry in self.running]
        followers = [sequence for record in self.records.values() for sequence in record.followers]
        beams = [s for record in self.records.values() if record.beams is not None for s in record.beams.followers]
        unfinished = [s for record in self.records.values() for s in record.request.sequences if not s.is_finished]
        if sorted(map(id, waiting + running + followers)) != sorted(map(id, unfinished)):
            raise IntegrityError("An unfinished sequence is in no list of the scheduler, or in two.")
        if len(waiting) != len(self.waiting) + len(self.held):
            raise IntegrityError("The waiting queue has lost count.")
        if any(sequence.block_table or sequence.num_computed_tokens for sequence in waiting + followers):
            raise IntegrityError("A waiting sequence holds blocks.")
        if sorted(self.running, key=_ORDER) != self.running:
            raise IntegrityError("The running sequences are out of order.")
        for entry in self.running:
            sequence = entry.sequence
            if entry.beams is None and sequence.status is SequenceStatus.DECODE and sequence.num_uncomputed_tokens > 1:
                raise IntegrityError(f"{sequence} decodes, so that at most its newest token may be uncomputed.")
        if self.num_offline != sum(record.request.is_offline for record in self.records.values()):
            raise IntegrityError("The scheduler has lost count of its offline requests.")
        for rank, blocks in enumerate(self._blocks):
            blocks.check_integrity([sequence for sequence in running + beams if sequence.rank == rank], in_flight)

    def _enqueue(self, record: RequestRecord, sequence: Sequence) -> None:
        entry = self._ordering.entry(record.request, sequence, record.arrival)
        entry.beams = record.beams
        self._queue_of(record).push(entry)

    def _queue_of(self, record: RequestRecord) -> WaitingQueue:
        return self.held if record.is_held else self.waiting
