"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a vision tower of the family and a Qwen decoder with positions in three axes.

Embeddings of media take the rows of their place-holders; Qwen3-VL adds more of them after its first layers. Knows nothing
of when, or how often, the tower runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Protocol

import torch
from torch import nn

from xllm_framework.model import ModelArgs
from xllm_framework.multimodal import MediaItem
from xllm_runtime.layers.multimodal_rotary import MultimodalRotaryEmbedding
from xllm_runtime.layers.parameter import WeightTargets, fill_targets
from xllm_runtime.layers.vision import ACTIVATIONS
from xllm_runtime.models.llama_settings import explain_llama
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.models.vlm.interface import Frames
from xllm_runtime.models.vlm.patches import Grid
from xllm_runtime.models.vlm.qwen_tower import QWEN2_5_STYLE, QWEN2_STYLE, QWEN3_STYLE, QwenVisionTower, TowerStyle
from xllm_runtime.models.vlm.text_decoder import HasTextDecoder
from xllm_runtime.models.vlm.vision_args import qwen_vision_args

_PREFIXES = (("model.language_model.", "model."), ("model.visual.", "visual."))
"""Newer checkpoints' names -> the ones that the parts know."""


class VisionTower(Protocol):
    """What `QwenVisionTower` and its like offer; all are modules."""

    @property
    def num_levels(self) -> int:
        """See `VisionLanguageModel.num_levels`."""

    def __call__(self, frames: Sequence[torch.Tensor], grids: Sequence[Grid]) -> list[torch.Tensor]:
        """Encode items, each float32 [frames, 3, H, W]: one [embeddings, num_levels * out_size] an item."""

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""


class QwenMediaTower(nn.Module):
    """`MediaTower` of the family."""

    def __init__(self, tower: VisionTower) -> None:
        super().__init__()
        self.visual = tower

    @property
    def num_levels(self) -> int:
        """See `VisionLanguageModel.num_levels`."""
        return self.visual.num_levels

    def encode(self, items: Sequence[MediaItem], frames: Frames) -> list[torch.Tensor]:
        """See `Encodes.encode`."""
        return self.visual([frames(item) for item in items], [item.grid for item in items])

    def owns_weight(self, name: str) -> bool:
        """See `MediaTower.owns_weight`."""
        return _renamed(name).startswith("visual.")

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `MediaTower.load_weights`."""
        own = (pair for pair in weights if self.owns_weight(pair[0]))
        fill_targets(self.visual.weight_targets("visual"), renamed_weights(own), lambda _: False)


class QwenVLForConditionalGeneration(HasTextDecoder):
    """`VisionLanguageModel` of the family; a subclass names its generation."""

    style: ClassVar[TowerStyle]
    language_class: ClassVar[type[LlamaForCausalLM]] = LlamaForCausalLM

    def __init__(self, args: ModelArgs, dtype: torch.dtype) -> None:
        super().__init__()
        self.args = args
        self.visual = self.build_tower(args, dtype)
        self.language = self.language_class(self.language_args(args), dtype, rotary_class=MultimodalRotaryEmbedding)

    @classmethod
    def explain(cls, args: ModelArgs) -> list[str]:
        """Return every reason why a model of these arguments cannot be computed here."""
        activation = qwen_vision_args(args).activation
        reasons = [] if activation in ACTIVATIONS else [f"the tower's activation {activation!r} is unknown"]
        return reasons + explain_llama(args)

    @classmethod
    def build_tower(cls, args: ModelArgs, dtype: torch.dtype) -> VisionTower:
        """Return the tower of a model of these arguments, without its weights."""
        return QwenVisionTower(qwen_vision_args(args), cls.style, dtype)

    @classmethod
    def build_media_tower(cls, args: ModelArgs, dtype: torch.dtype) -> QwenMediaTower:
        """Return what encodes media for a model of these arguments, without its weights."""
        return QwenMediaTower(cls.build_tower(args, dtype))

    @classmethod
    def language_args(cls, args: ModelArgs) -> ModelArgs:
        """Return the arguments of the language model alone: its own part of config.json comes to the top."""
        return dataclasses.replace(args, raw={**args.raw, **(args.raw.get("text_config") or {})})

    @property
    def num_levels(self) -> int:
        """See `VisionLanguageModel.num_levels`."""
        return self.visual.num_levels

    def encode(self, items: Sequence[MediaItem], frames: Frames) -> list[torch.Tensor]:
        """See `VisionLanguageModel.encode`."""
        return self.visual([frames(item) for item in items], [item.grid for item in items])

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `CausalLM.load_weights`."""
        targets = [*self.visual.weight_targets("visual"), *self.language.weight_targets()]
        fill_targets(targets, renamed_weights(weights), self.language.ignores_weight)


class Qwen2VLForConditionalGeneration(QwenVLForConditionalGeneration):
    """Qwen2-VL (Wang et al., 2024)."""

    style = QWEN2_STYLE


class Qwen25VLForConditionalGeneration(QwenVLForConditionalGeneration):
    """Qwen2.5-VL (Bai et al., 2025)."""

    style = QWEN2_5_STYLE


class Qwen3VLForConditionalGeneration(QwenVLForConditionalGeneration):
    """Qwen3-VL (Bai et al., 2025)."""

    style = QWEN3_STYLE


def renamed_weights(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors under the names of the first checkpoints of the family, whichever release wrote them."""
    for name, tensor in weights:
        yield _renamed(name), tensor


def _renamed(name: str) -> str:
    prefix, replacement = next((pair for pair in _PREFIXES if name.startswith(pair[0])), ("", ""))
    return replacement + name.removeprefix(prefix)
