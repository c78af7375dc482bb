"""RMSNorm, alone and fused with the residual addition. Knows nothing of where in a model it stands."""

from __future__ import annotations

from xllm_kernels import _C
from xllm_kernels.ops.tensor import Tensor, TensorT, new_empty


def rms_norm(x: TensorT, weight: TensorT, eps: float, out: TensorT | None = None) -> TensorT:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    x: [T, H]; weight: [H] of the same dtype; out: [T, H], may be x, made when None. Returns out.
    """
    if out is None:
        out = new_empty(x, x.shape)  # type: ignore[attr-defined]
    _C.rms_norm(x, weight, eps, out)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In place: residual += x, then x = rms_norm(residual). Returns x; the bits of the two steps done apart.

    x, residual: [T, H], not overlapping; weight: [H]; all of one dtype.
    """
    _C.add_rms_norm(x, residual, weight, eps)
    return x
