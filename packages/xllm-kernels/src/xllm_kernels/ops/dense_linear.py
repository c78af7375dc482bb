"""Products of many rows with a float32 matrix in tiles. Knows nothing of layers."""

from __future__ import annotations

from xllm_kernels import _C
from xllm_kernels.ops.tensor import Tensor, TensorT, new_empty

TILE_OUTPUTS = 16
"""A matrix [N, K] becomes tiles [N / 16, K, 16]: the outputs of a tile lie side by side for each input."""


def dense_linear(x: TensorT, tiles: Tensor, bias: Tensor | None = None, out: TensorT | None = None) -> TensorT:
    """x W^T + bias, each sum in ascending order of inputs.

    x: [T, K], rows strided; tiles: [N / 16, K, 16]; bias: [N]; out: [T, N], rows strided, made when None; all float32.
    Returns out.
    """
    if out is None:
        out = new_empty(x, (x.shape[0], tiles.shape[0] * TILE_OUTPUTS))  # type: ignore[attr-defined]
    _C.dense_linear(x, tiles, bias, out)
    return out
