"""Runs the model operation by operation. Right for every model and platform; the only executor that CPU needs.

On CPU the arrays of a `ForwardInput` are taken as they are, without a copy; only token ids and positions are widened.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch import ForwardInput
from xllm_runtime.attention.metadata import AttentionMetadata, LastRows
from xllm_runtime.executor.interface import DecodedRows
from xllm_runtime.models.interface import CausalLM
from xllm_runtime.models.llm.llama import LlamaForCausalLM

LEAST_TOKENS, TOKENS_PER_LAST_ROW = 512, 32
"""Of steps whose last layer is computed for the sampled rows alone; in others little would be saved."""


class EagerExecutor:
    """Runs `model` on `device`."""

    def __init__(self, model: CausalLM, device: torch.device) -> None:
        self._model = model
        self._device = device

    @torch.inference_mode()
    def forward(self, forward_input: ForwardInput) -> torch.Tensor:
        """See `Executor.forward`."""
        attention = attention_metadata(forward_input, self._device)
        token_ids = self.token_ids(forward_input)
        positions = _tensor(forward_input.positions, self._device).to(torch.int64)
        if isinstance(self._model, LlamaForCausalLM):
            attention.last = last_rows(forward_input, attention)
        hidden = self._model.forward(token_ids, positions, attention)
        if attention.last is None or len(hidden) == len(token_ids):
            return hidden
        return hidden.new_empty(len(token_ids), hidden.shape[1]).index_copy_(0, attention.last.rows, hidden)

    def decode(self, forward_input: ForwardInput) -> DecodedRows | None:
        """See `Executor.decode`; there is no faster way here."""
        return None

    def token_ids(self, forward_input: ForwardInput) -> torch.Tensor:
        """Return a step's token ids int64 [T] on the device."""
        return _tensor(forward_input.token_ids, self._device).to(torch.int64)


def attention_metadata(forward_input: ForwardInput, device: torch.device) -> AttentionMetadata:
    """Return what attention needs of a step, on `device`."""
    query_start, seq_lens = _tensor(forward_input.query_start, device), _tensor(forward_input.seq_lens, device)
    host_lengths = (forward_input.query_start.tolist(), forward_input.seq_lens.tolist())
    first, *more = (
        AttentionMetadata(
            slot_mapping=_tensor(group.slot_mapping, device),
            block_tables=_tensor(group.block_tables, device),
            query_start=query_start,
            seq_lens=seq_lens,
            max_query_len=forward_input.max_query_len,
            host_lengths=host_lengths,
        )
        for group in forward_input.groups
    )
    first.more_groups = tuple(more)
    if forward_input.state_slots is not None:
        first.state_slots = _tensor(forward_input.state_slots, device).to(torch.int64)
    return first


def last_rows(forward_input: ForwardInput, attention: AttentionMetadata) -> LastRows | None:
    """Return the sampled rows of a step of prompts on a GPU; None where more is asked of it, or little would be saved."""
    rows, ends = forward_input.sample_rows, forward_input.query_start[1:] - 1
    device = attention.seq_lens.device
    if (
        device.type != "cuda"
        or forward_input.more_groups
        or not 0 < len(rows) * TOKENS_PER_LAST_ROW <= len(forward_input.token_ids)
    ):
        return None
    sequences = np.searchsorted(ends, rows)
    if forward_input.prompt_logprobs or forward_input.pooled or not np.array_equal(ends[sequences], rows):
        return None
    index = _tensor(sequences, device)
    return LastRows(_tensor(rows, device), attention.block_tables[index], attention.seq_lens[index])


def _tensor(array: npt.NDArray[np.integer], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)
