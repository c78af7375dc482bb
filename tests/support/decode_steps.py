"""Builds `ForwardInput`s by hand: sequences with scattered blocks that grow by the tokens a test feeds. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xllm_framework.batch import ForwardInput, SamplingRows
from xllm_runtime.executor.warm_up import warm_up_input


class StepMaker:
    """Sequences 0, 1, ... over one pool of blocks; block 0 stays unused."""

    def __init__(self, num_blocks: int, block_size: int, seed: int = 0) -> None:
        self._block_size = block_size
        self._free = list(np.random.default_rng(seed).permutation(np.arange(1, num_blocks)))
        self._blocks: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def step(self, batch: Sequence[tuple[int, Sequence[int]]]) -> ForwardInput:
        """Return the step that feeds (sequence, its next tokens) pairs and samples after each."""
        starts = [self._lengths.get(sequence, 0) for sequence, _ in batch]
        for (sequence, tokens), start in zip(batch, starts, strict=True):
            self._lengths[sequence] = start + len(tokens)
            blocks = self._blocks.setdefault(sequence, [])
            while len(blocks) * self._block_size < start + len(tokens):
                blocks.append(int(self._free.pop()))
        width = max(len(self._blocks[sequence]) for sequence, _ in batch)
        tables = np.zeros((len(batch), width), np.int32)
        for row, (sequence, _) in enumerate(batch):
            tables[row, : len(self._blocks[sequence])] = self._blocks[sequence]
        counts = np.array([len(tokens) for _, tokens in batch])
        rows = np.repeat(np.arange(len(batch)), counts)
        positions = np.concatenate(
            [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        ).astype(np.int32)
        query_start = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return ForwardInput(
            token_ids=np.concatenate([np.asarray(tokens, np.int32) for _, tokens in batch]),
            positions=positions,
            slot_mapping=tables[rows, positions // self._block_size].astype(np.int64) * self._block_size
            + positions % self._block_size,
            query_start=query_start,
            seq_lens=(np.array(starts) + counts).astype(np.int32),
            block_tables=tables,
            sample_rows=query_start[1:].astype(np.int64) - 1,
            sampling=greedy_rows(len(batch)),
            max_query_len=int(counts.max()),
        )


def greedy_rows(num_rows: int) -> SamplingRows:
    """Return the options of rows that take their most probable token."""
    one = warm_up_input(1).sampling
    arrays = {
        name: np.repeat(getattr(one, name), num_rows)
        for name in ("temperature", "top_p", "top_k", "min_p", "seed", "step", "num_logprobs")
    }
    penalties = {
        name: np.repeat(getattr(one, name), num_rows)
        for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")
    }
    return replace(one, **arrays, **penalties)
