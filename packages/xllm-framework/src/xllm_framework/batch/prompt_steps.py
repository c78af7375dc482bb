"""Steps that compute given stretches of tokens, built from plain arrays. Numpy only; knows nothing of requests or queues."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xllm_framework.batch.forward_input import ForwardInput, SamplingRows


@dataclass(frozen=True, slots=True)
class TokenStretch:
    """Tokens [start, len(token_ids)) of a list are to be computed; KV of those before is in the cache."""

    token_ids: npt.NDArray[np.int32]
    start: int
    block_table: npt.NDArray[np.int32]
    """The blocks of the whole list, in order."""

    @property
    def num_tokens(self) -> int:
        """Tokens to be computed; at least 1."""
        return len(self.token_ids) - self.start


def build_steps(stretches: list[TokenStretch], block_size: int, max_tokens: int) -> list[ForwardInput]:
    """Return steps of at most `max_tokens` tokens that compute all stretches in order.

    The last token of each stretch is a sampled row of exactly one step; the rows come in the order of the stretches.
    """
    steps, pieces, room = [], [], max_tokens
    for stretch in stretches:
        start = stretch.start
        while start < len(stretch.token_ids):
            end = min(start + room, len(stretch.token_ids))
            pieces.append((stretch, start, end))
            room -= end - start
            start = end
            if room == 0:
                steps.append(_step(pieces, block_size))
                pieces, room = [], max_tokens
    if pieces:
        steps.append(_step(pieces, block_size))
    return steps


def _step(pieces: list[tuple[TokenStretch, int, int]], block_size: int) -> ForwardInput:
    lengths = np.array([end - start for _, start, end in pieces], np.int32)
    query_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    positions = np.concatenate([np.arange(start, end, dtype=np.int32) for _, start, end in pieces])
    tables = np.zeros((len(pieces), max(-(-end // block_size) for _, _, end in pieces)), np.int32)
    for row, (stretch, _, end) in enumerate(pieces):
        num_blocks = -(-end // block_size)
        tables[row, :num_blocks] = stretch.block_table[:num_blocks]
    rows = np.repeat(np.arange(len(pieces)), lengths)
    is_last = np.array([end == len(stretch.token_ids) for stretch, _, end in pieces])
    sample_rows = (query_start[1:] - 1)[is_last].astype(np.int64)
    return ForwardInput(
        token_ids=np.concatenate([stretch.token_ids[start:end] for stretch, start, end in pieces]).astype(np.int32),
        positions=positions,
        slot_mapping=tables[rows, positions // block_size].astype(np.int64) * block_size + positions % block_size,
        query_start=query_start,
        seq_lens=np.array([end for _, _, end in pieces], np.int32),
        block_tables=tables,
        sample_rows=sample_rows,
        sampling=_no_sampling(len(sample_rows)),
        max_query_len=int(lengths.max()),
    )


def _no_sampling(num_rows: int) -> SamplingRows:
    """Return greedy rows: whoever takes the logits chooses himself."""
    floats, ones = np.zeros(num_rows, np.float32), np.ones(num_rows, np.float32)
    zeros = np.zeros(num_rows, np.int32)
    return SamplingRows(
        temperature=floats,
        top_p=ones,
        top_k=zeros,
        min_p=floats,
        seed=np.zeros(num_rows, np.uint64),
        step=np.zeros(num_rows, np.int64),
        num_logprobs=np.full(num_rows, -1, np.int32),
        presence_penalty=floats,
        frequency_penalty=floats,
        repetition_penalty=ones,
    )
