"""Three tokens for each film, so that films which the same people watch begin alike.

Factors of films: the singular vectors of their shifted positive pointwise mutual information within users' histories (Levy and
Goldberg, 2014). Codes: k-means of the factors, then of what is left of them, and again (residual quantisation, as RQ-VAE's codes in
TIGER, Rajput et al., 2023). Two films never share all three codes: the later one moves to the next free place.
"""

from __future__ import annotations

import numpy as np

CODES = 32
"""Of each of the three levels."""
FACTORS = 48
WINDOW = 10
"""Films at most so far apart in a history count as seen together."""


def semantic_ids(histories: list[list[int]], num_items: int, seed: int = 0) -> np.ndarray:
    """Return int32 [num_items, 3] of codes below `CODES`; `histories` hold items from 0 to `num_items` - 1."""
    random = np.random.default_rng(seed)
    rest = _factors(histories, num_items)
    codes = np.zeros((num_items, 3), np.int32)
    for level in range(3):
        centres, codes[:, level] = _k_means(rest, CODES, random)
        rest = rest - centres[codes[:, level]]
    return _without_twins(codes)


def _factors(histories: list[list[int]], num_items: int) -> np.ndarray:
    together = np.zeros((num_items, num_items))
    for history in histories:
        for distance in range(1, WINDOW + 1):
            np.add.at(together, (history[:-distance], history[distance:]), 1.0 / distance)
    together += together.T
    sums = together.sum(axis=1, keepdims=True) + 1e-9
    information = np.log(np.maximum(together * together.sum() / (sums * sums.T), 1e-9))
    left, values, _ = np.linalg.svd(np.maximum(information, 0.0), hermitian=True)
    factors = left[:, :FACTORS] * np.sqrt(values[:FACTORS])
    return factors / (np.linalg.norm(factors, axis=1, keepdims=True) + 1e-9)


def _k_means(points: np.ndarray, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Lloyd's algorithm from k-means++ starts (Arthur and Vassilvitskii, 2007): (centres, the centre of each point)."""
    centres = points[random.integers(len(points))][None]
    while len(centres) < count:
        distances = ((points[:, None] - centres) ** 2).sum(-1).min(axis=1) + 1e-12
        centres = np.concatenate([centres, points[random.choice(len(points), p=distances / distances.sum())][None]])
    for _ in range(25):
        nearest = ((points[:, None] - centres) ** 2).sum(-1).argmin(axis=1)
        for index in np.unique(nearest):
            centres[index] = points[nearest == index].mean(axis=0)
    return centres, nearest.astype(np.int32)


def _without_twins(codes: np.ndarray) -> np.ndarray:
    taken: set[tuple[int, ...]] = set()
    for row in codes:
        a, b, c = row.tolist()
        places = ((a, (b + step // CODES) % CODES, (c + step) % CODES) for step in range(CODES * CODES))
        row[:] = next(place for place in places if place not in taken)
        taken.add(tuple(row.tolist()))
    return codes
