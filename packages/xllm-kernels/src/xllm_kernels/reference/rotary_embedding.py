"""Rotary position embedding (Su et al., 2021), half-split layout, in numpy. Knows nothing of rope scaling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def rotary_embedding(
    positions: NDArray[np.int64], query: Array, key: Array, cos_sin_cache: Array
) -> tuple[Array, Array]:
    """positions [T], query [T, Hq, D], key [T, Hk, D], cos_sin_cache [max_position, rotary_dim] -> the rotated two."""
    cosines, sines = np.split(cos_sin_cache[positions][:, None, :], 2, axis=-1)
    return _rotate(query, cosines, sines), _rotate(key, cosines, sines)


def _rotate(heads: Array, cosines: Array, sines: Array) -> Array:
    half = cosines.shape[-1]
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines, rest], axis=-1)
