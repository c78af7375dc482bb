"""Attention of many tokens a sequence on Hopper GPUs. Knows nothing of where lengths come from."""

from __future__ import annotations

import torch

from xllm_kernels import _C_cuda
from xllm_kernels.cuda.ops import current_stream


def prompt_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float,
    max_query_len: int,
    key_start: torch.Tensor | None = None,
    block_tables: torch.Tensor | None = None,
    is_causal: bool = True,
    lse: torch.Tensor | None = None,
) -> None:
    """Attend S sequences, sequence s rows [query_start[s], query_start[s + 1]) of query [Q, Hq, D], all bfloat16 or all float16.

    Keys are seq_lens[s] of a sequence: with `block_tables` int32 [S, W] those of its blocks in the cache [num_blocks, block_size, Hk, D],
    else rows from key_start[s] on of [K, Hk, D]. Causal: the queries are the last tokens of their sequence. Starts and lengths are int32.
    out: [P, Q, Hq, D] for P parts of each sequence's keys that are attended on their own; lse: float32 [P, Hq, Q], the logarithms of the
    softmax denominators, infinite where a part has no keys that the row sees, and `out` is undefined. `out` may be [Q, Hq, D] for one part.
    D is 64, 72, 80 or 128; rows may be strided.
    """
    if out.dim() == 3:
        out = out.unsqueeze(0)
    _C_cuda.prompt_attention(
        query,
        key,
        value,
        query_start,
        key_start,
        seq_lens,
        block_tables,
        max_query_len,
        scale,
        is_causal,
        len(out),
        out,
        lse,
        current_stream(),
    )


def why_no_prompt_attention(num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> str | None:
    """Return why the kernel does not serve such heads over blocks of `block_size` (0: no blocks), or None when it does."""
    return _C_cuda.why_no_prompt_attention(num_heads, num_kv_heads, head_dim, block_size)
