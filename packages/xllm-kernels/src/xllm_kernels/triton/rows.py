"""Operations on rows in Triton: norms, rotation with the write to the cache, gated activation. Knows nothing of layers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm_kernel(x, residual, weight, out, size, eps, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * size
    columns = tl.arange(0, BLOCK)
    is_there = columns < size
    values = tl.load(x + row + columns, mask=is_there, other=0.0).to(tl.float32)
    if ADDS:
        values += tl.load(residual + row + columns, mask=is_there, other=0.0).to(tl.float32)
        rounded = values.to(residual.dtype.element_ty)
        tl.store(residual + row + columns, rounded, mask=is_there)
        values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / size + eps)
    scaled = values * scale * tl.load(weight + columns, mask=is_there, other=0.0).to(tl.float32)
    tl.store(out + row + columns, scaled.to(out.dtype.element_ty), mask=is_there)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension: contiguous [T, H] -> [T, H]."""
    out = torch.empty_like(x) if out is None else out
    block = triton.next_power_of_2(x.shape[1])
    _rms_norm_kernel[(len(x),)](x, x, weight, out, x.shape[1], eps, ADDS=False, BLOCK=block, num_warps=8)
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """In place: residual += x, then x = rms_norm(residual). Returns x. Both contiguous [T, H]."""
    block = triton.next_power_of_2(x.shape[1])
    _rms_norm_kernel[(len(x),)](x, residual, weight, x, x.shape[1], eps, ADDS=True, BLOCK=block, num_warps=8)
    return x


@triton.jit
def _silu_and_mul_kernel(x, out, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = columns < size
    gate = tl.load(x + row * 2 * size + columns, mask=is_there).to(tl.float32)
    up = tl.load(x + row * 2 * size + size + columns, mask=is_there).to(tl.float32)
    tl.store(out + row * size + columns, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=is_there)


def silu_and_mul(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(x[:, :I]) * x[:, I:]: contiguous [T, 2 I] -> [T, I]."""
    size = x.shape[1] // 2
    if out is None:
        out = torch.empty((len(x), size), dtype=x.dtype, device=x.device)
    block = min(1024, triton.next_power_of_2(size))
    _silu_and_mul_kernel[(len(x), triton.cdiv(size, block))](x, out, size, BLOCK=block)
    return out


@triton.jit
def _rotated(row, table, norm, eps, HAS_NORM: tl.constexpr, D: tl.constexpr):
    """The two halves of one head, normalised and rotated."""
    half = tl.arange(0, D // 2)
    low = tl.load(row + half).to(tl.float32)
    high = tl.load(row + D // 2 + half).to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt((tl.sum(low * low, axis=0) + tl.sum(high * high, axis=0)) / D + eps)
        low = low * scale * tl.load(norm + half).to(tl.float32)
        high = high * scale * tl.load(norm + D // 2 + half).to(tl.float32)
    cos, sin = tl.load(table + half), tl.load(table + D // 2 + half)
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def _rotate_and_write_kernel(
    positions, slots, query, key, value, q_norm, k_norm, table, key_cache, value_cache,
    query_stride, key_stride, value_stride, num_heads, num_kv_heads, eps, key_scale, value_scale,
    HAS_NORM: tl.constexpr, WRITES: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half = tl.arange(0, D // 2)
    angles = table + tl.load(positions + token) * D
    if head < num_heads:
        row = query + token * query_stride + head * D
        low, high = _rotated(row, angles, q_norm, eps, HAS_NORM, D)
        tl.store(row + half, low.to(query.dtype.element_ty))
        tl.store(row + D // 2 + half, high.to(query.dtype.element_ty))
    else:
        head -= num_heads
        row = key + token * key_stride + head * D
        low, high = _rotated(row, angles, k_norm, eps, HAS_NORM, D)
        tl.store(row + half, low.to(key.dtype.element_ty))
        tl.store(row + D // 2 + half, high.to(key.dtype.element_ty))
        if WRITES:
            slot = tl.load(slots + token)
            if slot >= 0:
                place = (slot * num_kv_heads + head) * D
                tl.store(key_cache + place + half, (low / key_scale).to(key_cache.dtype.element_ty))
                tl.store(key_cache + place + D // 2 + half, (high / key_scale).to(key_cache.dtype.element_ty))
                columns = tl.arange(0, D)
                taken = tl.load(value + token * value_stride + head * D + columns).to(tl.float32) / value_scale
                tl.store(value_cache + place + columns, taken.to(value_cache.dtype.element_ty))


def rotate_and_write(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    slot_mapping: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    kv_scales: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Normalise (where norms are given) and rotate query [T, Hq, D] and key [T, Hk, D] in place; write key and value to the cache.

    D is a power of two, all of it rotated, half-split; rows may be strided. `positions` int64 [T], `cos_sin_cache` float32
    [max_position, D], `kv_cache` (K, V) each [num_blocks, block_size, Hk, D], `slot_mapping` int64 [T]: negative slots are skipped.
    A cache of 8-bit floats gets K and V divided by `kv_scales`, rounded, and cut at the largest of them.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    has_norm = q_norm is not None and k_norm is not None
    _rotate_and_write_kernel[(num_tokens, num_heads + num_kv_heads)](
        positions, slot_mapping, query, key, value,
        q_norm if has_norm else query, k_norm if has_norm else key, cos_sin_cache, *kv_cache,
        query.stride(0), key.stride(0), value.stride(0), num_heads, num_kv_heads, eps, *kv_scales,
        HAS_NORM=has_norm, WRITES=True, D=head_dim, num_warps=1,
    )  # fmt: skip


def rotary_embedding(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_cache: torch.Tensor
) -> None:
    """Rotate query [T, Hq, D] and key [T, Hk, D] in place, half-split; D is a power of two, rows may be strided.

    `positions` int64 [T]; `cos_sin_cache` float32 [max_position, D]: all of a head is rotated.
    """
    num_tokens, num_heads, head_dim = query.shape
    _rotate_and_write_kernel[(num_tokens, num_heads + key.shape[1])](
        positions, positions, query, key, key, query, key, cos_sin_cache, key, key,
        query.stride(0), key.stride(0), 0, num_heads, key.shape[1], 0.0, 1.0, 1.0,
        HAS_NORM=False, WRITES=False, D=head_dim, num_warps=1,
    )  # fmt: skip


@triton.jit
def _write_kernel(
    key,
    value,
    slots,
    key_cache,
    value_cache,
    key_stride,
    value_stride,
    num_kv_heads,
    key_scale,
    value_scale,
    D: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, D)
    slot = tl.load(slots + token)
    if slot >= 0:
        place = (slot * num_kv_heads + head) * D + columns
        k = tl.load(key + token * key_stride + head * D + columns).to(tl.float32) / key_scale
        v = tl.load(value + token * value_stride + head * D + columns).to(tl.float32) / value_scale
        tl.store(key_cache + place, k.to(key_cache.dtype.element_ty))
        tl.store(value_cache + place, v.to(value_cache.dtype.element_ty))


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    slot_mapping: torch.Tensor,
    kv_scales: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Write row t of key and value [T, Hk, D] to slot `slot_mapping[t]` of the cache, as `rotate_and_write` does."""
    num_tokens, num_kv_heads, head_dim = key.shape
    _write_kernel[(num_tokens, num_kv_heads)](
        key,
        value,
        slot_mapping,
        *kv_cache,
        key.stride(0),
        value.stride(0),
        num_kv_heads,
        *kv_scales,
        D=head_dim,
        num_warps=1,
    )
