"""From a `Batch` to a `ForwardInput`. Numpy only; knows nothing of torch, devices or models."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.allowed_tokens import AllowedTokens
from xllm_framework.batch.batch import Batch, ScheduledSequence
from xllm_framework.batch.forward_input import ForwardInput, GroupTables, SamplingRows
from xllm_framework.batch.next_decode import NextDecode
from xllm_framework.batch.pooled_rows import PooledRows, pooled_rows
from xllm_framework.batch.sequence_rows import SequenceRows


class ForwardInputBuilder:
    """Builds `ForwardInput`s for blocks of `block_size` tokens. `eos_token_ids` are banned before `min_tokens`.

    `num_groups` are groups of layers with tables of their own.

    Remembers what it copied of each running sequence, so that a decode step costs the same at any length. Not for
    several threads.
    """

    def __init__(self, block_size: int, eos_token_ids: tuple[int, ...] = (), num_groups: int = 1) -> None:
        self._block_size = block_size
        self._eos_token_ids = eos_token_ids
        self._rows = SequenceRows(num_groups)
        self._next = NextDecode(block_size, self._rows)

    def build(self, batch: Batch) -> ForwardInput:
        """Return the arrays of `batch`; O(tokens + sequences + new blocks) in Python."""
        result = self._next.build(batch)
        if result is None:
            result = self._build(batch)
            self._next.follow(batch, result)
        return result

    def _build(self, batch: Batch) -> ForwardInput:
        """Return the arrays of any batch, made from nothing but rows."""
        scheduled, num_sequences = batch.scheduled, len(batch)
        starts = np.array([item.start for item in scheduled], np.int32)
        num_tokens_of = np.array([item.sequence.num_tokens for item in scheduled], np.int32)
        if batch.num_tokens == num_sequences:  # one token each, as in most steps
            max_query_len = min(num_sequences, 1)
            query_start = np.arange(num_sequences + 1, dtype=np.int32)
            sequence_of, positions, seq_lens = query_start[:-1], starts, starts + 1
        else:
            lengths = np.array([item.num_scheduled_tokens for item in scheduled], np.int32)
            max_query_len = int(lengths.max())
            query_start = np.zeros(num_sequences + 1, np.int32)
            np.cumsum(lengths, out=query_start[1:])
            sequence_of = np.repeat(np.arange(num_sequences, dtype=np.int32), lengths)
            positions = np.arange(batch.num_tokens, dtype=np.int32) + (starts - query_start[:-1])[sequence_of]
            seq_lens = starts + lengths
        sampled = np.flatnonzero(seq_lens == num_tokens_of)
        rows = self._rows.rows_of(batch)
        pooled: list[PooledRows] = []
        is_pooled = self._rows.is_pooled[rows]
        if is_pooled.any():
            pooled = pooled_rows(scheduled, query_start)
            sampled = sampled[~is_pooled[sampled]]
        width = max((len(item.sequence.block_table) for item in scheduled), default=1)
        places = (sequence_of, positions // self._block_size)
        offsets = positions % self._block_size
        first, *more = [tables[rows, :width] for tables in self._rows.block_tables]
        return ForwardInput(
            token_ids=self._token_ids(scheduled, batch.num_tokens, len(sampled)),
            positions=positions,
            slot_mapping=self._slots(first, places, offsets),
            query_start=query_start,
            seq_lens=seq_lens,
            block_tables=first,
            sample_rows=query_start[1:][sampled].astype(np.int64) - 1,
            sampling=self._sampling_rows(scheduled, sampled, rows[sampled], num_tokens_of[sampled]),
            max_query_len=max_query_len,
            moves=batch.moves,
            block_copies=batch.block_copies,
            prompt_logprobs=self._prompt_logprobs(scheduled, starts, rows),
            pooled=pooled,
            more_groups=[GroupTables(self._slots(tables, places, offsets), tables) for tables in more],
            state_slots=_state_slots(scheduled),
        )

    def _slots(
        self,
        tables: npt.NDArray[np.int32],
        places: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]],
        offsets: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.int64]:
        slots: npt.NDArray[np.int64] = tables[places].astype(np.int64) * self._block_size + offsets
        return slots

    @staticmethod
    def _token_ids(scheduled: list[ScheduledSequence], num_tokens: int, num_sampled: int) -> npt.NDArray[np.int32]:
        if num_tokens == num_sampled:  # one token each, and each its sequence's newest
            return np.array([item.sequence.last_token_id for item in scheduled], np.int32)
        token_ids = np.empty(num_tokens, np.int32)
        row = 0
        for item in scheduled:
            end = row + item.num_scheduled_tokens
            token_ids[row:end] = item.sequence.token_ids[item.start : item.start + item.num_scheduled_tokens]
            row = end
        return token_ids

    def _sampling_rows(
        self,
        scheduled: list[ScheduledSequence],
        sampled: npt.NDArray[np.intp],
        rows: npt.NDArray[np.intp],
        num_tokens_of: npt.NDArray[np.int32],
    ) -> SamplingRows:
        """`sampled` [R] are indices of `scheduled`; `rows` [R] and `num_tokens_of` [R] belong to them."""
        temperature, top_p, min_p, presence, frequency, repetition = self._rows.floats.take(rows, axis=1)
        top_k, num_logprobs, num_prompt_tokens, is_special = self._rows.integers.take(rows, axis=1)
        result = SamplingRows(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seed=self._rows.seeds[rows],
            step=(num_tokens_of - num_prompt_tokens).astype(np.int64),
            num_logprobs=num_logprobs,
            presence_penalty=presence,
            frequency_penalty=frequency,
            repetition_penalty=repetition,
        )
        constrained = []
        for row in np.flatnonzero(is_special).tolist():
            item = scheduled[sampled[row]]
            self._add_special(result, row, item)
            if item.sequence.constraint_state is not None:
                constrained.append((row, item.sequence.constraint_state))
        if constrained:
            result.allowed = AllowedTokens.of(constrained)
        return result

    def _add_special(self, result: SamplingRows, row: int, item: ScheduledSequence) -> None:
        """List the options of `row` that few requests use."""
        params, sequence = item.request.sampling, item.sequence
        if params.has_penalties:
            output = sequence.output_token_ids
            if sequence.last_token_id < 0:
                output = output.copy()  # the placeholder in it is replaced there and here
            result.penalised.append((row, sequence.prompt_token_ids, output))
        if params.logit_bias:
            ids = np.fromiter(params.logit_bias.keys(), np.int64, len(params.logit_bias))
            result.logit_bias.append((row, ids, np.fromiter(params.logit_bias.values(), np.float32, len(ids))))
        if sequence.num_output_tokens < params.min_tokens:
            banned = {*params.stop_token_ids, *self._eos_token_ids}
            result.banned.append((row, np.fromiter(banned, np.int64, len(banned))))

    def _prompt_logprobs(
        self, scheduled: list[ScheduledSequence], starts: npt.NDArray[np.int32], rows: npt.NDArray[np.intp]
    ) -> list[tuple[int, int, npt.NDArray[np.int32]]]:
        wanted = []
        for index in np.flatnonzero(starts + 1 < self._rows.num_prompt_tokens[rows]).tolist():
            item = scheduled[index]
            k = item.request.sampling.prompt_logprobs
            if k is None or item.sequence.index > 0 or item.sequence.num_output_tokens > 0:
                continue
            end = min(item.start + item.num_scheduled_tokens + 1, item.sequence.num_prompt_tokens)
            wanted.append((index, k, item.sequence.token_ids[item.start + 1 : end].copy()))
        return wanted


def _state_slots(scheduled: list[ScheduledSequence]) -> npt.NDArray[np.int32] | None:
    if not scheduled or scheduled[0].sequence.state_slots is None:
        return None
    return np.array([item.sequence.state_slots for item in scheduled], np.int32)
