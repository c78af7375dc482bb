"""Causal attention over a paged cache in numpy: one softmax for each row and head. Knows nothing of tiles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Ids = NDArray[np.int32]


def paged_attention(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    block_tables: Ids,
    query_start: Ids,
    seq_lens: Ids,
    scale: float,
    *,
    sliding_window: int = 0,
) -> Array:
    """Shapes as in `xllm_kernels.ops.paged_attention`; returns [T, Hq, D]."""
    out = np.empty_like(query)
    for s, seq_len in enumerate(seq_lens):
        begin, end = query_start[s], query_start[s + 1]
        for row in range(begin, end):
            position = seq_len - (end - row)
            first = max(0, position - sliding_window + 1) if sliding_window else 0
            keys = _gather(key_cache, block_tables[s], first, position + 1)
            values = _gather(value_cache, block_tables[s], first, position + 1)
            out[row] = _attend(query[row], keys, values, scale)
    return out


def _gather(cache: Array, block_table: Ids, first: int, end: int) -> Array:
    """Rows [first, end) of one sequence: [end - first, Hk, D]."""
    blocks, offsets = np.divmod(np.arange(first, end), cache.shape[1])
    return cache[block_table[blocks], offsets]


def _attend(query: Array, keys: Array, values: Array, scale: float) -> Array:
    """query [Hq, D], keys and values [K, Hk, D] -> [Hq, D]."""
    group = query.shape[0] // keys.shape[1]
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    scores = np.einsum("hd,khd->hk", query.astype(np.float64), keys) * scale
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Array = np.einsum("hk,khd->hd", weights, values).astype(np.float32)
    return out
