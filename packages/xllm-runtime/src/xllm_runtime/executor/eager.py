"""Runs the model operation by operation. Right for every model and platform; the only executor that CPU needs.

On CPU the arrays of a `ForwardInput` are taken as they are, without a copy; only token ids and positions are widened.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch import ForwardInput
from xllm_runtime.attention.metadata import AttentionMetadata
from xllm_runtime.executor.interface import DecodedRows
from xllm_runtime.models.interface import CausalLM


class EagerExecutor:
    """Runs `model` on `device`."""

    def __init__(self, model: CausalLM, device: torch.device) -> None:
        self._model = model
        self._device = device

    @torch.inference_mode()
    def forward(self, forward_input: ForwardInput) -> torch.Tensor:
        """See `Executor.forward`."""
        attention = attention_metadata(forward_input, self._device)
        token_ids = _tensor(forward_input.token_ids, self._device).to(torch.int64)
        positions = _tensor(forward_input.positions, self._device).to(torch.int64)
        return self._model.forward(token_ids, positions, attention)

    def decode(self, forward_input: ForwardInput) -> DecodedRows | None:
        """See `Executor.decode`; there is no faster way here."""
        return None


def attention_metadata(forward_input: ForwardInput, device: torch.device) -> AttentionMetadata:
    """Return what attention needs of a step, on `device`."""
    query_start, seq_lens = _tensor(forward_input.query_start, device), _tensor(forward_input.seq_lens, device)
    first, *more = (
        AttentionMetadata(
            slot_mapping=_tensor(group.slot_mapping, device),
            block_tables=_tensor(group.block_tables, device),
            query_start=query_start,
            seq_lens=seq_lens,
            max_query_len=forward_input.max_query_len,
        )
        for group in forward_input.groups
    )
    first.more_groups = tuple(more)
    if forward_input.state_slots is not None:
        first.state_slots = _tensor(forward_input.state_slots, device).to(torch.int64)
    return first


def _tensor(array: npt.NDArray[np.integer], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)
