"""A made-up step for warming up. Knows nothing of models: token 0 exists in every vocabulary."""

from __future__ import annotations

import numpy as np

from xllm_framework.batch import ForwardInput, SamplingRows


def warm_up_input(num_tokens: int) -> ForwardInput:
    """Return one sequence of `num_tokens` (at most a block) that lives in the padding block and is sampled greedily."""
    positions = np.arange(num_tokens, dtype=np.int32)
    one = np.ones(1, np.float32)
    sampling = SamplingRows(
        temperature=0 * one,
        top_p=one,
        top_k=np.zeros(1, np.int32),
        min_p=0 * one,
        seed=np.zeros(1, np.uint64),
        step=np.zeros(1, np.int64),
        num_logprobs=np.full(1, -1, np.int32),
        presence_penalty=0 * one,
        frequency_penalty=0 * one,
        repetition_penalty=one,
    )
    return ForwardInput(
        token_ids=np.zeros(num_tokens, np.int32),
        positions=positions,
        slot_mapping=positions.astype(np.int64),
        query_start=np.array([0, num_tokens], np.int32),
        seq_lens=np.array([num_tokens], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        sample_rows=np.array([num_tokens - 1], np.int64),
        sampling=sampling,
        max_query_len=num_tokens,
    )
