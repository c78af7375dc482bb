"""The gated activation of a feed-forward network. Knows nothing of the projections around it."""

from __future__ import annotations

from xllm_kernels import _C
from xllm_kernels.ops.tensor import TensorT, new_empty


def silu_and_mul(x: TensorT, out: TensorT | None = None) -> TensorT:
    """silu(x[:, :I]) * x[:, I:].

    x: [T, 2 I]; out: [T, I] of the same dtype, not overlapping x, made when None. Returns out.
    """
    if out is None:
        rows, columns = x.shape  # type: ignore[attr-defined]
        out = new_empty(x, (rows, columns // 2))
    _C.silu_and_mul(x, out)
    return out
