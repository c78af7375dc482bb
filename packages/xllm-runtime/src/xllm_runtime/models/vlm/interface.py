"""What a vision-language model offers beyond a language model. Knows nothing of batches, caches or requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from xllm_framework.multimodal import MediaItem
from xllm_runtime.attention.metadata import AttentionMetadata
from xllm_runtime.models.interface import CausalLM

Frames = Callable[[MediaItem], torch.Tensor]
"""Returns the normalised pixels of an item, float32 [frames, 3, height, width], on the model's device."""
Additions = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""For each of the first layers: (rows int64 [R], values [R, hidden]) to be added after it."""


class Encodes(Protocol):
    """What makes embeddings of media."""

    def encode(self, items: Sequence[MediaItem], frames: Frames) -> list[torch.Tensor]:
        """Run the tower: one [E, num_levels * hidden] an item, whatever else is encoded in the same call."""


class MediaTower(Encodes, Protocol):
    """A vision tower that can be loaded without the language model behind it. A module."""

    @property
    def num_levels(self) -> int:
        """See `VisionLanguageModel.num_levels`."""

    def owns_weight(self, name: str) -> bool:
        """Whether a tensor of this name in a checkpoint is the tower's."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the tower's own tensors of a checkpoint, and drop the others; raises `ModelLoadError` as `fill_targets`."""


class VisionLanguageModel(CausalLM, Encodes, Protocol):
    """A `CausalLM`, which alone serves text, with a vision tower. E embeddings stand for one item."""

    num_levels: int
    """Of each embedding: 1, and one more for each early layer that media are also added to."""

    @property
    def text_model(self) -> CausalLM:
        """The language model alone, for executors that know its kind."""

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> a new tensor [T, hidden]."""

    def forward_embedded(
        self, x: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata, additions: Additions
    ) -> torch.Tensor:
        """As `CausalLM.forward`, from embeddings [T, hidden] and positions [T] or [3, T]."""
