"""The short way to a decode step's input: the arrays of the step before, where the same sequences go on by a token each.

Between two passes over a model's weights no cache holds anything of the host's, so that every array operation costs
several times what it costs in a loop. Knows nothing of how an input is made from nothing: `ForwardInputBuilder` does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.batch import Batch
from xllm_framework.batch.forward_input import ForwardInput, SamplingRows
from xllm_framework.batch.sequence_rows import SequenceRows, is_special
from xllm_framework.request.sequence import Sequence


class NextDecode:
    """Follows one decode step after the other. Relies on `Sequence.block_table` as `SequenceRows` does."""

    def __init__(self, block_size: int, rows: SequenceRows) -> None:
        self._block_size = block_size
        self._rows = rows
        self._sequences: list[Sequence] = []
        self._tables: list[list[int]] = []
        self._num_blocks: list[int] = []
        self._starts: list[int] = []
        """Of the first step that was followed."""
        self._num_steps = 0
        """Steps since then; 0 where no step is followed."""
        self._last: ForwardInput | None = None
        self._seq_lens: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._slot_mapping: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def follow(self, batch: Batch, built: ForwardInput) -> None:
        """Take `batch` and its input as the step before the next one, if that can be made from it."""
        self._last = None
        if not self._can_follow(batch, built):
            return
        self._sequences = [item.sequence for item in batch.scheduled]
        self._tables = [sequence.block_table for sequence in self._sequences]
        self._num_blocks = [len(table) for table in self._tables]
        self._starts = [item.start for item in batch.scheduled]
        self._num_steps = 0
        self._last = built
        self._seq_lens, self._slot_mapping = built.seq_lens, built.slot_mapping

    def build(self, batch: Batch) -> ForwardInput | None:
        """Return the input of `batch`; None if it is not the followed step's sequences with a token more each."""
        last, scheduled = self._last, batch.scheduled
        if last is None or not len(scheduled) == batch.num_tokens == len(self._sequences):
            return None
        num_steps, block_size = self._num_steps + 1, self._block_size
        token_ids: list[int] = []
        new_slots: list[tuple[int, int]] = []
        has_grown = False
        for row, item in enumerate(scheduled):
            sequence, table, start = item.sequence, self._tables[row], item.start
            is_next = start == self._starts[row] + num_steps and sequence.num_tokens == start + 1
            if not is_next or sequence is not self._sequences[row] or sequence.block_table is not table:
                return None
            if start % block_size == 0:
                new_slots.append((row, table[start // block_size] * block_size))
            if len(table) != self._num_blocks[row]:
                self._num_blocks[row] = len(table)
                has_grown = True
            token_ids.append(sequence.last_token_id)
        self._num_steps = num_steps
        positions, self._seq_lens = self._seq_lens, self._seq_lens + 1
        self._slot_mapping = self._slot_mapping + 1
        for row, slot in new_slots:
            self._slot_mapping[row] = slot
        self._last = ForwardInput(
            token_ids=np.array(token_ids, np.int32),
            positions=positions,
            slot_mapping=self._slot_mapping,
            query_start=last.query_start,
            seq_lens=self._seq_lens,
            block_tables=self._block_tables(batch) if has_grown else last.block_tables,
            sample_rows=last.sample_rows,
            sampling=_next_token(last.sampling),
            max_query_len=1,
            moves=batch.moves,
            block_copies=batch.block_copies,
        )
        return self._last

    def _can_follow(self, batch: Batch, built: ForwardInput) -> bool:
        """Whether `built` is a plain decode step, in which nothing but lengths, slots and blocks depends on the output."""
        return (
            0 < len(batch) == batch.num_tokens == len(built.sample_rows)
            and not any(is_special(item.request.sampling) for item in batch.scheduled)
            and not built.more_groups
            and built.state_slots is None
            and not built.prompt_logprobs
        )

    def _block_tables(self, batch: Batch) -> npt.NDArray[np.int32]:
        rows = self._rows.rows_of(batch)  # first, for it may put larger arrays in place of the tables
        tables: npt.NDArray[np.int32] = self._rows.block_tables[0][rows, : max(self._num_blocks)]
        return tables


def _next_token(rows: SamplingRows) -> SamplingRows:
    """Return the options of the same rows for the token behind."""
    return SamplingRows(
        temperature=rows.temperature,
        top_p=rows.top_p,
        top_k=rows.top_k,
        min_p=rows.min_p,
        seed=rows.seed,
        step=rows.step + 1,
        num_logprobs=rows.num_logprobs,
        presence_penalty=rows.presence_penalty,
        frequency_penalty=rows.frequency_penalty,
        repetition_penalty=rows.repetition_penalty,
    )
