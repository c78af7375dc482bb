"""Runs steps with images and videos among their rows; steps of text go to another executor. Knows nothing of caches.

x = embed(token ids); x[rows of media] = embeddings from the encoder
hidden = forward(x, positions in three axes), early layers with further embeddings of media where the model has them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from xllm_framework.batch import ForwardInput
from xllm_framework.batch.media_rows import MediaRows
from xllm_framework.multimodal import MediaItem
from xllm_runtime.executor.interface import DecodedRows, Executor
from xllm_runtime.executor.step_tensors import upload_step
from xllm_runtime.models.vlm.interface import VisionLanguageModel
from xllm_runtime.platform.uploads import upload

Encoder = Callable[[Sequence[MediaItem]], Mapping[bytes, torch.Tensor]]
"""Returns [E, levels * hidden] of each item by its content hash, in the model's dtype."""


class MultimodalExecutor:
    """`Executor` of `model`; `text` runs what holds no media."""

    def __init__(self, text: Executor, model: VisionLanguageModel, encoder: Encoder, device: torch.device) -> None:
        self._text = text
        self._model = model
        self._encoder = encoder
        self._device = device

    @torch.inference_mode()
    def forward(self, forward_input: ForwardInput) -> torch.Tensor:
        """See `Executor.forward`."""
        media = forward_input.media
        if media is None:
            return self._text.forward(forward_input)
        step = upload_step(forward_input, self._device)
        x = self._model.embed(step.token_ids.long())
        additions = self._merge(x, media)
        positions = step.positions
        if media.rotary_positions is not None:
            positions = upload([media.rotary_positions], self._device)[0].long()
        return self._model.forward_embedded(x, positions, step.attention, additions)

    def decode(self, forward_input: ForwardInput) -> DecodedRows | None:
        """See `Executor.decode`; tokens that stand for media have no faster way."""
        return self._text.decode(forward_input) if forward_input.media is None else None

    def _merge(self, x: torch.Tensor, media: MediaRows) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Put embeddings into `x` [T, hidden]; return what later layers add."""
        if not media.pieces:
            return []
        embeddings = self._encoder([item for item, *_ in media.pieces])
        parts = [embeddings[item.content_hash][first : first + count] for item, first, _, count in media.pieces]
        ranges = [torch.arange(row, row + count, device=self._device) for _, _, row, count in media.pieces]
        rows, (first_level, *levels) = torch.cat(ranges), torch.split(torch.cat(parts), x.shape[1], 1)
        x[rows] = first_level.to(x.dtype)
        return [(rows, level.contiguous()) for level in levels]
