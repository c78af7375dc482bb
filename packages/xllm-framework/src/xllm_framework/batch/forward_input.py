"""From a `Batch` to flat arrays that any executor can take. Numpy only; knows nothing of torch, devices or models.

For S scheduled sequences with T tokens in all, of which R rows are sampled:

    token_ids, positions, slot_mapping   [T]      sequence after sequence
    query_start                          [S + 1]  sequence s owns rows [query_start[s], query_start[s + 1])
    seq_lens                             [S]      tokens whose KV is in the cache once the step has run
    block_tables                         [S, B]   row s lists the blocks held for its tokens, computed and scheduled, then 0
    sample_rows                          [R]      rows of [0, T) whose logits are needed

Where a model has several groups of layers, `slot_mapping` and `block_tables` are the first group's, and `more_groups` has those of
the others. Where it has linear state, `state_slots` [S, 2] are the slots that each sequence reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.allowed_tokens import AllowedTokens
from xllm_framework.batch.batch import Batch, ScheduledSequence
from xllm_framework.batch.media_rows import MediaRows
from xllm_framework.batch.pooled_rows import PooledRows, pooled_rows
from xllm_framework.batch.sequence_rows import SequenceRows
from xllm_framework.kv_cache.host_tier import BlockMoves


@dataclass(slots=True)
class SamplingRows:
    """Sampling options of the R sampled rows, as arrays, so that rows with different options share one pass."""

    temperature: npt.NDArray[np.float32]
    """[R]; 0 is greedy, others are at least `MIN_TEMPERATURE`."""
    top_p: npt.NDArray[np.float32]
    """[R]"""
    top_k: npt.NDArray[np.int32]
    """[R]; 0 is off."""
    min_p: npt.NDArray[np.float32]
    """[R]"""
    seed: npt.NDArray[np.uint64]
    """[R]; already mixed with the sequence index, so that n sequences differ."""
    step: npt.NDArray[np.int64]
    """[R]; index of the token to be drawn among the sequence's output: the counter of its random numbers."""
    num_logprobs: npt.NDArray[np.int32]
    """[R]; -1 none, 0 the sampled token's only, k the k best also."""
    presence_penalty: npt.NDArray[np.float32]
    frequency_penalty: npt.NDArray[np.float32]
    repetition_penalty: npt.NDArray[np.float32]
    penalised: list[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.int32]]] = field(default_factory=list)
    """(row, prompt token ids, output token ids) of the rows with penalties."""
    logit_bias: list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.float32]]] = field(default_factory=list)
    """(row, token ids, biases) of the rows with a bias."""
    banned: list[tuple[int, npt.NDArray[np.int64]]] = field(default_factory=list)
    """(row, token ids that must not be drawn now): end tokens before `min_tokens`."""
    allowed: AllowedTokens | None = None
    """What the constrained rows may take; None when there are none."""

    @property
    def is_all_greedy(self) -> bool:
        """Whether every row takes its most probable token."""
        return not self.temperature.any()


@dataclass(frozen=True, slots=True)
class GroupTables:
    """Where a step's tokens lie for one further group of layers; see `kv_cache.layer_groups`."""

    slot_mapping: npt.NDArray[np.int64]
    block_tables: npt.NDArray[np.int32]


@dataclass(slots=True)
class ForwardInput:
    """One step's input for one rank; see the module's table for shapes."""

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slot_mapping: npt.NDArray[np.int64]
    query_start: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]
    sample_rows: npt.NDArray[np.int64]
    sampling: SamplingRows
    max_query_len: int
    moves: BlockMoves | None = None
    """Moves between host and device, which happen once and before `block_copies`, whatever becomes of the step."""
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    """(from, to) block ids, to be copied before anything is written; no block is both."""
    prompt_logprobs: list[tuple[int, int, npt.NDArray[np.int32]]] = field(default_factory=list)
    """(scheduled index s, k, target token ids): the log-probabilities of `target` at the first len(target) rows of s."""
    pooled: list[PooledRows] = field(default_factory=list)
    """What of the step's hidden states pooling requests want."""
    media: MediaRows | None = None
    """Images and videos among the rows; None for text."""
    more_groups: list[GroupTables] = field(default_factory=list)
    """The second group of layers and those behind it; empty mostly."""
    state_slots: npt.NDArray[np.int32] | None = None
    """[S, 2]; slots of linear state that are read and written, all of them read before any is written. A sequence of which
    nothing is computed yet begins with zeros, whatever its first slot holds. None for models without one."""

    @property
    def groups(self) -> list[GroupTables]:
        """Where the tokens lie, for each group of layers."""
        return [GroupTables(self.slot_mapping, self.block_tables), *self.more_groups]

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        """S."""
        return len(self.seq_lens)


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

    def build(self, batch: Batch) -> ForwardInput:
        """Return the arrays of `batch`, which the caller owns; O(tokens + sequences + new blocks) in Python."""
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
