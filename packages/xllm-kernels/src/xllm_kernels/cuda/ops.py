"""The operations of `xllm_kernels.ops` for bfloat16 or float16 tensors on a GPU; computed in float32, rounded once.

Knows nothing of layers.
"""

from __future__ import annotations

import torch

from xllm_kernels import _C_cuda


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension: [T, H] -> [T, H]; `out` may be `x`."""
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _C_cuda.rms_norm(x, weight, eps, out, current_stream())
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """In place: residual += x, then x = rms_norm(residual). Returns x. Both contiguous [T, H]."""
    _C_cuda.add_rms_norm(x, residual, weight, eps, current_stream())
    return x


def rotary_embedding(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_cache: torch.Tensor
) -> None:
    """Rotate query [T, Hq, D] and key [T, Hk, D] in place, half-split.

    positions: int64 [T]; cos_sin_cache: float32 [max_position, rotary_dim], cosines then sines; rotary_dim is a multiple of 4.
    """
    _C_cuda.rotary_embedding(positions, query, key, cos_sin_cache, current_stream())


def norm_and_rotate(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    eps: float,
    cos_sin_cache: torch.Tensor,
) -> None:
    """RMSNorm over each head of query [T, Hq, D] and key [T, Hk, D], D 64 or 128, then `rotary_embedding`; in place, one pass."""
    _C_cuda.norm_and_rotate(positions, query, key, q_norm, k_norm, eps, cos_sin_cache, current_stream())


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Copy row t of key and value [T, Hk, D] to slot `slot_mapping[t]` (int64) of the caches; negative slots are skipped."""
    _C_cuda.write_kv(key, value, key_cache, value_cache, slot_mapping, current_stream())


def silu_and_mul(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(x[:, :I]) * x[:, I:]: [T, 2 I] -> [T, I]."""
    if out is None:
        out = torch.empty((x.shape[0], x.shape[1] // 2), dtype=x.dtype, device=x.device)
    _C_cuda.silu_and_mul(x, out, current_stream())
    return out


def current_stream() -> int:
    """The handle of torch's current stream."""
    return torch.cuda.current_stream().cuda_stream
