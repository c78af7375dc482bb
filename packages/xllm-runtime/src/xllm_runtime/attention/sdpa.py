"""Attention with torch alone: gather each sequence's KV, then scaled dot product attention. Any device, any dtype.

This is the truth that other backends are tested against: short and per sequence, so that a sequence's numbers cannot
depend on its neighbours. Knows nothing of kernels.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from xllm_runtime.attention.backend import AttentionSpec
from xllm_runtime.attention.metadata import AttentionMetadata


class SDPAAttention:
    """`AttentionBackend` on torch's operators."""

    name: ClassVar[str] = "sdpa"

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec

    @classmethod
    def explain(cls, spec: AttentionSpec) -> list[str]:
        """Nothing speaks against it; see `AttentionBackend.explain`."""
        return []

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """See `AttentionBackend.forward`."""
        for cache, new, scale in zip(kv_cache, (key, value), self._spec.kv_scales, strict=True):
            write_cache(cache, new, scale, metadata.slot_mapping)
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        starts = metadata.query_start.tolist()
        for row, seq_len in enumerate(metadata.seq_lens.tolist()):
            queries = slice(starts[row], starts[row + 1])
            output[queries] = self._attend(query[queries], kv_cache, metadata.block_tables[row], seq_len)
        return output

    def _attend(
        self, query: torch.Tensor, kv_cache: tuple[torch.Tensor, torch.Tensor], block_table: torch.Tensor, seq_len: int
    ) -> torch.Tensor:
        """Attend the last Q of one sequence's `seq_len` tokens: [Q, num_heads, head_dim] -> the same."""
        block_size = kv_cache[0].shape[1]
        blocks = block_table[: -(-seq_len // block_size)].long()
        key, value = (
            read_cache(cache, blocks, scale, query.dtype).flatten(0, 1)[:seq_len].transpose(0, 1)
            for cache, scale in zip(kv_cache, self._spec.kv_scales, strict=True)
        )
        mask = causal_mask(len(query), seq_len, self._spec.sliding_window, query.device)
        attended = self._scaled_dot_product(query.transpose(0, 1), key, value, mask)
        return attended.transpose(0, 1)

    def _scaled_dot_product(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """[Hq, Q, D], [Hk, L, D], [Hk, L, D], mask [Q, L] -> [Hq, Q, D]."""
        spec = self._spec
        if not spec.softcap:
            return F.scaled_dot_product_attention(
                query[None], key[None], value[None], attn_mask=mask, scale=spec.scale, enable_gqa=True
            )[0]
        groups = spec.num_heads // spec.num_kv_heads
        scores = query @ key.repeat_interleave(groups, 0).transpose(1, 2) * spec.scale
        scores = (spec.softcap * torch.tanh(scores / spec.softcap)).masked_fill(~mask, float("-inf"))
        weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        return weights @ value.repeat_interleave(groups, 0)


def write_cache(cache: torch.Tensor, new: torch.Tensor, scale: float, slots: torch.Tensor) -> None:
    """Write `new` [T, Hk, D] to `slots` [T] of a cache [num_blocks, block_size, Hk, D]; divided by `scale` where it holds 8-bit floats."""
    if cache.dtype == torch.float8_e4m3fn:
        largest = torch.finfo(cache.dtype).max
        narrow = (new.float() / scale).clamp(-largest, largest).to(cache.dtype)
        cache.view(torch.uint8).flatten(0, 1).index_copy_(0, slots, narrow.view(torch.uint8))
    else:
        cache.flatten(0, 1).index_copy_(0, slots, new)


def read_cache(cache: torch.Tensor, blocks: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Return `blocks` [B] of a cache: [B, block_size, Hk, D] in `dtype`, times `scale` where it holds 8-bit floats."""
    if cache.dtype == torch.float8_e4m3fn:
        return (cache.view(torch.uint8)[blocks].view(cache.dtype).float() * scale).to(dtype)
    return cache[blocks]


def causal_mask(num_queries: int, seq_len: int, sliding_window: int, device: torch.device) -> torch.Tensor:
    """Return bool [num_queries, seq_len], true where the last `num_queries` of `seq_len` tokens may look."""
    queries = torch.arange(seq_len - num_queries, seq_len, device=device)[:, None]
    keys = torch.arange(seq_len, device=device)[None, :]
    mask = keys <= queries
    if sliding_window:
        mask &= keys > queries - sliding_window
    return mask
