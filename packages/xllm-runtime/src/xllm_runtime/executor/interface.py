"""What runs the forward pass of a step. Knows nothing of how the model is built or of what follows the hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from xllm_framework.batch import ForwardInput, ForwardOutput, SamplingRows

if TYPE_CHECKING:
    import torch


class PendingOutput(Protocol):
    """A step that is under way on a device."""

    @property
    def is_on_device(self) -> bool:
        """Whether the executor's next `decode` finds the tokens on the device, in place of placeholders."""

    def wait(self) -> ForwardOutput:
        """Wait for the step; a second call returns the same. Raises what the device reports."""


class DecodedRows(Protocol):
    """What a decode step came to; valid until the executor's next step."""

    def start(self, rows: SamplingRows) -> PendingOutput | None:
        """Let the device go on from logits to tokens without waiting for it; None where that cannot serve `rows`."""

    def logits(self) -> torch.Tensor:
        """Return the logits float32 [R, V], which the caller may overwrite."""


@dataclass(frozen=True, slots=True)
class FinishedOutput:
    """`PendingOutput` of a step that was waited for."""

    output: ForwardOutput
    is_on_device = False

    def wait(self) -> ForwardOutput:
        """Return the output."""
        return self.output


class Executor(Protocol):
    """Runs one model, whose KV cache is bound, on one device. Called by one thread."""

    def forward(self, forward_input: ForwardInput) -> torch.Tensor:
        """Return the hidden states [T, hidden] of at least one token, on the device.

        KV of all T tokens is in the cache afterwards. Running the same input again changes nothing, so a failed step can
        be repeated in parts. The result may be overwritten by the next call. Raises whatever the model raises. Where nothing but
        samples is asked of a long step, rows that are not sampled may be undefined.
        """

    def decode(self, forward_input: ForwardInput) -> DecodedRows | None:
        """Compute a step in which every row is sampled and every sequence brings one token, faster than `forward` would.

        Where the step before ended in a `PendingOutput` that `is_on_device`, token ids may be placeholders of its rows. Returns
        None, with nothing computed, where this executor has no faster way for the step.
        """
