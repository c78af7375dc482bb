"""The gated activation in numpy. Knows nothing of the projections around it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def silu_and_mul(x: Array) -> Array:
    """x [T, 2 I] -> silu of the first half times the second, [T, I]."""
    gate, up = np.split(x.astype(np.float64), 2, axis=-1)
    out: Array = (gate / (1 + np.exp(-gate)) * up).astype(np.float32)
    return out
