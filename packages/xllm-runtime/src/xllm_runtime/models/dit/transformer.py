"""What a diffusion transformer must offer to be stepped: its work in parts, so that caches can leave some out.

B rows of a batch: an image under guidance takes two, one a prompt. N tokens of image, L of text, M numbers of modulation.
Knows nothing of schedules, prompts or images.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from xllm_runtime.models.dit.blocks import StepContext


class Transformer(Protocol):
    """A module that predicts, for noisy latents, what the scheduler asks for. Built under a device context, in eval mode."""

    num_blocks: int
    dtype: torch.dtype

    def embed_text(self, text: torch.Tensor) -> torch.Tensor:
        """Bring encoded text [L, E] to the blocks' size: [L, D]; once a request."""

    def modulation_rows(self, condition: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """Return the modulation [S, M] of a prompt at `timesteps` [S]; `condition` is as `embed_condition` made it."""

    def start(
        self, tokens: torch.Tensor, text: torch.Tensor | None, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Embed latents [B, N, C] and put them behind the text [B, L, D]: hidden states [B, L + N, D], a new tensor.

        Args:
            text: None where prompts are classes.
            positions: embeddings [N, D] of the tokens' places, for models whose attention does not rotate.
        """

    def run(self, hidden: torch.Tensor, first: int, last: int, modulation: torch.Tensor, context: StepContext) -> None:
        """Compute blocks `first` to `last` (exclusive) on `hidden`, in place; `modulation` is [B, M]."""

    def finish(self, image: torch.Tensor, modulation: torch.Tensor) -> torch.Tensor:
        """Return the prediction [B, N, C] from the last block's hidden states of the image [B, N, D]."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take a checkpoint's tensors under diffusers' names; raises `ModelLoadError` for a missing or unknown one."""


def predict(
    transformer: Transformer,
    tokens: torch.Tensor,
    text: torch.Tensor | None,
    modulation: torch.Tensor,
    context: StepContext,
) -> torch.Tensor:
    """Compute every block: [B, N, C] -> [B, N, C]."""
    hidden = transformer.start(tokens, text, context.positions)
    transformer.run(hidden, 0, transformer.num_blocks, modulation, context)
    return transformer.finish(hidden[:, context.num_text :], modulation)
