"""What runs the forward pass of a step. Knows nothing of how the model is built or of what follows the hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from xllm_framework.batch import ForwardInput

if TYPE_CHECKING:
    import torch


class Executor(Protocol):
    """Runs one model, whose KV cache is bound, on one device. Called by one thread."""

    def forward(self, forward_input: ForwardInput) -> torch.Tensor:
        """Return the hidden states [T, hidden] of at least one token, on the device.

        KV of all T tokens is in the cache afterwards. Running the same input again changes nothing, so a failed step can
        be repeated in parts. The result may be overwritten by the next call. Raises whatever the model raises.
        """
