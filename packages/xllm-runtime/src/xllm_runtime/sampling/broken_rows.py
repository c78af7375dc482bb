"""Tells rows of logits that have no token. Knows nothing of tensors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def broken_rows(best: npt.NDArray[np.float32]) -> dict[int, str]:
    """Return why rows have no token, by row, from the largest logit of each (NaN where a row holds one)."""
    return {
        int(row): "Every token is barred." if best[row] == -np.inf else "The model's logits are not finite."
        for row in np.flatnonzero(~np.isfinite(best))
    }
