"""Rotary position embedding in the half-split layout. Knows nothing of how the table of angles was made."""

from __future__ import annotations

from xllm_kernels import _C
from xllm_kernels.ops.tensor import Tensor


def rotary_embedding(positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor) -> None:
    """Rotate query and key in place: element i of a head pairs with element i + rotary_dim / 2.

    positions: int32 or int64 [T], each a row of the cache; query: [T, Hq, D]; key: [T, Hk, D];
    cos_sin_cache: float32 [max_position, rotary_dim], cosines then sines; rotary_dim is even and at most D, and
    elements from rotary_dim on stay as they are.
    """
    _C.rotary_embedding(positions, query, key, cos_sin_cache)
