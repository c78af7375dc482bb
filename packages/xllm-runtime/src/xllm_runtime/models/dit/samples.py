"""An image that is being drawn: its latents, where in the schedule it is, and its prompts. Knows nothing of batches or models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from xllm_runtime.models.dit.modulation import ModulationRows
from xllm_runtime.models.dit.operations import Rotary

if TYPE_CHECKING:
    from xllm_runtime.models.dit.step_cache import StepCache


@dataclass(slots=True)
class PromptRow:
    """One prompt of an image, a row of the batch: the one to follow, or the one to move away from."""

    modulation: ModulationRows
    text: torch.Tensor | None = None
    """[L, D], embedded for the blocks; None where prompts are classes."""
    rotary: Rotary | None = None
    """Of all L + N positions."""
    cache: StepCache | None = None
    """What earlier steps left for later ones; each row has its own."""


@dataclass(slots=True)
class Schedule:
    """A scheduler of diffusers, set to one image's steps, and its timesteps."""

    scheduler: Any
    timesteps: torch.Tensor
    """float32 [num_steps], on the device."""

    @property
    def num_steps(self) -> int:
        """Steps in all."""
        return len(self.timesteps)

    def advance(self, prediction: torch.Tensor, step: int, latents: torch.Tensor) -> torch.Tensor:
        """Return the latents [1, N, C] after `step`, given what the transformer predicted, both float32."""
        stepped: torch.Tensor = self.scheduler.step(
            prediction, self.scheduler.timesteps[step], latents, return_dict=False
        )[0]
        return stepped


@dataclass(slots=True)
class Sample:
    """One image under way."""

    latents: torch.Tensor
    """float32 [1, N, C], as tokens."""
    schedule: Schedule
    rows: list[PromptRow]
    """One, or two under classifier-free guidance: the prompt, then the negative one."""
    width: int
    height: int
    guidance: float = 1.0
    """How far to move from the second row's prediction through the first one's."""
    more_channels: torch.Tensor | None = None
    """[1, N, C'], put beside the latents: an image to follow, or what is kept under a mask."""
    more_tokens: torch.Tensor | None = None
    """[1, N', C], put behind the latents: the image to edit."""
    positions: torch.Tensor | None = None
    """Embeddings [N, D] of places, where attention does not rotate."""
    step: int = 0
    """Steps done."""
    seed: int = 0

    @property
    def is_done(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.schedule.num_steps

    def tokens(self) -> torch.Tensor:
        """Return what the transformer is given: [1, N + N', C + C']."""
        tokens = self.latents
        if self.more_channels is not None:
            tokens = torch.cat((tokens, self.more_channels), dim=2)
        if self.more_tokens is not None:
            tokens = torch.cat((tokens, self.more_tokens), dim=1)
        return tokens
