"""Beams on a GPU: the second part of their attention, and what choosing their tokens costs most. Knows nothing of searches."""

from __future__ import annotations

import torch

from xllm_kernels import _C_cuda
from xllm_kernels.cuda.ops import current_stream

TOP_K_MAX: int = _C_cuda.TOP_K_MAX
"""Largest k of `top_k`."""


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
) -> torch.Tensor:
    """Join each beam's own keys to what attention over its prompt left: [W, Hq, D] bfloat16, a new tensor.

    query: [W, Hq, D]; key, value: [W, Hk, D] of the newest tokens; attended: [S, W, Hq, D], contiguous, and lse: float32 [S, Hq, W],
    the logarithms of its softmax denominators, infinite where there were no keys: of S parts of each prompt; beam_key, beam_value:
    [R, N, Hk, D] with the rounds before, of which row ancestors[r, t] (int32 [W, T]) belongs to beam r; the newest go into row r of
    round T - 1. D is 64 or 128.
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
        out,
        current_stream(),
    )
    return out


def why_no_beam_join(num_heads: int, num_kv_heads: int, head_dim: int) -> str | None:
    """Return why the kernel does not serve such heads, or None when it does."""
    return _C_cuda.why_no_beam_join(num_heads, num_kv_heads, head_dim)


def beam_scores(
    logits: torch.Tensor,
    scores: torch.Tensor,
    nodes: torch.Tensor,
    starts: torch.Tensor,
    tokens: torch.Tensor,
    max_children: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return totals float32 [W, max_children] of each row's children, and normalisers float32 [W].

    logits: [W, V] bfloat16 or float32, V a multiple of 8; scores: float32 [W]; nodes: int64 [W], -1 for the dead; children of node n
    are entries [starts[n], starts[n + 1]) of `tokens`, both int64. A total is the score plus the child's log-probability over the whole
    vocabulary, minus infinity where there is no child. Normalisers are log(sum(exp(logits))), undefined for the dead.
    """
    normaliser = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    totals = torch.empty(len(logits), max_children, dtype=torch.float32, device=logits.device)
    _C_cuda.beam_scores(logits, scores, nodes, starts, tokens, normaliser, totals, current_stream())
    return totals, normaliser


def log_normaliser(logits: torch.Tensor) -> torch.Tensor:
    """Return log(sum(exp(logits))): [W, V] bfloat16 or float32, V a multiple of 8 -> float32 [W]."""
    normaliser = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _C_cuda.log_normaliser(logits, normaliser, current_stream())
    return normaliser


def top_k(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return places int64 [R, k] and values float32 [R, k] of the largest of each row [R, N], bfloat16 or float32, contiguous.

    The largest come first, among equals the first place; NaN is larger than all. k is at most N and `TOP_K_MAX`.
    """
    places = torch.empty(len(values), k, dtype=torch.int64, device=values.device)
    best = torch.empty(len(values), k, dtype=torch.float32, device=values.device)
    _C_cuda.top_k(values, places, best, current_stream())
    return places, best
