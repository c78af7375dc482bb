"""Attention of single tokens over the paged cache in Triton: split along the context, merged by a second kernel (flash decoding)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TOKENS = 64
"""Keys that are looked at together."""
MAX_SPLITS = 32


@triton.jit
def _split_kernel(
    query, key_cache, value_cache, block_tables, seq_lens, sums, tops, query_stride, num_kv_heads, table_width, scale,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(seq_lens + row)
    share = tl.cdiv(tl.cdiv(length, SPLITS), TOKENS) * TOKENS
    first, last = split * share, tl.minimum((split + 1) * share, length)
    heads, columns, tokens = tl.arange(0, HEADS), tl.arange(0, D), tl.arange(0, TOKENS)
    is_head = heads < GROUP
    q_place = row * query_stride + (kv_head * GROUP + heads[:, None]) * D + columns[None, :]
    q = tl.load(query + q_place, mask=is_head[:, None], other=0.0)
    top = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    out = tl.zeros((HEADS, D), tl.float32)
    for start in range(first, last, TOKENS):
        positions = start + tokens
        is_there = positions < last
        blocks = tl.load(block_tables + row * table_width + positions // BLOCK_SIZE, mask=is_there, other=0).to(
            tl.int64
        )
        slots = (blocks * BLOCK_SIZE + positions % BLOCK_SIZE) * num_kv_heads + kv_head
        place = slots[:, None] * D + columns[None, :]
        keys = tl.load(key_cache + place, mask=is_there[:, None], other=0.0).to(q.dtype)
        scores = tl.dot(q, tl.trans(keys)) * (scale * 1.4426950408889634)
        scores = tl.where(is_there[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_top[:, None])
        correction = tl.exp2(top - new_top)
        total = total * correction + tl.sum(weights, axis=1)
        values = tl.load(value_cache + place, mask=is_there[:, None], other=0.0).to(q.dtype)
        out = out * correction[:, None] + tl.dot(weights.to(values.dtype), values)
        top = new_top
    place = ((row * num_kv_heads + kv_head) * SPLITS + split) * HEADS + heads
    tl.store(sums + place[:, None] * D + columns[None, :], out)
    tl.store(tops + place * 2, top)
    tl.store(tops + place * 2 + 1, total)


@triton.jit
def _merge_kernel(
    sums,
    tops,
    seq_lens,
    out,
    num_kv_heads,
    value_scale,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(seq_lens + row) > 0:
        splits, columns = tl.arange(0, SPLITS), tl.arange(0, D)
        place = ((row * num_kv_heads + head // GROUP) * SPLITS + splits) * HEADS + head % GROUP
        top = tl.load(tops + place * 2)
        weights = tl.exp2(top - tl.max(top, axis=0))
        total = tl.sum(weights * tl.load(tops + place * 2 + 1), axis=0)
        parts = tl.load(sums + place[:, None] * D + columns[None, :])
        merged = tl.sum(parts * weights[:, None], axis=0) / total * value_scale
        tl.store(out + (row * num_kv_heads * GROUP + head) * D + columns, merged.to(out.dtype.element_ty))


def decode_attention(
    query: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float,
    max_seq_len: int,
    kv_scales: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Attend the newest token of B sequences, whose KV is in the cache.

    query [B, Hq, D], rows may be strided, D a power of two from 16; kv_cache (K, V) each [num_blocks, block_size, Hk, D]; block_tables
    int32 [B, W]; seq_lens int32 [B], tokens with the new one (0: an unused row, nothing is written); out [B, Hq, D]. `max_seq_len`
    bounds seq_lens; only speed depends on it. The cache may hold 8-bit floats, which times `kv_scales` are K and V.
    """
    num_rows, num_heads, head_dim = query.shape
    block_size, num_kv_heads = kv_cache[0].shape[1:3]
    group = num_heads // num_kv_heads
    heads = max(16, triton.next_power_of_2(group))
    wanted = triton.cdiv(512, num_rows * num_kv_heads)
    splits = min(MAX_SPLITS, triton.next_power_of_2(max(1, min(wanted, triton.cdiv(max_seq_len, 4 * TOKENS)))))
    shape = (num_rows, num_kv_heads, splits, heads)
    sums = torch.empty((*shape, head_dim), dtype=torch.float32, device=query.device)
    tops = torch.empty((*shape, 2), dtype=torch.float32, device=query.device)
    _split_kernel[(num_rows, num_kv_heads, splits)](
        query, *kv_cache, block_tables, seq_lens, sums, tops, query.stride(0), num_kv_heads, block_tables.shape[1], scale * kv_scales[0],
        BLOCK_SIZE=block_size, GROUP=group, HEADS=heads, D=head_dim, SPLITS=splits, TOKENS=TOKENS, num_warps=4, num_stages=3,
    )  # fmt: skip
    _merge_kernel[(num_rows, num_heads)](
        sums,
        tops,
        seq_lens,
        out,
        num_kv_heads,
        kv_scales[1],
        GROUP=group,
        HEADS=heads,
        D=head_dim,
        SPLITS=splits,
        num_warps=4,
    )
