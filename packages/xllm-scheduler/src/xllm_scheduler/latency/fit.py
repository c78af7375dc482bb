"""Fits a `LatencyModel` to measured steps by non-negative least squares. Knows nothing of how they were measured.

With seven coefficients the exact answer is cheap: the optimum of a non-negative least-squares problem is the ordinary
least-squares solution on the set of coefficients that are positive in it, so that trying every set finds it. numpy does
each of the 127 small problems by singular values, which is stable where terms are almost parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from xllm_framework.errors import InvalidConfig
from xllm_scheduler.latency.model import LatencyModel
from xllm_scheduler.latency.shape import StepShape


@dataclass(frozen=True, slots=True)
class LatencySample:
    """One measured step."""

    shape: StepShape
    seconds: float


def fit_latency_model(samples: Sequence[LatencySample]) -> LatencyModel:
    """Return the model with the least sum of squared relative errors over `samples`.

    Terms that no sample has (decodes, for instance) get 0.

    Raises:
        InvalidConfig: there is no sample, or a time is not positive.
    """
    if not samples or any(not 0 < sample.seconds < np.inf for sample in samples):
        raise InvalidConfig("A latency model is fitted to at least one step, and each must have taken some time.")
    microseconds = np.array([1e6 * sample.seconds for sample in samples])
    terms = np.array([sample.shape.terms() for sample in samples])
    coefficients = non_negative_least_squares(terms / microseconds[:, None], np.ones(len(samples)))
    return LatencyModel(**dict(zip(LatencyModel.__struct_fields__, coefficients.tolist(), strict=True)))


def non_negative_least_squares(
    matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return x >= 0 with the least |matrix x - target|; float64 [S, K] and [S] -> [K]. Exact; for K of at most about 10."""
    num_terms = matrix.shape[1]
    scale = np.linalg.norm(matrix, axis=0)
    used = np.flatnonzero(scale > 0)
    best, best_error = np.zeros(num_terms), float(target @ target)
    for size in range(1, len(used) + 1):
        for chosen in combinations(used.tolist(), size):
            columns = list(chosen)
            solution = np.linalg.lstsq(matrix[:, columns] / scale[columns], target, rcond=1e-10)[0]
            if (solution < 0).any():
                continue
            residual = matrix[:, columns] / scale[columns] @ solution - target
            error = float(residual @ residual)
            if error < best_error * (1 - 1e-12):
                best, best_error = np.zeros(num_terms), error
                best[columns] = solution / scale[columns]
    return best
