"""Attention of beams in numpy: one softmax over a beam's whole path. Knows nothing of joining parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xllm_kernels.reference.paged_attention import _attend, _gather

Array = NDArray[np.float32]
Ids = NDArray[np.int32]


def beam_attention(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    block_tables: Ids,
    query_start: Ids,
    prompt_lens: Ids,
    beam_key: Array,
    beam_value: Array,
    ancestors: Ids,
    scale: float,
) -> Array:
    """Shapes as in `xllm_kernels.ops.beam_attention`; returns [W, Hq, D]."""
    out = np.empty_like(query)
    rounds = np.arange(ancestors.shape[1])
    for s, prompt_len in enumerate(prompt_lens):
        keys = _gather(key_cache, block_tables[s], 0, prompt_len)
        values = _gather(value_cache, block_tables[s], 0, prompt_len)
        for row in range(query_start[s], query_start[s + 1]):
            own = rounds, ancestors[row]
            path_keys, path_values = np.concatenate([keys, beam_key[own]]), np.concatenate([values, beam_value[own]])
            out[row] = _attend(query[row], path_keys, path_values, scale)
    return out
