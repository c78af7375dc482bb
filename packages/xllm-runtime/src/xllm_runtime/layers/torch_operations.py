"""`Operations` with torch alone: any device, any dtype. Formulas as in transformers; knows nothing of layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
    """See `Operations.rms_norm`; the mean is taken in float32, the result is rounded before the weight is applied."""
    wide = x.float()
    normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return torch.mul(normed, weight, out=out)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """See `Operations.add_rms_norm`."""
    residual += x
    rms_norm(residual, weight, eps, out=x)


def rotary_embedding(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_cache: torch.Tensor
) -> None:
    """See `Operations.rotary_embedding`."""
    rotary_dim = cos_sin_cache.shape[1]
    cos, sin = cos_sin_cache[positions][:, None, :].chunk(2, -1)
    for heads in (query, key):
        low, high = heads[..., :rotary_dim].float().chunk(2, -1)
        heads[..., :rotary_dim] = torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(heads.dtype)


def silu_and_mul(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """See `Operations.silu_and_mul`."""
    gate, up = x.chunk(2, -1)
    return torch.mul(F.silu(gate), up, out=out)
