"""The best tokens of a row, by falling logit and, among equal logits, by rising token id. Knows no probabilities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]

_PARTS_A_TOKEN = 4
"""Parts that a row is cut into, for each token that is asked for; with fewer, sorting the whole row is as fast."""


def best_tokens(row: Row, width: int) -> tuple[Row, Ids]:
    """Return (logits, token ids) [width] of the best tokens of `row` [V] in order; `width` is from 1 to V.

    The `width`-th largest of the parts' maxima is a lower bound of the `width`-th largest logit, as each of those parts
    has a token that reaches it: the few tokens at or above the bound are all that need sorting.
    """
    part = len(row) // (_PARTS_A_TOKEN * width)
    if part < 2:
        ids = np.argsort(-row, kind="stable")[:width]
        return row[ids], ids
    maxima = np.maximum.reduceat(row, np.arange(0, len(row), part))
    bound = np.partition(maxima, -width)[-width]
    candidates = np.flatnonzero(row >= bound)
    ids = candidates[np.argsort(-row[candidates], kind="stable")[:width]]
    return row[ids], ids
