"""`Operations` on the Triton kernels of xllm-kernels, for GPU types that its CUDA kernels do not compute in. A module of that shape."""

from __future__ import annotations

import torch

from xllm_kernels.triton import rows
from xllm_runtime.layers import torch_operations


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
    """See `Operations.rms_norm`."""
    return rows.rms_norm(x.contiguous(), weight, eps, out)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """See `Operations.add_rms_norm`."""
    rows.add_rms_norm(x, residual, weight, eps)


def rotary_embedding(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_cache: torch.Tensor
) -> None:
    """See `Operations.rotary_embedding`; heads that are rotated in part are left to torch."""
    head_dim = query.shape[-1]
    if cos_sin_cache.shape[1] == head_dim and head_dim & (head_dim - 1) == 0:
        rows.rotary_embedding(positions, query, key, cos_sin_cache)
    else:
        torch_operations.rotary_embedding(positions, query, key, cos_sin_cache)


def silu_and_mul(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """See `Operations.silu_and_mul`."""
    return rows.silu_and_mul(x.contiguous(), out)
