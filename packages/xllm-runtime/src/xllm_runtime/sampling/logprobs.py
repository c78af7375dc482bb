"""Log-probabilities of given tokens and of the best tokens beside them. Knows nothing of how tokens were chosen.

They are those of the model itself: the log-softmax of its logits before penalties, biases, temperature and filters, which
is what OpenAI's clients and vLLM's users expect, and what lets a prompt's and an answer's be added up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from xllm_runtime.sampling.ranking import best_tokens
from xllm_runtime.sampling.slices import row_slices


@dataclass(slots=True)
class LogprobRows:
    """Log-probabilities of T rows with the K best tokens of each, best first (equals by rising token id)."""

    logprobs: npt.NDArray[np.float32]
    """[T]; of the given tokens."""
    top_ids: npt.NDArray[np.int32]
    """[T, K]"""
    top_logprobs: npt.NDArray[np.float32]
    """[T, K]"""


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobRows:
    """Return the log-probabilities of int64 `token_ids` [T], and the `num_top` best, under float32 `logits` [T, V].

    At most V best tokens are returned. A row's result does not depend on the other rows.
    """
    num_rows, vocab_size = logits.shape
    width = min(num_top, vocab_size)
    result = LogprobRows(
        np.empty(num_rows, np.float32), np.empty((num_rows, width), np.int32), np.empty((num_rows, width), np.float32)
    )
    for rows in row_slices(num_rows, vocab_size):
        logprobs = torch.log_softmax(logits[rows], dim=-1)
        result.logprobs[rows] = logprobs.gather(1, token_ids[rows].unsqueeze(1)).squeeze(1).cpu().numpy()
        if width:
            top, ids = best_tokens(logprobs, width)
            result.top_ids[rows] = ids.cpu().numpy()
            result.top_logprobs[rows] = top.cpu().numpy()
    return result
