"""Runs the model operation by operation. Right for every model and platform; the only executor that CPU needs.

On CPU the arrays of a `ForwardInput` are taken as they are, without a copy; only token ids and positions are widened.
"""

from __future__ import annotations

import torch

from xllm_framework.batch import ForwardInput
from xllm_runtime.executor.interface import DecodedRows
from xllm_runtime.executor.step_tensors import StepTensors, upload_step
from xllm_runtime.models.interface import CausalLM
from xllm_runtime.models.llm.llama import LlamaForCausalLM


class EagerExecutor:
    """Runs `model` on `device`."""

    def __init__(self, model: CausalLM, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._takes_last = isinstance(model, LlamaForCausalLM)

    @torch.inference_mode()
    def forward(self, forward_input: ForwardInput) -> torch.Tensor:
        """See `Executor.forward`."""
        return self.compute(self.upload(forward_input))

    def decode(self, forward_input: ForwardInput) -> DecodedRows | None:
        """See `Executor.decode`; there is no faster way here."""
        return None

    def upload(self, forward_input: ForwardInput) -> StepTensors:
        """Return the step on the device."""
        return upload_step(forward_input, self._device, takes_last=self._takes_last)

    def compute(self, step: StepTensors) -> torch.Tensor:
        """Return the hidden states [T, hidden] of a step that is on the device; see `Executor.forward`."""
        hidden = self._model.forward(step.token_ids.to(torch.int64), step.positions, step.attention)
        last = step.attention.last
        if last is None or len(hidden) == len(step.token_ids):
            return hidden
        return hidden.new_empty(len(step.token_ids), hidden.shape[1]).index_copy_(0, last.rows, hidden)
