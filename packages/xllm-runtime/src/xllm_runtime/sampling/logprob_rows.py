"""Log-probabilities as workers report them. Knows nothing of how they are computed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class LogprobRows(NamedTuple):
    """Log-probabilities of T rows with the K best tokens of each, best first (equals by rising token id)."""

    logprobs: npt.NDArray[np.float32]
    """[T]; of the given tokens."""
    top_ids: npt.NDArray[np.int32]
    """[T, K]"""
    top_logprobs: npt.NDArray[np.float32]
    """[T, K]"""

    @classmethod
    def concatenate(cls, parts: list[LogprobRows]) -> LogprobRows:
        """Return the rows of one or more `parts` with an equal K, in order."""
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))
