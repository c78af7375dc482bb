"""A made-up step for warming up. Knows nothing of models: token 0 exists in every vocabulary."""

from __future__ import annotations

import numpy as np

from xllm_framework.batch import ForwardInput, SamplingRows


def greedy_rows(num_rows: int) -> SamplingRows:
    """Return the options of `num_rows` rows that take their most probable token."""
    ones = np.ones(num_rows, np.float32)
    zeros = np.zeros(num_rows, np.float32)
    return SamplingRows(
        temperature=zeros,
        top_p=ones,
        top_k=np.zeros(num_rows, np.int32),
        min_p=zeros,
        seed=np.zeros(num_rows, np.uint64),
        step=np.zeros(num_rows, np.int64),
        num_logprobs=np.full(num_rows, -1, np.int32),
        presence_penalty=zeros,
        frequency_penalty=zeros,
        repetition_penalty=ones,
    )


def warm_up_input(num_tokens: int) -> ForwardInput:
    """Return one sequence of `num_tokens` (at most a block) that lives in the padding block and is sampled greedily."""
    positions = np.arange(num_tokens, dtype=np.int32)
    return ForwardInput(
        token_ids=np.zeros(num_tokens, np.int32),
        positions=positions,
        slot_mapping=positions.astype(np.int64),
        query_start=np.array([0, num_tokens], np.int32),
        seq_lens=np.array([num_tokens], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        sample_rows=np.array([num_tokens - 1], np.int64),
        sampling=greedy_rows(1),
        max_query_len=num_tokens,
    )
