"""What an attention backend must offer to a layer. Knows nothing of models, of scheduling or of how one is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch

from xllm_runtime.attention.metadata import AttentionMetadata, LastRows


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Everything about one layer's attention that does not change from step to step."""

    num_heads: int
    num_kv_heads: int
    """Divides `num_heads`; query head h reads KV head h // (num_heads / num_kv_heads)."""
    head_dim: int
    scale: float
    """Factor of the scores, usually head_dim ** -0.5."""
    dtype: torch.dtype
    device: torch.device
    sliding_window: int = 0
    """Each token sees itself and the `sliding_window - 1` tokens before it; 0 is full attention."""
    softcap: float = 0.0
    """Scores become softcap * tanh(scores / softcap) before the softmax; 0 is off."""
    kv_dtype: torch.dtype | None = None
    """Type of the cache; None is `dtype`."""
    kv_scales: tuple[float, float] = (1.0, 1.0)
    """What numbers of an 8-bit cache are multiplied by: keys, values."""


class AttentionBackend(Protocol):
    """Writes the step's K and V to the paged cache, then attends; one object a layer, without state between steps."""

    name: ClassVar[str]

    def __init__(self, spec: AttentionSpec) -> None:
        """Prepare for layers like `spec`; only called when `explain(spec)` is empty."""

    @classmethod
    def explain(cls, spec: AttentionSpec) -> list[str]:
        """Return every reason why this backend cannot serve `spec`; empty when it can. Never raises."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Attend T tokens of S sequences, causally.

        `query` [T, num_heads, head_dim]; `key` and `value` [T, num_kv_heads, head_dim], already rotated; `kv_cache` is
        (K, V), each [num_blocks, block_size, num_kv_heads, head_dim], and is written at `metadata.slot_mapping` before
        it is read. Returns [T, num_heads, head_dim] in the query's dtype; the inputs are left as they were.
        """


@runtime_checkable
class AttendsLastRows(Protocol):
    """What a backend may offer besides."""

    def forward_last(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        metadata: AttentionMetadata,
        last: LastRows,
    ) -> torch.Tensor:
        """As `AttentionBackend.forward`, but return only the rows of `last`: [R, num_heads, head_dim]."""
