"""Attention of beams on a GPU, second part. Knows nothing of how beams are chosen."""

from __future__ import annotations

import torch

from xllm_kernels import _C_cuda
from xllm_kernels.cuda.ops import current_stream


def beam_join(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attended: torch.Tensor,
    lse: torch.Tensor,
    beam_key: torch.Tensor,
    beam_value: torch.Tensor,
    ancestors: torch.Tensor,
    scale: float,
    *,
    num_splits: int = 1,
    rows_per_search: int = 1,
) -> torch.Tensor:
    """Join each beam's own keys to what attention over its prompt left: [W, Hq, D] bfloat16, a new tensor.

    query: [W, Hq, D]; key, value: [W, Hk, D] of the newest tokens; attended: [W * S, Hq, D], contiguous, and lse: float32
    [Hq, W * S], the logarithms of its softmax denominators, infinite where there were no keys: of S = `num_splits` parts of
    each prompt, for each search, part after part, its `rows_per_search` rows; beam_key, beam_value: [R, N, Hk, D] with the
    rounds before, of which row ancestors[r, t] (int32 [W, T]) belongs to beam r; the newest go into row r of round T - 1.
    D is 64 or 128.
    """
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    _C_cuda.beam_join(
        query,
        key,
        value,
        attended,
        lse,
        beam_key,
        beam_value,
        ancestors,
        scale,
        num_splits,
        rows_per_search,
        out,
        current_stream(),
    )
    return out


def why_no_beam_join(num_heads: int, num_kv_heads: int, head_dim: int) -> str | None:
    """Return why the kernel does not serve such heads, or None when it does."""
    return _C_cuda.why_no_beam_join(num_heads, num_kv_heads, head_dim)
