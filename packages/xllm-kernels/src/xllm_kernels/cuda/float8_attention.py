"""Decode attention over a paged cache of 8-bit floats on a GPU. Knows nothing of models."""

from __future__ import annotations

import torch

from xllm_kernels import _C_cuda
from xllm_kernels.cuda.decode import Workspace
from xllm_kernels.cuda.ops import current_stream


def why_no_float8_attention(num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> str | None:
    """Why `float8_attention` does not serve these sizes; None when it does."""
    return _C_cuda.why_no_float8_attention(num_heads, num_kv_heads, head_dim, block_size)


def float8_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    workspace: Workspace,
    *,
    out: torch.Tensor,
    scale: float,
    max_seq_len: int,
    kv_scales: tuple[float, float] = (1.0, 1.0),
    cos_sin_cache: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    splits: int = 0,
) -> None:
    """Attend the newest token of B sequences, whose KV is written to the cache first, as `decode.decode_attention` does.

    kv_cache (K, V), each float8_e4m3fn [num_blocks, block_size, Hk, D], holds K and V divided by `kv_scales`, rounded, and cut at the
    largest such number; all else is bfloat16 or all float16.
    """
    keys, values = (cache.view(torch.int32) for cache in kv_cache)
    _C_cuda.float8_attention(
        query,
        key,
        value,
        q_norm,
        k_norm,
        cos_sin_cache,
        keys,
        values,
        *kv_scales,
        block_tables,
        seq_lens,
        positions,
        scale,
        eps,
        max_seq_len,
        splits,
        out,
        workspace.memory,
        workspace.counters,
        current_stream(),
    )
