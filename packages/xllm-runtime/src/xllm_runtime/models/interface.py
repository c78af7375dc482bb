"""What a causal language model must offer to be served. Knows nothing of batches, scheduling or sampling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from xllm_framework.kv_cache import LayerGroup
from xllm_framework.model import ModelArgs

if TYPE_CHECKING:
    import torch

    from xllm_runtime.attention.metadata import AttentionMetadata


@dataclass(frozen=True, slots=True)
class KVCacheShape:
    """KV of one layer for one token: `num_kv_heads` heads of `head_dim` numbers of `dtype`, for K and for V.

    8-bit floats are uint8 here, so that whoever moves blocks finds every operation of torch.
    """

    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def num_bytes_per_token(self) -> int:
        """Bytes of K and V together."""
        return 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize


@runtime_checkable
class CausalLM(Protocol):
    """A decoder-only model over paged KV. Built by `Class(args: ModelArgs, dtype: torch.dtype)` under a device context."""

    args: ModelArgs

    def kv_cache_shapes(self) -> list[KVCacheShape]:
        """One entry a layer that keeps KV, in the order of `bind_kv_cache`."""

    def bind_kv_cache(self, caches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take (K, V) of each layer, each [num_blocks, block_size, num_kv_heads, head_dim]; block 0 is padding."""

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata) -> torch.Tensor:
        """Compute T tokens: `token_ids` and `positions` int64 [T] -> hidden states [T, hidden]; KV is written to the cache."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> float32 logits [R, vocab_size]."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the tensors of a checkpoint under their Hugging Face names; raises `ModelLoadError` for a missing one."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """One tensor of linear state for one sequence."""

    size: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of it."""
        return prod(self.size) * self.dtype.itemsize


@runtime_checkable
class HasStates(Protocol):
    """A model with layers that keep one state a sequence instead of KV for each token."""

    def state_shapes(self) -> list[StateShape]:
        """One entry a tensor, in the order of `bind_states`."""

    def bind_states(self, states: list[torch.Tensor]) -> None:
        """Take the tensors, each [num_slots, ...]; `AttentionMetadata.state_slots` says who reads and writes what.

        All sequences' states are read before any is written, and what was read stays as it was, so that a step can be repeated.
        """


@runtime_checkable
class UsesLayerGroups(Protocol):
    """A model whose layers may have several block tables, so that KV behind a sliding window can go though others stay."""

    def bind_layer_groups(self, groups: Sequence[LayerGroup]) -> None:
        """Let each layer use the table of its group, `AttentionMetadata.of_group`; layers of equal place share a tensor."""


@runtime_checkable
class KeepsQuantised(Protocol):
    """A `CausalLM` some of whose layers compute with matrices as the checkpoint stores them."""

    def kept_layers(self) -> frozenset[str]:
        """Return these layers by their names in a checkpoint, without what follows the last dot of their tensors' names."""
