"""Penalties where the device alone may know a sequence's newest token. Knows nothing of the other changes to logits.

Tokens are counted on the device, in an array as wide as the vocabulary, so that nobody has to know which are distinct. The formula is
that of `adjust`, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch import SamplingRows
from xllm_runtime.platform.uploads import upload

ROWS_AT_ONCE = 32
"""Whose counts are kept at a time: some 20 MB for large vocabularies."""

PenalisedRows = Sequence[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.int32]]]


def penalise(logits: torch.Tensor, rows: SamplingRows, newest: torch.Tensor) -> None:
    """Change float32 `logits` [R, V] in place as `rows.penalised` asks.

    `newest` int32 [R], on the logits' device: the last token of each row's sequence, whatever stands at the end of its output.
    """
    for first in range(0, len(rows.penalised), ROWS_AT_ONCE):
        _penalise(logits, rows, rows.penalised[first : first + ROWS_AT_ONCE], newest)


def _penalise(logits: torch.Tensor, rows: SamplingRows, penalised: PenalisedRows, newest: torch.Tensor) -> None:
    num_rows, vocab_size = len(penalised), logits.shape[1]
    places = np.array([row for row, _, _ in penalised], np.int64)
    prompts = [prompt if rows.repetition_penalty[row] != 1.0 else prompt[:0] for row, prompt, _ in penalised]
    outputs = [output for _, _, output in penalised]
    has_output = np.array([len(output) > 0 for output in outputs], np.float32)
    amounts = (rows.frequency_penalty[places], rows.presence_penalty[places], rows.repetition_penalty[places])
    in_prompts = _flat_index(prompts, vocab_size)
    in_outputs = _flat_index([output[:-1] for output in outputs], vocab_size)
    columns = [column.reshape(-1, 1) for column in (has_output, *amounts)]
    sent = upload([places, in_prompts, in_outputs, *columns], logits.device)
    index, in_prompt, in_output, has_newest, frequency, presence, repetition = sent
    counts = logits.new_zeros(num_rows * vocab_size)
    counts.index_add_(0, in_output, counts.new_ones(1).expand(len(in_output)))
    counts = counts.view(num_rows, vocab_size)
    counts.scatter_add_(1, newest[index].long().clamp(0, vocab_size - 1).unsqueeze(1), has_newest)
    is_used = counts > 0
    is_concerned = is_used.clone()
    is_concerned.view(-1).index_fill_(0, in_prompt, True)
    found = logits[index]
    values = found - frequency * counts - presence * is_used
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[index] = torch.where(is_concerned, values, found)


def _flat_index(tokens: Sequence[npt.NDArray[np.int32]], vocab_size: int) -> npt.NDArray[np.int64]:
    """Return where the tokens of row after row lie in a flat [rows, V]."""
    rows = np.repeat(np.arange(len(tokens), dtype=np.int64) * vocab_size, [len(ids) for ids in tokens])
    return rows + np.concatenate(tokens)
