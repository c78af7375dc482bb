"""Log-probabilities of given tokens and of the best tokens beside them. Knows nothing of how tokens were chosen.

They are those of the model itself, as in `sampling.logprobs`: the log-softmax of its logits before everything else.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm_runtime.sampling.arrays.ranking import Row, best_tokens
from xllm_runtime.sampling.logprob_rows import LogprobRows


def token_logprobs(logits: npt.NDArray[np.float32], token_ids: npt.NDArray[np.int32], num_top: int) -> LogprobRows:
    """Return the log-probabilities of `token_ids` [T], and the `num_top` best, under float32 `logits` [T, V].

    At most V best tokens are returned.
    """
    num_rows, num_top = len(logits), min(num_top, logits.shape[1])
    chosen = np.empty(num_rows, np.float32)
    top_ids = np.empty((num_rows, num_top), np.int32)
    top_logprobs = np.empty((num_rows, num_top), np.float32)
    for index, token in enumerate(token_ids):
        logprobs = _log_softmax(logits[index])
        chosen[index] = logprobs[token]
        if num_top:
            top_logprobs[index], top_ids[index] = best_tokens(logprobs, num_top)
    return LogprobRows(chosen, top_ids, top_logprobs)


def _log_softmax(row: Row) -> Row:
    shifted: Row = row - row.max()
    shifted -= np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    return shifted
