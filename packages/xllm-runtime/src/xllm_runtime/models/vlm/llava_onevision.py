"""LLaVA-OneVision: a SigLIP tower over tiles of any resolution, two layers between, and a Qwen2 decoder.

Knows nothing of when the tower runs. Source: LLaVA-OneVision (Li et al., 2024).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from xllm_framework.model import ModelArgs
from xllm_framework.multimodal import MediaItem
from xllm_runtime.layers.parameter import fill_targets
from xllm_runtime.layers.vision import ACTIVATIONS
from xllm_runtime.models.llama_settings import explain_llama
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.models.vlm.interface import Frames
from xllm_runtime.models.vlm.llava_tower import LlavaOnevisionTower, renamed_weights
from xllm_runtime.models.vlm.siglip import siglip_args
from xllm_runtime.models.vlm.text_decoder import HasTextDecoder


class LlavaOnevisionForConditionalGeneration(HasTextDecoder):
    """`VisionLanguageModel`; see the module."""

    num_levels = 1

    def __init__(self, args: ModelArgs, dtype: torch.dtype) -> None:
        super().__init__()
        self.args = args
        self.tower = self.build_media_tower(args, dtype)
        self.language = LlamaForCausalLM(args, dtype)

    @classmethod
    def explain(cls, args: ModelArgs) -> list[str]:
        """Return every reason why a model of these arguments cannot be computed here."""
        raw, reasons = args.raw, []
        vision = raw.get("vision_config") or {}
        if vision.get("model_type", "siglip_vision_model") != "siglip_vision_model":
            reasons.append(f"its tower {vision['model_type']} is not siglip_vision_model")
        elif siglip_args(vision).activation not in ACTIVATIONS:
            reasons.append(f"the tower's activation {vision['hidden_act']!r} is unknown")
        if raw.get("vision_feature_select_strategy", "full") != "full" or not isinstance(
            raw.get("vision_feature_layer", -1), int
        ):
            reasons.append("only all features of one layer of the tower are taken")
        if raw.get("projector_hidden_act", "gelu") != "gelu" or raw.get("multimodal_projector_bias") is False:
            reasons.append("its projector is not two layers with biases and gelu between")
        return reasons + explain_llama(args)

    @classmethod
    def build_media_tower(cls, args: ModelArgs, dtype: torch.dtype) -> LlavaOnevisionTower:
        """Return the tower of a model of these arguments, without its weights."""
        return LlavaOnevisionTower(args, dtype)

    def encode(self, items: Sequence[MediaItem], frames: Frames) -> list[torch.Tensor]:
        """See `VisionLanguageModel.encode`."""
        return self.tower.encode(items, frames)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `CausalLM.load_weights`."""
        targets = [*self.tower.weight_targets(), *self.language.weight_targets()]
        fill_targets(targets, renamed_weights(weights), self._ignores)

    def _ignores(self, name: str) -> bool:
        return self.tower.ignores_weight(name) or self.language.ignores_weight(name)
