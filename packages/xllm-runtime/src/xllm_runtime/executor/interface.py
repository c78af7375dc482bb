"""What runs the forward pass of a step. Knows nothing of how the model is built or of what follows the hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import ForwardInput

if TYPE_CHECKING:
    import torch


class DecodedRows(Protocol):
    """What a decode step came to; valid until the executor's next step."""

    def most_probable(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Wait for the step; return the first token with the largest logit of each row, and that logit: [R] each."""

    def logits(self) -> torch.Tensor:
        """Return the logits float32 [R, V], which the caller may overwrite."""


class Executor(Protocol):
    """Runs one model, whose KV cache is bound, on one device. Called by one thread."""

    def forward(self, forward_input: ForwardInput) -> torch.Tensor:
        """Return the hidden states [T, hidden] of at least one token, on the device.

        KV of all T tokens is in the cache afterwards. Running the same input again changes nothing, so a failed step can
        be repeated in parts. The result may be overwritten by the next call. Raises whatever the model raises.
        """

    def decode(self, forward_input: ForwardInput) -> DecodedRows | None:
        """Compute a step in which every row is sampled and every sequence brings one token, faster than `forward` would.

        Returns None, with nothing computed, where this executor has no faster way for the step.
        """
