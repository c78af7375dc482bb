"""The tensors of a KV cache. Knows nothing of how large it should be."""

from __future__ import annotations

import torch

from xllm_runtime.models.interface import KVCacheShape, StateShape
from xllm_runtime.platform import Platform


def allocate(
    shapes: list[KVCacheShape], num_blocks: int, block_size: int, platform: Platform
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return zeroed (K, V) of each layer, each [num_blocks, block_size, num_kv_heads, head_dim].

    Raises:
        XLLMError: there is not so much memory.
    """
    caches = []
    for shape in shapes:
        size = (num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        caches.append((platform.allocate_zeros(size, shape.dtype), platform.allocate_zeros(size, shape.dtype)))
    return caches


def allocate_states(shapes: list[StateShape], num_slots: int, platform: Platform) -> list[torch.Tensor]:
    """Return the zeroed states, each [num_slots, ...]; raises as `allocate` does."""
    return [platform.allocate_zeros((num_slots, *shape.size), shape.dtype) for shape in shapes]
