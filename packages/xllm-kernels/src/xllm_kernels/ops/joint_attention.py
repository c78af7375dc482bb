"""Attention of one or two streams of tokens to each other, straight from their projections. Knows nothing of layers.

B rows of a batch, n tokens of a stream, S of all, H heads of P features.
"""

from __future__ import annotations

from collections.abc import Sequence

from xllm_kernels import _C
from xllm_kernels.ops.tensor import Tensor, TensorT, new_empty

Stream = tuple[Tensor, Tensor | None, Tensor | None]
"""Query, key and value side by side, [B, n, 3 H P], strided but for the last dimension; weights [P] of an RMSNorm of each
query and each key head, or None for no norm. All of one dtype."""


def joint_attention(
    streams: Sequence[Stream],
    num_heads: int,
    *,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float = 1e-6,
    first_query: int = 0,
    out: TensorT | None = None,
) -> TensorT:
    """softmax(q k^T / sqrt(P)) v of the tokens of all streams, one stream behind the other (Esser et al., 2024).

    streams: one or two. cos, sin: float32 [S, P / 2], by which pairs of neighbouring features of normalised queries and keys
    are rotated (Su et al., 2021), or None. mask: int32 [B, S], zero for keys that nobody sees; at least one must be seen.
    first_query: tokens in front of it get no result. out: [B, S - first_query, H P], made when None. Returns out.
    """
    if out is None:
        first = streams[0][0]
        num_tokens = sum(stream[0].shape[1] for stream in streams)
        out = new_empty(first, (first.shape[0], num_tokens - first_query, first.shape[2] // 3))
    _C.joint_attention(streams, cos, sin, mask, eps, num_heads, first_query, out)
    return out
