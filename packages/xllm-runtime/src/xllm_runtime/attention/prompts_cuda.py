"""How the sequences of a step that bring several tokens are attended on a GPU, and the choice between three ways.

On Hopper a CUDA kernel of xllm-kernels, elsewhere its Triton kernel, both straight on the paged cache; where Triton cannot compile, the
FlashAttention in torch, for which keys that were not all computed in this step are gathered before. Knows nothing of steps or models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from xllm_runtime.attention.backend import AttentionSpec
from xllm_runtime.attention.metadata import AttentionMetadata

logger = logging.getLogger(__name__)

Rows = slice | torch.Tensor
"""Rows of a step's tokens: a slice where they lie together, else their indices, int64."""
BOX_TOKENS = 8
"""Blocks of a multiple of this many tokens can be read by the Hopper kernel."""


@dataclass(slots=True)
class PrefillRows:
    """The sequences of a step that bring several tokens: Q in all, over K keys."""

    rows: Rows
    """Q rows of [0, T)."""
    query_start: torch.Tensor
    """int32 [S + 1]"""
    key_start: torch.Tensor
    """int32 [S + 1]"""
    max_query_len: int
    max_key_len: int
    has_own_keys: bool
    """Whether the keys are this step's own rows, all of them."""
    block_tables: torch.Tensor
    """int32 [S, W]"""
    seq_lens: torch.Tensor
    """int32 [S]"""
    lengths: list[int]
    """`seq_lens` on the host."""
    block_size: int
    _slots: torch.Tensor | None = None

    @classmethod
    def in_cache(cls, metadata: AttentionMetadata, block_size: int) -> PrefillRows:
        """Return all sequences of a step, of whose lengths the host knows bounds alone; their keys are read from the cache."""
        return cls(
            rows=slice(None),
            query_start=metadata.query_start,
            key_start=metadata.query_start,
            max_query_len=metadata.max_query_len,
            max_key_len=metadata.block_tables.shape[1] * block_size,
            has_own_keys=False,
            block_tables=metadata.block_tables,
            seq_lens=metadata.seq_lens,
            lengths=[],
            block_size=block_size,
        )

    def key_slots(self) -> torch.Tensor:
        """Return int64 [K]: where the keys lie in the cache. Worked out when first asked for."""
        if self._slots is None:
            tables = zip(self.block_tables, self.lengths, strict=True)
            self._slots = torch.cat([_slots(table, length, self.block_size) for table, length in tables])
        return self._slots


AttendPrompts = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor], PrefillRows, torch.Tensor, float],
    None,
]
"""(query [Q, Hq, D], the step's key and value, the layer's cache, rows, out [Q, Hq, D], scale).

The cache holds the step's keys already; key and value are looked at where rows have their own keys, and are theirs then: [Q, Hk, D]."""


def choose_prompt_kernel(spec: AttentionSpec) -> AttendPrompts:
    """Return the fastest way that serves layers like `spec`."""
    if why_no_hopper_prompts(spec) is None:
        return attend_on_hopper
    reason = why_no_triton_prompts()
    if reason is None:
        return attend_with_triton
    warn_once(reason)
    return attend_with_torch


def attend_on_hopper(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    prefills: PrefillRows,
    out: torch.Tensor,
    scale: float,
) -> None:
    """With the CUDA kernel; see `AttendPrompts`."""
    from xllm_kernels.cuda.prompts import prompt_attention

    if not prefills.has_own_keys and prefills.block_size % BOX_TOKENS:
        attend_with_torch(query, key, value, kv_cache, prefills, out, scale)
        return
    prompt_attention(
        query,
        *((key, value) if prefills.has_own_keys else kv_cache),
        prefills.query_start,
        prefills.seq_lens,
        out=out,
        scale=scale,
        max_query_len=prefills.max_query_len,
        key_start=prefills.key_start if prefills.has_own_keys else None,
        block_tables=None if prefills.has_own_keys else prefills.block_tables,
    )


def attend_with_triton(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    prefills: PrefillRows,
    out: torch.Tensor,
    scale: float,
) -> None:
    """With the Triton kernel; see `AttendPrompts`."""
    from xllm_kernels.triton.prefill_attention import prefill_attention

    if prefills.has_own_keys and key.stride(0) != value.stride(0):  # the kernel takes one for both
        key, value = key.contiguous(), value.contiguous()
    prefill_attention(
        query,
        *((key, value) if prefills.has_own_keys else kv_cache),
        prefills.query_start,
        prefills.key_start,
        prefills.seq_lens,
        out=out,
        scale=scale,
        max_query_len=prefills.max_query_len,
        block_tables=None if prefills.has_own_keys else prefills.block_tables,
    )


def attend_with_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    prefills: PrefillRows,
    out: torch.Tensor,
    scale: float,
) -> None:
    """With the FlashAttention in torch; see `AttendPrompts`."""
    if not prefills.has_own_keys:
        slots = prefills.key_slots()
        key, value = (cache.flatten(0, 1).index_select(0, slots) for cache in kv_cache)
    attended = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        prefills.query_start,
        prefills.key_start,
        prefills.max_query_len,
        prefills.max_key_len,
        0.0,
        True,
        False,
        scale=scale,
    )[0]
    out.copy_(attended)


def why_no_hopper_prompts(spec: AttentionSpec) -> str | None:
    """Return why the CUDA kernel does not attend prompts of layers like `spec`, or None when it does."""
    from xllm_kernels import explain

    missing = explain("prompt_attention", str(spec.device))
    if missing:
        return missing[0]
    from xllm_kernels.cuda.prompts import why_no_prompt_attention

    return why_no_prompt_attention(spec.num_heads, spec.num_kv_heads, spec.head_dim, 0)


def why_no_triton_prompts() -> str | None:
    """Return why Triton attends no prompts here, or None when it does."""
    from xllm_kernels.triton import why_no_triton

    return why_no_triton()


@cache
def warn_once(reason: str) -> None:
    """Say why prompts take the slowest way."""
    logger.warning("Prompts are attended to by the FlashAttention in torch, which is slower: %s.", reason)


def _slots(block_table: torch.Tensor, num_tokens: int, block_size: int) -> torch.Tensor:
    """int64 [num_tokens]: where the tokens of one sequence lie."""
    positions = torch.arange(num_tokens, device=block_table.device)
    return block_table[positions // block_size].long() * block_size + positions % block_size
