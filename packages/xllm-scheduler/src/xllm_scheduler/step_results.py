"""Applies what a step computed: tokens, ends, errors, blocks to be known. Knows nothing of how the step was chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as List

import numpy as np

from xllm_framework.batch import Batch, BatchGroup, ForwardOutput, ScheduledSequence
from xllm_framework.errors import RequestFailed
from xllm_framework.kv_cache import BlockManager
from xllm_framework.request import FinishReason, Sequence, SequenceStatus, StoppingChecker
from xllm_framework.request.messages import EngineStats
from xllm_scheduler.lifecycle import Lifecycle
from xllm_scheduler.logprobs import chunk_logprobs, has_no_output, owes_prompt_logprobs, row_logprobs
from xllm_scheduler.overlap import Assumption
from xllm_scheduler.record import RequestRecord

_PREFILL, _FINISHED = SequenceStatus.PREFILL, SequenceStatus.FINISHED


class StepResults:
    """Takes the outputs of a step back into the sequences."""

    def __init__(
        self,
        block_managers: List[BlockManager],
        lifecycle: Lifecycle,
        stopping: StoppingChecker,
        stats: EngineStats,
        clock: Callable[[], float],
    ) -> None:
        self._blocks = block_managers
        self._lifecycle = lifecycle
        self._stopping = stopping
        self._stats = stats
        self._clock = clock
        self._now_s = 0.0

    def apply(self, group: BatchGroup, outputs: List[ForwardOutput], assumptions: Mapping[int, Assumption]) -> None:
        """Apply the results of `group`, one output a batch; `assumptions` is empty without overlap."""
        self._now_s = self._clock()
        for rank, (batch, output) in enumerate(zip(group.batches, outputs, strict=True)):
            self._apply_batch(batch, output, self._blocks[rank], assumptions)
            self._stats.num_encoded_media += output.num_encoded_media
            self._stats.num_cached_media += output.num_cached_media

    def _apply_batch(
        self, batch: Batch, output: ForwardOutput, blocks: BlockManager, assumptions: Mapping[int, Assumption]
    ) -> None:
        """Apply one rank's results, in the order of `batch`."""
        token_ids, errors = output.token_ids.tolist(), output.errors or {}
        records, block_size = self._lifecycle.records, blocks.block_size
        has_errors = len(errors) > 0
        computed: set[Sequence] = set()
        sampled_beams: dict[str, list[tuple[Sequence, int]]] = {}
        next_row = 0
        for index, item in enumerate(batch.scheduled):
            sequence, start = item.sequence, item.start
            end = start + item.num_scheduled_tokens
            if assumptions:
                assumption = assumptions[id(sequence)]
                is_sampled, is_prefill, is_current = *assumption[:2], assumption.holds(sequence)
            else:
                is_sampled = end == sequence.num_tokens and item.request.pooling is None
                is_prefill, is_current = sequence.status is _PREFILL, sequence.status is not _FINISHED
            row = next_row
            next_row += is_sampled
            is_failed = has_errors and is_sampled and row in errors
            if item.num_scheduled_tokens > 1 and not is_failed and item.announcers <= computed:
                computed.add(sequence)
            if not is_current:
                continue
            if item.announcers and not item.announcers <= computed:
                self._give_up(sequence)
                continue
            if not assumptions:
                sequence.num_computed_tokens = end
                sequence.turn_states()
            record = records[sequence.request_id]
            if is_failed and record.beams is not None:
                self._lifecycle.fail(record.request, RequestFailed(errors[row]))
                continue
            if is_failed:
                error = RequestFailed(_why_failed(sequence, errors[row]))
                self._lifecycle.end_early(record, sequence, FinishReason.ERROR, error)
                continue
            if end // block_size != start // block_size:
                blocks.publish(sequence, start, end, item.request.cache_salt)
            if is_prefill:
                self._apply_prefill(record, index, item, output, is_sampled)
            if not is_sampled:
                if item.request.pooling is not None:
                    self._apply_pooling(record, index, item, output)
                continue
            if record.beams is not None:
                sampled_beams.setdefault(sequence.request_id, []).append((sequence, row))
            elif item.request.sampling.max_tokens == 0:
                self._lifecycle.end(record, sequence, FinishReason.LENGTH)
            else:
                self._append(record, sequence, token_ids[row], output, row)
        for request_id, rows in sampled_beams.items():
            if request_id in records:
                self._advance_beams(records[request_id], rows, output, blocks)

    def _advance_beams(
        self, record: RequestRecord, rows: List[tuple[Sequence, int]], output: ForwardOutput, blocks: BlockManager
    ) -> None:
        """Grow the beams of a request, all of which the step has sampled."""
        beams = record.beams
        if beams is None:
            return
        self._stats.num_generated_tokens += len(rows)
        if beams.advance(rows, output, blocks, self._stopping):
            self._lifecycle.end_beams(record, beams)

    def _give_up(self, sequence: Sequence) -> None:
        """Compute `sequence` anew: it shares blocks that this step was to compute, but did not."""
        self._lifecycle.preempt(next(entry for entry in self._lifecycle.running if entry.sequence is sequence))

    def _apply_prefill(
        self, record: RequestRecord, index: int, item: ScheduledSequence, output: ForwardOutput, is_complete: bool
    ) -> None:
        """Collect a chunk's log-probabilities; after the last chunk the sequence decodes."""
        sequence, num_top = item.sequence, record.request.sampling.prompt_logprobs
        if num_top is not None and owes_prompt_logprobs(record.request, sequence):
            if not record.prompt_logprobs:
                record.prompt_logprobs.append(None)
            record.prompt_logprobs.extend(chunk_logprobs(output, index, item, num_top))
        if is_complete:
            if sequence.index == 0 and has_no_output(sequence):
                self._stats.num_prompt_tokens += sequence.num_prompt_tokens
            if record.request.first_token_time_s is None:
                record.request.first_token_time_s = self._now_s
            self._lifecycle.start_decode(record, sequence)

    def _apply_pooling(self, record: RequestRecord, index: int, item: ScheduledSequence, output: ForwardOutput) -> None:
        """Add what a chunk brought a pooling request, and end it with the prompt's last one."""
        sequence, pooling = item.sequence, item.request.pooling
        values = None if output.pooled is None else output.pooled.get(index)
        if values is not None and not np.isfinite(values).all():
            error = RequestFailed("The hidden states of this prompt are not finite.")
            self._lifecycle.end_early(record, sequence, FinishReason.ERROR, error)
            return
        if values is not None:
            record.pooled = values.astype(np.float64) if record.pooled is None else record.pooled + values
        if item.start + item.num_scheduled_tokens < sequence.num_tokens:
            return
        if record.pooled is None:
            self._lifecycle.end_early(
                record, sequence, FinishReason.ERROR, RequestFailed("This model pools no prompts.")
            )
            return
        if pooling is not None and pooling.kind == "mean":
            record.pooled /= sequence.num_tokens
        self._stats.num_prompt_tokens += sequence.num_prompt_tokens
        record.request.first_token_time_s = self._now_s
        self._lifecycle.end(record, sequence, FinishReason.STOP)

    def _append(
        self, record: RequestRecord, sequence: Sequence, token_id: int, output: ForwardOutput, row: int
    ) -> None:
        """Take the token sampled for `sequence`, end it if that is its last, and report it."""
        sampling = record.request.sampling
        if sequence.last_token_id < 0:
            sequence.replace_placeholder(token_id)
        else:
            sequence.append(token_id)
        state = sequence.constraint_state
        if state is not None:
            state.accept(token_id)
            if state.error is not None:
                self._lifecycle.end(record, sequence, FinishReason.ERROR, error=RequestFailed(state.error))
                return
        self._stats.num_generated_tokens += 1
        logprobs = None
        if sampling.logprobs is not None or sampling.best_of is not None:
            logprobs = row_logprobs(output, row, token_id, sampling.num_logprobs)
        stop = self._stopping.check(sequence, sampling)
        if stop is None:
            self._lifecycle.report_token(record, sequence, token_id, logprobs)
        else:
            reason, stop_token_id = stop
            self._lifecycle.end(
                record, sequence, reason, stop_reason=stop_token_id, token_ids=[token_id], logprobs=logprobs
            )


def _why_failed(sequence: Sequence, error: str) -> str:
    """Return the reason of a row without a token: that of the constraint which barred them all, where it tells."""
    state = sequence.constraint_state
    return error if state is None or state.error is None else state.error
