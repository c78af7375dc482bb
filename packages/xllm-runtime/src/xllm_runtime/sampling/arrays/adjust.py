"""Changes logits before anything is drawn: penalties, biases, bans, constraints. Knows nothing of temperature or filters.

Every formula is that of `sampling.adjust`; the cost grows with the tokens concerned and not with the vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import SamplingRows


def adjust(logits: npt.NDArray[np.float32], rows: SamplingRows) -> None:
    """Change float32 logits [R, V] in place: frequency and presence, repetition penalties, biases, bans, constraints."""
    for row, prompt, output in rows.penalised:
        repetition = rows.repetition_penalty[row]
        ids, counts = tokens_and_counts(prompt if repetition != 1.0 else prompt[:0], output)
        values = logits[row, ids]
        values = values - rows.frequency_penalty[row] * counts - rows.presence_penalty[row] * (counts > 0)
        logits[row, ids] = np.where(values > 0, values / repetition, values * repetition)
    for row, ids, biases in rows.logit_bias:
        logits[row, ids] += biases
    for row, ids in rows.banned:
        logits[row, ids] = -np.inf
    if rows.allowed is not None:
        for row, is_allowed in zip(rows.allowed.rows, rows.allowed.unpacked(logits.shape[1]), strict=True):
            logits[row][~is_allowed] = -np.inf


def tokens_and_counts(
    prompt: npt.NDArray[np.int32], output: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the distinct tokens of prompt and output, and how often the output holds each (0 for the prompt's own)."""
    ids, inverse = np.unique(np.concatenate((prompt, output)), return_inverse=True)
    counts = np.bincount(inverse[len(prompt) :], minlength=len(ids))
    return ids.astype(np.int64), counts.astype(np.float32)
