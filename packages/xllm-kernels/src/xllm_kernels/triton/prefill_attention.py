"""Causal attention of prompts, or chunks of them, over the paged cache in Triton (FlashAttention-2's loop, Dao, 2023)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

QUERIES, KEYS, WARPS, STAGES = 64, 64, 4, 3
"""Rows and columns of the scores that a block computes together, and how. On an H200 (2026-11-29), us of 8 x 1024 and 2 x 8192 tokens, 32
heads, 8 kv heads of 128: this 266 and 2370, 128 x 64 with 8 warps 295 and 2385, 128 x 128 with 8 warps 282 and 2442; the FlashAttention 2
in torch 357 and 3281, cuDNN without ragged lengths 192 and 1774."""


@triton.jit
def _step(
    q, key, value, tables, top, total, out, start, offset, length, kv_head, num_kv_heads, key_heads, scale,
    queries, keys, columns, IS_PAGED: tl.constexpr, MASKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One block of keys."""
    positions = start + keys
    if IS_PAGED:
        blocks = tl.load(tables + positions // BLOCK_SIZE, mask=positions < length, other=0).to(tl.int64)
        rows = (blocks * BLOCK_SIZE + positions % BLOCK_SIZE) * num_kv_heads * D
    else:
        rows = positions.to(tl.int64) * key_heads * D
    place = rows[:, None] + kv_head * D + columns[None, :]
    if MASKS:
        k = tl.load(key + place, mask=positions[:, None] < length, other=0.0)
    else:
        k = tl.load(key + place)
    k = k.to(q.dtype)
    scores = tl.dot(q, tl.trans(k))
    if MASKS:
        is_seen = (queries[:, None] + offset >= positions[None, :]) & (positions[None, :] < length)
        scores = tl.where(is_seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - new_top[:, None])
    correction = tl.exp2(top - new_top)
    total = total * correction + tl.sum(weights, axis=1)
    out = out * correction[:, None]
    if MASKS:
        v = tl.load(value + place, mask=positions[:, None] < length, other=0.0)
    else:
        v = tl.load(value + place)
    out = tl.dot(weights.to(q.dtype), v.to(q.dtype), out)
    return new_top, total, out


@triton.jit(do_not_specialize=["query_heads", "key_heads", "num_kv_heads", "table_width"])
def _prefill_kernel(
    query, key, value, block_tables, query_start, key_start, seq_lens, out, query_heads, key_heads, num_kv_heads, table_width,
    scale, value_scale,
    IS_PAGED: tl.constexpr, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    block, head, sequence = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(query_start + sequence)
    num_queries = tl.load(query_start + sequence + 1) - first
    if block * QUERIES < num_queries:
        length = tl.load(seq_lens + sequence)
        offset = length - num_queries
        queries = block * QUERIES + tl.arange(0, QUERIES)
        keys, columns = tl.arange(0, KEYS), tl.arange(0, D)
        is_query = queries < num_queries
        q_place = ((first + queries[:, None]).to(tl.int64) * query_heads + head) * D + columns[None, :]
        q = tl.load(query + q_place, mask=is_query[:, None], other=0.0)
        top = tl.full((QUERIES,), float("-inf"), tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        sums = tl.zeros((QUERIES, D), tl.float32)
        kv_head = head // GROUP
        tables = block_tables + sequence.to(tl.int64) * table_width
        if not IS_PAGED:
            key += tl.load(key_start + sequence).to(tl.int64) * key_heads * D
            value += tl.load(key_start + sequence).to(tl.int64) * key_heads * D
        # Blocks of keys that every query of this block sees need no mask.
        seen_by_all = (block * QUERIES + offset + 1) // KEYS * KEYS
        seen_by_any = tl.minimum((block + 1) * QUERIES + offset, length)
        for start in range(0, seen_by_all, KEYS):
            top, total, sums = _step(
                q, key, value, tables, top, total, sums, start, offset, length, kv_head, num_kv_heads, key_heads, scale,
                queries, keys, columns, IS_PAGED, False, BLOCK_SIZE, D,
            )  # fmt: skip
        for start in range(seen_by_all, seen_by_any, KEYS):
            top, total, sums = _step(
                q, key, value, tables, top, total, sums, start, offset, length, kv_head, num_kv_heads, key_heads, scale,
                queries, keys, columns, IS_PAGED, True, BLOCK_SIZE, D,
            )  # fmt: skip
        place = (first + queries[:, None]).to(tl.int64) * (tl.num_programs(1) * D) + head * D + columns[None, :]
        tl.store(out + place, (sums / total[:, None] * value_scale).to(out.dtype.element_ty), mask=is_query[:, None])


def prefill_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_start: torch.Tensor,
    key_start: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float,
    max_query_len: int,
    block_tables: torch.Tensor | None = None,
    kv_scales: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Attend S sequences' newest tokens, sequence s rows [query_start[s], query_start[s + 1]) of query [Q, Hq, D], causally.

    Without `block_tables`, keys and values [K, Hk, D] are rows [key_start[s], key_start[s + 1]); their row strides are equal. With
    `block_tables` int32 [S, W] they are the cache, each [num_blocks, block_size, Hk, D]. `seq_lens` int32 [S] counts the keys of each
    sequence; starts are int32 [S + 1]; D is 64 or 128; rows may be strided by whole heads; out [Q, Hq, D]. Keys and values may be
    8-bit floats, which times `kv_scales` are K and V.
    """
    _, num_heads, head_dim = query.shape
    is_paged = block_tables is not None
    num_kv_heads = key.shape[-2]
    grid = (triton.cdiv(max_query_len, QUERIES), num_heads, len(seq_lens))
    _prefill_kernel[grid](
        query, key, value, block_tables if is_paged else seq_lens, query_start, key_start, seq_lens, out,
        query.stride(0) // head_dim, key.stride(0) // head_dim, num_kv_heads, block_tables.shape[1] if block_tables is not None else 0,
        scale * kv_scales[0] * 1.4426950408889634, kv_scales[1], IS_PAGED=is_paged, BLOCK_SIZE=key.shape[1] if is_paged else 1,
        GROUP=num_heads // num_kv_heads, D=head_dim, QUERIES=QUERIES, KEYS=KEYS, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
