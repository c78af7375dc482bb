"""Arrays of what stays the same about a sequence from step to step, so that a step copies only what is new.

Knows nothing of a step's inputs: `ForwardInputBuilder` gathers them from here. A running sequence owns one row:

    block_tables   int32 [C, W]        its block ids, then 0; one array a group of layers
    floats         float32 [6, C]      temperature, top_p, min_p, presence, frequency, repetition penalty
    integers       int32 [4, C]        top_k, num_logprobs, num_prompt_tokens, 1 if it has options that few use
    seeds          uint64 [C]          already mixed with the sequence's index
    is_pooled      bool [C]            whether nothing is sampled, but hidden states are wanted

Relies on `Sequence.block_table`: a table only grows, and a new list takes its place when blocks are given up; the tables of
further groups of layers grow only when it does.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.batch import Batch, ScheduledSequence
from xllm_framework.request.request import Request
from xllm_framework.request.sampling_params import MIN_TEMPERATURE, SamplingParams
from xllm_framework.request.sequence import Sequence

_Scalar = TypeVar("_Scalar", bound=np.generic)

MAX_ENDING_TOKENS = 16
"""End tokens that a model has at most."""
_INITIAL_ROWS = 64
_INITIAL_WIDTH = 32
_MAX_TOP_K = 2**31 - 1
"""Larger ones mean the same: no vocabulary has so many tokens."""


class SequenceRows:
    """Rows by block table. Keeps rows of sequences that were not scheduled lately, until room is needed."""

    def __init__(self, num_groups: int = 1) -> None:
        self.block_tables: list[npt.NDArray[np.int32]] = [
            np.zeros((_INITIAL_ROWS, _INITIAL_WIDTH), np.int32) for _ in range(num_groups)
        ]
        self.floats: npt.NDArray[np.float32] = np.zeros((6, _INITIAL_ROWS), np.float32)
        self.integers: npt.NDArray[np.int32] = np.zeros((4, _INITIAL_ROWS), np.int32)
        self.seeds: npt.NDArray[np.uint64] = np.zeros(_INITIAL_ROWS, np.uint64)
        self.is_pooled: npt.NDArray[np.bool_] = np.zeros(_INITIAL_ROWS, np.bool_)
        self._row_of: dict[int, int] = {}
        self._tables: list[list[int] | None] = [None] * _INITIAL_ROWS
        """Keeps each row's table alive, so that its id, the key of `_row_of`, stays its own."""
        self._num_copied = [0] * _INITIAL_ROWS
        self._free_rows = list(range(_INITIAL_ROWS - 1, -1, -1))

    @property
    def num_prompt_tokens(self) -> npt.NDArray[np.int32]:
        """Prompt length by row, int32 [C]."""
        num_prompt_tokens: npt.NDArray[np.int32] = self.integers[2]
        return num_prompt_tokens

    def rows_of(self, batch: Batch) -> npt.NDArray[np.intp]:
        """Return one row a scheduled sequence, in order, each of them up to date. O(sequences + new blocks)."""
        self._make_room(batch)
        row_of, num_copied = self._row_of, self._num_copied
        rows = []
        for item in batch.scheduled:
            table = item.sequence.block_table
            row = row_of.get(id(table))
            if row is None:
                row = self._open_row(item)
            if num_copied[row] != len(table):
                self._copy_blocks(row, item.sequence)
            rows.append(row)
        return np.array(rows, np.intp)

    def _make_room(self, batch: Batch) -> None:
        """Unless a row is free for each scheduled sequence: give up the rows of others, and grow to twice the batch."""
        if len(self._free_rows) >= len(batch):
            return
        kept = {id(item.sequence.block_table) for item in batch.scheduled}
        for key in [key for key in self._row_of if key not in kept]:
            row = self._row_of.pop(key)
            self._tables[row] = None
            self._free_rows.append(row)
        while len(self.seeds) < 2 * len(batch):
            self._double_rows()

    def _open_row(self, item: ScheduledSequence) -> int:
        row = self._free_rows.pop()
        table, params = item.sequence.block_table, item.request.sampling
        self._row_of[id(table)] = row
        self._tables[row] = table
        self._num_copied[row] = 0
        for tables in self.block_tables:
            tables[row] = 0
        self.floats[:, row] = (
            0.0 if params.is_greedy else max(params.temperature, MIN_TEMPERATURE),
            params.top_p,
            params.min_p,
            params.presence_penalty,
            params.frequency_penalty,
            params.repetition_penalty,
        )
        self.integers[:, row] = (
            min(max(params.top_k, 0), _MAX_TOP_K),
            params.num_logprobs if params.beam_width == 1 else _beam_logprobs(params),
            item.sequence.num_prompt_tokens,
            is_special(params),
        )
        self.is_pooled[row] = item.request.pooling is not None
        self.seeds[row] = sequence_seed(item.request, item.sequence)
        return row

    def _copy_blocks(self, row: int, sequence: Sequence) -> None:
        """Copy what is new in the tables of `sequence`, of which the first is the shortest."""
        start, tables = self._num_copied[row], sequence.tables
        end = max(len(table) for table in tables)
        num_rows, width = self.block_tables[0].shape
        if end > width:
            width = max(end, 2 * width)
            self.block_tables = [_enlarged(array, (num_rows, width)) for array in self.block_tables]
        for array, table in zip(self.block_tables, tables, strict=True):
            array[row, start : len(table)] = table[start:]
        self._num_copied[row] = len(tables[0])

    def _double_rows(self) -> None:
        num_rows = len(self.seeds)
        width = self.block_tables[0].shape[1]
        self.block_tables = [_enlarged(tables, (2 * num_rows, width)) for tables in self.block_tables]
        self.floats = _enlarged(self.floats, (6, 2 * num_rows))
        self.integers = _enlarged(self.integers, (4, 2 * num_rows))
        self.seeds = _enlarged(self.seeds, (2 * num_rows,))
        self.is_pooled = _enlarged(self.is_pooled, (2 * num_rows,))
        self._tables.extend([None] * num_rows)
        self._num_copied.extend([0] * num_rows)
        self._free_rows.extend(range(2 * num_rows - 1, num_rows - 1, -1))


def is_special(params: SamplingParams) -> bool:
    """Whether there are options that few requests use, and that arrays of one number a row cannot hold."""
    return bool(params.has_penalties or params.logit_bias or params.min_tokens or params.constraint)


def _beam_logprobs(params: SamplingParams) -> int:
    """Return how many best tokens a beam needs, so that `beam_width` of them do not end it."""
    return max(params.beam_width + MAX_ENDING_TOKENS + len(params.stop_token_ids), params.num_logprobs)


def sequence_seed(request: Request, sequence: Sequence) -> int:
    """Return the 64-bit seed of one sequence: the request's, mixed with the sequence's index (SplitMix64's constant)."""
    return (request.seed + 0x9E3779B97F4A7C15 * sequence.index) & 0xFFFFFFFFFFFFFFFF


def _enlarged(array: npt.NDArray[_Scalar], shape: tuple[int, ...]) -> npt.NDArray[_Scalar]:
    """Return `array` with zeros added at its ends."""
    result: npt.NDArray[_Scalar] = np.zeros(shape, array.dtype)
    result[tuple(slice(length) for length in array.shape)] = array
    return result
