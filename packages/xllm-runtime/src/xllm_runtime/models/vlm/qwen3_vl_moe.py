"""Qwen3-VL with a mixture of experts. Knows nothing of how experts are computed (`layers.experts`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import torch

from xllm_framework.model import ModelArgs
from xllm_runtime.models.llm.qwen3_moe import FUSED_DOWN, FUSED_GATE_UP, Qwen3MoeForCausalLM, split_fused_experts
from xllm_runtime.models.vlm.qwen_vl import Qwen3VLForConditionalGeneration


class Qwen3VLMoeForConditionalGeneration(Qwen3VLForConditionalGeneration):
    """Qwen3-VL with a mixture of experts."""

    language_class = Qwen3MoeForCausalLM

    @classmethod
    def language_args(cls, args: ModelArgs) -> ModelArgs:
        """See `QwenVLForConditionalGeneration.language_args`; the chosen experts' weights always sum up to one here."""
        args = super().language_args(args)
        return dataclasses.replace(args, raw={**args.raw, "norm_topk_prob": True})

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `CausalLM.load_weights`."""
        inner_size = int(self.language.args.raw["moe_intermediate_size"])
        super().load_weights(split_fused_experts(_output_first(weights, self.args.hidden_size, inner_size)))


def _output_first(
    weights: Iterable[tuple[str, torch.Tensor]], hidden_size: int, inner_size: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield fused experts as [E, output, input]; published checkpoints store them input first, others as they are here."""
    shapes = {FUSED_GATE_UP: (hidden_size, 2 * inner_size), FUSED_DOWN: (inner_size, hidden_size)}
    for name, tensor in weights:
        is_input_first = any(name.endswith(end) and tensor.shape[1:] == shape for end, shape in shapes.items())
        yield name, tensor.transpose(1, 2) if is_input_first else tensor
