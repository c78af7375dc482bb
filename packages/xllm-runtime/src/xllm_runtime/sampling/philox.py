"""Counter-based random numbers: Philox4x32-10. Knows nothing of tokens or of probabilities.

A draw is a pure function of (seed, step): no generator is kept, none is shared, so a sequence gets the same numbers
whoever shares its batch, on whatever device it runs, and after a preemption.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox4x32(counter: npt.NDArray[np.uint64], key: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return 4 random 32-bit words a row. `counter` [R, 4] and `key` [R, 2] hold 32-bit words in uint64."""
    c0, c1, c2, c3 = counter.T
    k0, k1 = key.T
    for _ in range(_ROUNDS):
        product0 = _MULTIPLIERS[0] * c0
        product1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack((c0, c1, c2, c3), axis=1)


def uniforms(seeds: npt.NDArray[np.uint64], steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) with 53 random bits for each of R (64-bit seed, step) pairs, float64 [R].

    The key is the seed, low word first; the counter is (step low, step high, 0, 0).
    """
    counters = steps.astype(np.uint64)
    zeros = np.zeros_like(counters)
    words = philox4x32(
        np.stack((counters & _LOW, counters >> _SHIFT, zeros, zeros), axis=1),
        np.stack((seeds & _LOW, seeds >> _SHIFT), axis=1),
    )
    high, low = words[:, 0] >> np.uint64(5), words[:, 1] >> np.uint64(6)
    return (high * 67108864.0 + low) / 9007199254740992.0  # 27 and 26 bits, over 2**53
