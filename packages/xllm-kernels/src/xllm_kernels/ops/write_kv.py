"""Scatters new keys and values into the paged cache. Knows nothing of who owns its blocks."""

from __future__ import annotations

from xllm_kernels import _C
from xllm_kernels.ops.tensor import Tensor


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Copy row t of key and value to slot `slot_mapping[t]` = block * block_size + offset of the caches.

    key, value: [T, Hk, D]; key_cache, value_cache: [num_blocks, block_size, Hk, D], all of one dtype;
    slot_mapping: int64 [T], no slot twice; a negative slot is skipped, one past the end raises ValueError.
    """
    _C.write_kv(key, value, key_cache, value_cache, slot_mapping)
