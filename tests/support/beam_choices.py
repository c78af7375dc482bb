"""Compares choices of beams that were computed by different arithmetic."""

from __future__ import annotations

import numpy as np


def assert_same_choice(chosen, expected, out_start: np.ndarray, tolerance: float = 1e-5) -> None:
    """Check that two choices have the same scores, and the same beams but where scores are equal up to rounding.

    Where the last scores of a search are so, either may have kept another of the equal candidates.
    """
    np.testing.assert_allclose(chosen.scores, expected.scores, atol=tolerance)
    for begin, end in zip(out_start[:-1].tolist(), out_start[1:].tolist(), strict=True):
        scores = expected.scores[begin:end]
        alive = int((scores > -np.inf).sum())
        first = 0
        while first < alive:
            last = first
            while last + 1 < alive and scores[last] - scores[last + 1] < tolerance:
                last += 1
            if last + 1 < end - begin:  # a group that the number of beams has not cut
                rows = slice(begin + first, begin + last + 1)
                assert _beams(chosen, rows) == _beams(expected, rows)
            first = last + 1


def _beams(choice, rows: slice) -> set[tuple[int, int, int]]:
    columns = (choice.parents[rows].tolist(), choice.token_ids[rows].tolist(), choice.nodes[rows].tolist())
    return set(zip(*columns, strict=True))
