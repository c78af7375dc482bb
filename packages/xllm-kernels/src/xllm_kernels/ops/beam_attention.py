"""Attention of beams over one prompt each (xAttention). Knows nothing of how beams are chosen."""

from __future__ import annotations

from xllm_kernels import _C
from xllm_kernels.ops.tensor import Tensor, TensorT, new_empty


def beam_attention(
    query: TensorT,
    key_cache: TensorT,
    value_cache: TensorT,
    block_tables: Tensor,
    query_start: Tensor,
    prompt_lens: Tensor,
    beam_key: TensorT,
    beam_value: TensorT,
    ancestors: Tensor,
    scale: float,
    *,
    out: TensorT | None = None,
) -> TensorT:
    """Attention of W beams of S requests over their prompt's keys and their own. Returns out.

    query: [W, Hq, D], the beams of request s in rows [query_start[s], query_start[s + 1]); key_cache, value_cache:
    [num_blocks, block_size, Hk, D] with the prompts; block_tables: int32 [S, B]; prompt_lens: int32 [S], 1 or more;
    beam_key, beam_value: [R, N, Hk, D], round after round; ancestors: int32 [W, T], T <= R: row r sees, after the whole
    prompt, key ancestors[r, t] of each round t < T, its own included. Dtypes are all one; out: [W, Hq, D], made when None.
    A row's bits depend on its query and on what it sees alone. Raises ValueError or TypeError naming the argument.
    """
    if out is None:
        out = new_empty(query, query.shape)  # type: ignore[attr-defined]
    _C.beam_attention(
        query,
        key_cache,
        value_cache,
        block_tables,
        query_start,
        prompt_lens,
        beam_key,
        beam_value,
        ancestors,
        scale,
        out,
    )
    return out
