"""Causal attention over a paged key-value cache. Knows nothing of how the cache is allocated or written."""

from __future__ import annotations

from xllm_kernels import _C
from xllm_kernels.ops.tensor import Tensor, TensorT, new_empty


def paged_attention(
    query: TensorT,
    key_cache: TensorT,
    value_cache: TensorT,
    block_tables: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    sliding_window: int = 0,
    out: TensorT | None = None,
) -> TensorT:
    """Attention of the last rows of S sequences, decodes and prefill chunks in one call. Returns out.

    query: [T, Hq, D]; key_cache, value_cache: [num_blocks, block_size, Hk, D], Hk divides Hq, all of one dtype;
    block_tables: int32 [S, B]; query_start: int32 [S + 1] from 0 to T; seq_lens: int32 [S], tokens in the cache with
    the rows of this call; out: [T, Hq, D], made when None.
    Row r of the q rows of sequence s sits at position p = seq_lens[s] - q + r and sees keys 0 .. p, or the last
    `sliding_window` of them if that is positive. Entries of block_tables that no row needs are never read.
    A row's bits depend on its query and on what it sees alone: not on the batch, on chunks, blocks or threads.
    """
    if out is None:
        out = new_empty(query, query.shape)  # type: ignore[attr-defined]
    _C.paged_attention(query, key_cache, value_cache, block_tables, query_start, seq_lens, scale, sliding_window, out)
    return out
