"""GLM-4 with a mixture of experts, as its vision models have it: Llama's layers, a router of its own, shared experts.

    scores = sigmoid(x W);  experts chosen by score + bias, from the best groups;  weights are the scores of the chosen
    y = sum of weight * expert(x) + shared(x)

Knows nothing of how single experts are computed (`layers.experts`). Source: DeepSeek-V3 (2024), whose router it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import nn

from xllm_framework.errors import ModelLoadError
from xllm_framework.model import ModelArgs
from xllm_runtime.layers.experts import ExpertSizes, SparseMLP
from xllm_runtime.layers.parameter import WeightTargets, whole_parameter
from xllm_runtime.models.llama_settings import explain_llama
from xllm_runtime.models.llm.llama import Blueprint, LlamaForCausalLM, LlamaMLP
from xllm_runtime.models.llm.qwen3_moe import split_fused_experts

BEST_OF_GROUP = 2
"""Experts of a group whose scores make the group's."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """How experts are chosen."""

    num_groups: int
    num_chosen_groups: int
    factor: float
    """By which all weights are multiplied."""

    @classmethod
    def from_config(cls, config: dict[str, Any], num_experts: int) -> Self:
        """Take them from config.json; raises `ModelLoadError` where groups do not divide the experts."""
        num_groups = int(config.get("n_group") or 1)
        if num_experts % num_groups:
            raise ModelLoadError(f"n_group {num_groups} in config.json does not divide {num_experts} experts")
        num_chosen = int(config.get("topk_group") or 1)
        return cls(num_groups, num_chosen, float(config.get("routed_scaling_factor") or 1.0))


class Glm4MoeMLP(SparseMLP):
    """Router, experts, and experts that every token goes through."""

    def __init__(self, blueprint: Blueprint, sizes: ExpertSizes) -> None:
        super().__init__(sizes, blueprint.dtype, blueprint.operations, blueprint.expert_kernels)
        raw = blueprint.args.raw
        self.settings = RouterSettings.from_config(raw, sizes.num_experts)
        self.bias = nn.Parameter(torch.empty(sizes.num_experts, dtype=torch.float32), requires_grad=False)
        inner = sizes.intermediate_size * int(raw.get("n_shared_experts") or 1)
        args = dataclasses.replace(blueprint.args, intermediate_size=inner)
        self.shared_experts = LlamaMLP(dataclasses.replace(blueprint, args=args))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, H]."""
        scores = F.linear(x.float(), self.gate.float()).sigmoid()
        chosen = choose_in_groups(scores, self.bias, self.sizes, self.settings)
        return self._operations.mix(x, chosen, self.stacks, self.shared_experts(x))

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from super().weight_targets(prefix)
        yield whole_parameter(f"{prefix}.gate.e_score_correction_bias", self, "bias")
        yield from self.shared_experts.weight_targets(f"{prefix}.shared_experts")


def choose_in_groups(
    scores: torch.Tensor, bias: torch.Tensor, sizes: ExpertSizes, settings: RouterSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (weights float32, experts int64), each [T, top_k], by `scores` [T, E] and the `bias` [E] of the choice alone."""
    ranked = scores + bias
    if settings.num_chosen_groups < settings.num_groups:
        grouped = ranked.view(len(scores), settings.num_groups, -1)
        best = grouped.topk(min(BEST_OF_GROUP, grouped.shape[-1]), -1).values.sum(-1)
        groups = best.topk(settings.num_chosen_groups, -1, sorted=False).indices
        is_open = torch.zeros_like(best, dtype=torch.bool).scatter_(1, groups, True)
        ranked = grouped.masked_fill(~is_open[..., None], float("-inf")).flatten(1)
    experts = ranked.topk(sizes.top_k, -1, sorted=False).indices
    weights = scores.gather(1, experts)
    if sizes.renormalises:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * settings.factor, experts


class Glm4MoeForCausalLM(LlamaForCausalLM):
    """See `LlamaForCausalLM`."""

    @classmethod
    def explain(cls, args: ModelArgs) -> list[str]:
        """Return every reason why a model of these arguments cannot be computed here."""
        return explain_llama(args, may_rotate_parts=True)

    def feed_forward(self, blueprint: Blueprint, layer: int) -> nn.Module:
        """Return the experts of `layer`, or a dense network in the first layers."""
        first = self.args.raw.get("first_k_dense_replace")
        if layer < (1 if first is None else int(first)):
            return super().feed_forward(blueprint, layer)
        return Glm4MoeMLP(blueprint, ExpertSizes.from_config(self.args.raw, self.args.hidden_size))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `CausalLM.load_weights`; experts come one by one or fused."""
        super().load_weights(split_fused_experts(weights))

    def ignores_weight(self, name: str) -> bool:
        """See `LlamaForCausalLM.ignores_weight`; layers behind the last one draft tokens, which nobody asks of them here."""
        layer = name.removeprefix("model.layers.").partition(".")[0]
        return super().ignores_weight(name) or (layer.isdigit() and int(layer) >= self.args.num_layers)
