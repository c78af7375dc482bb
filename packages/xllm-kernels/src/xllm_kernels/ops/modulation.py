"""What a diffusion transformer does between matrix products. Knows nothing of blocks.

B rows of a batch, S tokens, D features; batch and token dimensions may be strided.
"""

from __future__ import annotations

from xllm_kernels import _C
from xllm_kernels.ops.tensor import Tensor, TensorT, new_empty


def modulated_norm(x: TensorT, shift: Tensor, scale: Tensor, eps: float, out: TensorT | None = None) -> TensorT:
    """layer_norm(x) * (1 + scale) + shift, without weights (Peebles and Xie, 2023).

    x: [B, S, D]; shift, scale: [B, D] of the same dtype; out: like x, made when None. Returns out.
    """
    if out is None:
        out = new_empty(x, x.shape)  # type: ignore[attr-defined]
    _C.modulated_norm(x, shift, scale, eps, out)
    return out


def add_gated(x: TensorT, y: Tensor, gate: Tensor) -> TensorT:
    """In place: x += gate * y. Returns x. x, y: [B, S, D]; gate: [B, D]; all of one dtype."""
    _C.add_gated(x, y, gate)
    return x


def gelu(x: TensorT, out: TensorT | None = None) -> TensorT:
    """GELU by the tanh formula (Hendrycks and Gimpel, 2016). x: [B, S, D]; out: like x, may be x, made when None."""
    if out is None:
        out = new_empty(x, x.shape)  # type: ignore[attr-defined]
    _C.gelu(x, out)
    return out
