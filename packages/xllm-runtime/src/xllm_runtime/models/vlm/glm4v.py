"""GLM-4.1V, GLM-4.5V and GLM-4.6V: their tower, and a GLM-4 decoder, dense or with experts, with positions in three axes.

Knows nothing of when, or how often, the tower runs. Source: GLM-4.1V-Thinking (2025).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch

from xllm_framework.model import ModelArgs
from xllm_runtime.layers.vision import ACTIVATIONS
from xllm_runtime.models.llm.glm4 import Glm4ForCausalLM, glm4_weights
from xllm_runtime.models.llm.glm4_moe import Glm4MoeForCausalLM
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.models.llm.qwen3_moe import split_fused_experts
from xllm_runtime.models.vlm.glm_tower import GlmVisionTower
from xllm_runtime.models.vlm.qwen_vl import QwenVLForConditionalGeneration, renamed_weights
from xllm_runtime.models.vlm.vision_args import glm_vision_args


class Glm4vForConditionalGeneration(QwenVLForConditionalGeneration):
    """GLM-4.1V, and GLM-4.6V where it has no experts."""

    language_class: ClassVar[type[LlamaForCausalLM]] = Glm4ForCausalLM

    @classmethod
    def explain(cls, args: ModelArgs) -> list[str]:
        """Return every reason why a model of these arguments cannot be computed here."""
        reasons = []
        activation = glm_vision_args(args).activation
        if activation not in ACTIVATIONS:
            reasons.append(f"the tower's activation {activation!r} is unknown")
        if (args.raw.get("vision_config") or {}).get("attention_bias"):
            reasons.append("the tower's attention has biases")
        kind = (args.raw.get("text_config") or {}).get("model_type", "")
        if kind.endswith("moe_text") != (cls.language_class is Glm4MoeForCausalLM):
            reasons.append(f"its language model is {kind}, which {args.architecture} does not have")
        return reasons + cls.language_class.explain(args)

    @classmethod
    def build_tower(cls, args: ModelArgs, dtype: torch.dtype) -> GlmVisionTower:
        """See `QwenVLForConditionalGeneration.build_tower`."""
        return GlmVisionTower(glm_vision_args(args), dtype)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `CausalLM.load_weights`."""
        super().load_weights(glm4_weights(renamed_weights(weights), self.language.args))


class Glm4vMoeForConditionalGeneration(Glm4vForConditionalGeneration):
    """GLM-4.5V, and GLM-4.6V with experts; heads are rotated as Llama's."""

    language_class = Glm4MoeForCausalLM

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `CausalLM.load_weights`."""
        super(Glm4vForConditionalGeneration, self).load_weights(split_fused_experts(weights))
