"""Tokens drawn from rows of logits, and log-probabilities, on the CPU's pool. Knows nothing of penalties, seeds or requests.

The meaning of the options and their order are those of xllm-runtime's sampler on numpy's arrays: temperature, top-k,
top-p, min-p, then the inverse of the cumulative distribution over rising token ids. A row's results are its own to the bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm_kernels import _C

Floats = npt.NDArray[np.float32]
Int32s = npt.NDArray[np.int32]


def draw_tokens(
    logits: Floats,
    rows: npt.NDArray[np.int64],
    best: Floats,
    *,
    temperature: Floats,
    top_k: npt.NDArray[np.int64],
    top_p: list[float],
    min_p: Floats,
    uniform: list[float],
) -> Int32s:
    """Return one token [R] for each of `rows` [R] of float32 `logits` [N, V], which stay as they are.

    `best` [R] holds the rows' largest logits, which are finite; the options have one entry [R] for each row:
    `temperature` > 0, `top_k` from 1 to V (off), `top_p` up to 1 (off), `min_p` from 0 (off), `uniform` in [0, 1).

    Raises:
        ValueError: an array has another length, or a row or top_k is out of its range.
        TypeError: an array has another type.
    """
    token_ids = np.empty(len(rows), np.int32)
    _C.draw_tokens(logits, rows, best, temperature, top_k, top_p, min_p, uniform, token_ids)
    return token_ids


def token_logprobs(logits: Floats, token_ids: Int32s, num_top: int) -> tuple[Floats, Int32s, Floats]:
    """Return (log-probabilities [R] of `token_ids` [R], the best ids [R, num_top], theirs) under float32 `logits` [R, V].

    The best come by falling log-probability, then by rising id.

    Raises:
        ValueError: a token, or `num_top` tokens, are more than the vocabulary has.
        TypeError: an array has another type.
    """
    num_rows = len(logits)
    logprobs = np.empty(num_rows, np.float32)
    top_ids, top_logprobs = np.empty((num_rows, num_top), np.int32), np.empty((num_rows, num_top), np.float32)
    _C.token_logprobs(logits, token_ids, logprobs, top_ids, top_logprobs)
    return logprobs, top_ids, top_logprobs
