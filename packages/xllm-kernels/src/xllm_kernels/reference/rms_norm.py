"""RMSNorm (Zhang and Sennrich, 2019) in numpy. Knows nothing of rounding to narrower types."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [T, H], weight [H] -> [T, H]."""
    mean_square = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
    out: Array = (x / np.sqrt(mean_square + eps) * weight).astype(np.float32)
    return out


def add_rms_norm(x: Array, residual: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    """x, residual [T, H], weight [H] -> the normalised sum and the sum."""
    total = residual + x
    return rms_norm(total, weight, eps), total
