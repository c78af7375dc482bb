"""Changes logits before anything is drawn: penalties, biases, bans, constraints. Knows nothing of temperature or filters.

All rows are changed by one gather, one formula over a flat list of (row, token) pairs, and one scatter, so the cost grows
with the tokens concerned and not with the vocabulary. Every formula is element-wise: a row's result is its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch import SamplingRows
from xllm_framework.batch.allowed_tokens import AllowedTokens
from xllm_runtime.platform.uploads import upload
from xllm_runtime.sampling.arrays.adjust import tokens_and_counts


def adjust(logits: torch.Tensor, rows: SamplingRows) -> None:
    """Change float32 logits [R, V] in place: frequency and presence, repetition penalties, biases, bans, constraints."""
    if rows.penalised:
        _penalise(logits, rows)
    adjust_after_penalties(logits, rows)


def adjust_after_penalties(logits: torch.Tensor, rows: SamplingRows) -> None:
    """Do what `adjust` does but for the penalties."""
    if rows.logit_bias:
        index = _index(logits, [(row, ids) for row, ids, _ in rows.logit_bias])
        biases = np.concatenate([bias for _, _, bias in rows.logit_bias])
        logits[index] += upload([biases], logits.device)[0]
    if rows.banned:
        # A number on the right would be copied from the host, and waited for.
        logits.index_put_(_index(logits, rows.banned), logits.new_full((), -torch.inf))
    if rows.allowed is not None:
        _bar_all_but(logits, rows.allowed)


def _penalise(logits: torch.Tensor, rows: SamplingRows) -> None:
    """Subtract by count and by presence in the output; then divide or multiply what stands in prompt or output."""
    tokens, counts = [], []
    for row, prompt, output in rows.penalised:
        ids, uses = tokens_and_counts(prompt if rows.repetition_penalty[row] != 1.0 else prompt[:0], output)
        tokens.append((row, ids))
        counts.append(uses)
    lengths = [len(uses) for uses in counts]
    affected = [row for row, _ in tokens]
    index = _index(logits, tokens)
    penalties = (rows.frequency_penalty, rows.presence_penalty, rows.repetition_penalty)
    arrays = [np.concatenate(counts), *(np.repeat(penalty[affected], lengths) for penalty in penalties)]
    count, frequency, presence, repetition = upload(arrays, logits.device)
    values = logits[index] - frequency * count - presence * (count > 0)
    logits[index] = torch.where(values > 0, values / repetition, values * repetition)


def _bar_all_but(logits: torch.Tensor, allowed: AllowedTokens) -> None:
    """Bar what the constrained rows may not take; the masks travel to the device packed."""
    rows, octets = upload([allowed.rows, allowed.bits.view(np.uint8)], logits.device)
    shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
    is_barred = (octets.unsqueeze(-1) >> shifts & 1).view(len(rows), -1)[:, : logits.shape[1]] == 0
    logits[rows] = logits[rows].masked_fill_(is_barred, -torch.inf)


def _index(logits: torch.Tensor, tokens: list[tuple[int, npt.NDArray[np.int64]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (row indices, token ids) of all pairs, on the logits' device. No pair occurs twice."""
    row = np.repeat(np.array([row for row, _ in tokens], np.int64), [len(ids) for _, ids in tokens])
    column = np.concatenate([ids for _, ids in tokens])
    row_index, column_index = upload([row, column], logits.device)
    return row_index, column_index
