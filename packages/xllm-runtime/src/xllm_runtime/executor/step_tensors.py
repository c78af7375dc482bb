"""A step's arrays on the device, brought there by one copy. Knows nothing of models, or of how a step is computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch import ForwardInput
from xllm_runtime.attention.metadata import AttentionMetadata, LastRows
from xllm_runtime.platform.uploads import upload

TOKENS_PER_LAST_ROW = 32
"""Of steps whose last layer is computed for the sampled rows alone; in others little would be saved."""


@dataclass(frozen=True, slots=True)
class StepTensors:
    """T tokens, R of which are sampled."""

    token_ids: torch.Tensor
    """int32 [T]; may be placeholders."""
    positions: torch.Tensor
    """int64 [T]"""
    sample_rows: torch.Tensor
    """int64 [R]"""
    attention: AttentionMetadata


def upload_step(forward_input: ForwardInput, device: torch.device, *, takes_last: bool = False) -> StepTensors:
    """Return a step on `device`; nothing waits for what the device is doing.

    `takes_last`: the model looks at `AttentionMetadata.last`, which is set where a step of prompts on a GPU saves time by it.
    """
    groups, state_slots = forward_input.groups, forward_input.state_slots
    arrays: list[npt.NDArray[np.generic]] = [
        forward_input.token_ids,
        forward_input.positions.astype(np.int64),
        forward_input.sample_rows,
        forward_input.query_start,
        forward_input.seq_lens,
    ]
    for group in groups:
        arrays += (group.slot_mapping, group.block_tables)
    if state_slots is not None:
        arrays.append(state_slots.astype(np.int64))
    sampled = sampled_sequences(forward_input) if takes_last and device.type == "cuda" else None
    if sampled is not None:
        arrays.append(sampled)
    token_ids, positions, sample_rows, query_start, seq_lens, *more = upload(arrays, device)
    host_lengths = (forward_input.query_start.tolist(), forward_input.seq_lens.tolist())
    attention, *more_groups = (
        AttentionMetadata(
            slot_mapping=more[2 * index],
            block_tables=more[2 * index + 1],
            query_start=query_start,
            seq_lens=seq_lens,
            max_query_len=forward_input.max_query_len,
            host_lengths=host_lengths,
        )
        for index in range(len(groups))
    )
    attention.more_groups = tuple(more_groups)
    if state_slots is not None:
        attention.state_slots = more[2 * len(groups)]
    if sampled is not None:
        attention.last = LastRows(sample_rows, attention.block_tables[more[-1]], seq_lens[more[-1]])
    return StepTensors(token_ids, positions, sample_rows, attention)


def sampled_sequences(forward_input: ForwardInput) -> npt.NDArray[np.int64] | None:
    """Return int64 [R]: whose newest tokens the sampled rows are; None where more is asked of a step, or little would be saved."""
    rows, ends = forward_input.sample_rows, forward_input.query_start[1:] - 1
    asks_for_more = forward_input.more_groups or forward_input.prompt_logprobs or forward_input.pooled
    if asks_for_more or not 0 < len(rows) * TOKENS_PER_LAST_ROW <= len(forward_input.token_ids):
        return None
    sequences = np.searchsorted(ends, rows)
    return sequences if np.array_equal(ends[sequences], rows) else None
