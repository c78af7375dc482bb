"""What vision towers do between matrix products, in Triton, each in one pass over memory. Knows nothing of blocks.

float16 or bfloat16, computed in float32 and rounded once (sums that are kept, before they are normed).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

NUMBERS = 2048
"""What one program activates."""


@triton.jit
def _add_layer_norm_kernel(x, residual, weight, bias, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * size
    columns = tl.arange(0, BLOCK)
    is_there = columns < size
    total = tl.load(x + row + columns, mask=is_there, other=0.0).to(tl.float32)
    total += tl.load(residual + row + columns, mask=is_there, other=0.0).to(tl.float32)
    rounded = total.to(residual.dtype.element_ty)
    tl.store(residual + row + columns, rounded, mask=is_there)
    total = rounded.to(tl.float32)
    centred = tl.where(is_there, total - tl.sum(total, axis=0) / size, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, axis=0) / size + eps)
    factor = tl.load(weight + columns, mask=is_there, other=0.0).to(tl.float32)
    more = tl.load(bias + columns, mask=is_there, other=0.0).to(tl.float32)
    tl.store(x + row + columns, (centred * inverse * factor + more).to(x.dtype.element_ty), mask=is_there)


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """In place: residual += x, then x = layer_norm(residual) * weight + bias. Returns x. Both contiguous [P, H]."""
    block = triton.next_power_of_2(x.shape[1])
    warps = 8 if block >= 4096 else 4
    _add_layer_norm_kernel[(len(x),)](x, residual, weight, bias, x.shape[1], eps, BLOCK=block, num_warps=warps)
    return x


@triton.jit
def _quick_gelu_kernel(x, out, size, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_there = places < size
    value = tl.load(x + places, mask=is_there).to(tl.float32)
    tl.store(out + places, (value * tl.sigmoid(1.702 * value)).to(out.dtype.element_ty), mask=is_there)


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x sigmoid(1.702 x) of a contiguous tensor -> a new one."""
    out = torch.empty_like(x)
    _quick_gelu_kernel[(triton.cdiv(x.numel(), NUMBERS),)](x, out, x.numel(), BLOCK=NUMBERS)
    return out
