"""The write into the paged cache, in numpy. Knows nothing of who owns its blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def write_kv(
    key: Array, value: Array, key_cache: Array, value_cache: Array, slot_mapping: NDArray[np.int64]
) -> tuple[Array, Array]:
    """key, value [T, Hk, D], caches [num_blocks, block_size, Hk, D], slot_mapping [T] -> the two caches written to."""
    block_size = key_cache.shape[1]
    written = slot_mapping >= 0
    blocks, offsets = np.divmod(slot_mapping[written], block_size)
    key_cache, value_cache = key_cache.copy(), value_cache.copy()
    key_cache[blocks, offsets] = key[written]
    value_cache[blocks, offsets] = value[written]
    return key_cache, value_cache
