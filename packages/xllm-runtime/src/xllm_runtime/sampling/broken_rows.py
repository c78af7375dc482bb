"""Tells rows of logits that have no token. Knows nothing of tensors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BARRED = "Every token is barred."
NOT_FINITE = "The model's logits are not finite."


def broken_rows(best: npt.NDArray[np.float32]) -> dict[int, str]:
    """Return why rows have no token, by row, from the largest logit of each (NaN where a row holds one)."""
    return {int(row): BARRED if best[row] == -np.inf else NOT_FINITE for row in np.flatnonzero(~np.isfinite(best))}
