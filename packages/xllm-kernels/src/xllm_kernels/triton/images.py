"""What a diffusion transformer does between matrix products, in Triton, each in one pass over memory. Knows nothing of blocks.

B rows of a batch, S tokens, D features, H heads of P features; batch and token dimensions of inputs may be strided. float16 or bfloat16,
computed in float32 and rounded once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

COLUMNS = 1024
"""Columns of a row that one program copies or activates."""


@triton.jit
def _modulated_norm_kernel(
    x, shift, scale, out, num_tokens, x_batch, x_row, shift_batch, scale_batch, eps, D: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    batch = row // num_tokens
    columns = tl.arange(0, BLOCK)
    is_column = columns < D
    place = batch.to(tl.int64) * x_batch + (row % num_tokens).to(tl.int64) * x_row + columns
    value = tl.load(x + place, mask=is_column, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=0) / D
    centred = tl.where(is_column, value - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / D + eps)
    more = tl.load(shift + batch.to(tl.int64) * shift_batch + columns, mask=is_column, other=0.0).to(tl.float32)
    factor = tl.load(scale + batch.to(tl.int64) * scale_batch + columns, mask=is_column, other=0.0).to(tl.float32)
    result = centred * inverse * (1.0 + factor) + more
    tl.store(out + row.to(tl.int64) * D + columns, result.to(out.dtype.element_ty), mask=is_column)


def modulated_norm(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    """layer_norm(x) * (1 + scale) + shift, without weights (Peebles and Xie, 2023): [B, S, D], [B, D] each -> [B, S, D]."""
    batch, tokens, size = x.shape
    out = torch.empty((batch, tokens, size), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(size)
    _modulated_norm_kernel[(batch * tokens,)](
        x, shift, scale, out, tokens, x.stride(0), x.stride(1), shift.stride(0), scale.stride(0), eps,
        D=size, BLOCK=block, num_warps=8 if block >= 2048 else 4,
    )  # fmt: skip
    return out


@triton.jit
def _add_gated_kernel(
    x, y, gate, num_tokens, x_batch, x_row, y_batch, y_row, gate_batch, LIMIT: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    batch = (row // num_tokens).to(tl.int64)
    token = (row % num_tokens).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_column = columns < D
    place = x + batch * x_batch + token * x_row + columns
    added = tl.load(y + batch * y_batch + token * y_row + columns, mask=is_column, other=0.0).to(tl.float32)
    factor = tl.load(gate + batch * gate_batch + columns, mask=is_column, other=0.0).to(tl.float32)
    total = tl.load(place, mask=is_column, other=0.0).to(tl.float32) + factor * added
    if LIMIT > 0:
        total = tl.minimum(tl.maximum(total, -LIMIT), LIMIT)
    tl.store(place, total.to(x.dtype.element_ty), mask=is_column)


def add_gated(x: torch.Tensor, y: torch.Tensor, gate: torch.Tensor, limit: float = 0.0) -> None:
    """In place: x += gate * y, [B, S, D], [B, S, D] and [B, D]; kept within `limit` of zero where that is positive."""
    batch, tokens, size = x.shape
    block = triton.next_power_of_2(size)
    _add_gated_kernel[(batch * tokens,)](
        x, y, gate, tokens, x.stride(0), x.stride(1), y.stride(0), y.stride(1), gate.stride(0),
        LIMIT=limit, D=size, BLOCK=block, num_warps=8 if block >= 2048 else 4,
    )  # fmt: skip


@triton.jit
def _split_heads_kernel(
    qkv, q_norm, k_norm, cos, sin, out, num_tokens, qkv_batch, qkv_row, out_part, out_batch, eps,
    HAS_NORM: tl.constexpr, HAS_ANGLES: tl.constexpr, H: tl.constexpr, P: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0), tl.program_id(1)
    batch = (row // num_tokens).to(tl.int64)
    token = (row % num_tokens).to(tl.int64)
    heads, columns = tl.arange(0, HEADS), tl.arange(0, P)
    is_head = (heads < H)[:, None]
    place = heads[:, None] * P + columns[None, :]
    given = tl.load(qkv + batch * qkv_batch + token * qkv_row + part * H * P + place, mask=is_head, other=0.0)
    target = out + part * out_part + batch * out_batch + token * H * P + place
    if part == 2:
        tl.store(target, given, mask=is_head)
    else:
        value = given.to(tl.float32)
        if HAS_NORM:
            inverse = 1.0 / tl.sqrt(tl.sum(value * value, axis=1) / P + eps)
            weight = tl.load((q_norm if part == 0 else k_norm) + columns).to(tl.float32)
            value = value * inverse[:, None] * weight[None, :]
        if HAS_ANGLES:
            pairs = tl.arange(0, P // 2)
            c = tl.load(cos + token * (P // 2) + pairs)[None, :]
            s = tl.load(sin + token * (P // 2) + pairs)[None, :]
            even, odd = tl.split(tl.reshape(value, (HEADS, P // 2, 2)))
            value = tl.reshape(tl.join(even * c - odd * s, odd * c + even * s), (HEADS, P))
        tl.store(target, value.to(out.dtype.element_ty), mask=is_head)


def split_heads(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    eps: float,
    out: torch.Tensor,
) -> None:
    """Write query, key and value of one stream to `out` [3, B, n, H, P], a part of a dense tensor of more tokens.

    Args:
        qkv: [B, n, 3 * H * P].
        q_norm: [P], with `k_norm` weights of an RMSNorm of each query and key head; None for no norm.
        cos: float32 [n, P / 2], with `sin` what pairs of neighbouring features of both are rotated by afterwards; or None.
    """
    _, batch, tokens, num_heads, head_size = out.shape
    norms = (qkv, qkv) if q_norm is None or k_norm is None else (q_norm, k_norm)
    angles = (qkv, qkv) if cos is None or sin is None else (cos, sin)
    _split_heads_kernel[(batch * tokens, 3)](
        qkv, *norms, *angles, out, tokens, qkv.stride(0), qkv.stride(1), out.stride(0), out.stride(1), eps,
        HAS_NORM=q_norm is not None, HAS_ANGLES=cos is not None, H=num_heads, P=head_size,
        HEADS=triton.next_power_of_2(num_heads), num_warps=4,
    )  # fmt: skip


@triton.jit
def _beside_gelu_kernel(attended, mlp, out, mlp_row, INNER: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    num_copied: tl.constexpr = (INNER + BLOCK - 1) // BLOCK
    target = out + row * (INNER + M)
    if block < num_copied:
        columns = block * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(attended + row * INNER + columns, mask=columns < INNER, other=0.0)
        tl.store(target + columns, value, mask=columns < INNER)
    else:
        columns = (block - num_copied) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(mlp + row * mlp_row + columns, mask=columns < M, other=0.0).to(tl.float32)
        twice = 1.5957691216057308 * (x + 0.044715 * x * x * x)
        tl.store(target + INNER + columns, (x * tl.sigmoid(twice)).to(out.dtype.element_ty), mask=columns < M)


def beside_gelu(attended: torch.Tensor, mlp: torch.Tensor) -> torch.Tensor:
    """`attended` and gelu(mlp) by the tanh formula side by side: dense [T, I], rows of [T, M] strided -> [T, I + M]."""
    tokens, inner = attended.shape
    size = mlp.shape[1]
    out = torch.empty((tokens, inner + size), dtype=mlp.dtype, device=mlp.device)
    blocks = triton.cdiv(inner, COLUMNS) + triton.cdiv(size, COLUMNS)
    _beside_gelu_kernel[(tokens, blocks)](
        attended, mlp, out, mlp.stride(0), INNER=inner, M=size, BLOCK=COLUMNS, num_warps=4
    )
    return out
