"""Qwen3-MoE: the Llama family with a mixture of experts in place of the feed-forward network of most layers.

Knows nothing of how experts are computed (`layers.experts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from xllm_framework.model import ModelArgs
from xllm_runtime.layers.experts import ExpertSizes, SparseMLP
from xllm_runtime.layers.quantised_experts import QuantisedSparseMLP, explain_quantised_experts
from xllm_runtime.models.llm.llama import Blueprint, LlamaForCausalLM

FUSED_GATE_UP, FUSED_DOWN = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"
"""How checkpoints name the weights of all experts of a layer that are stored as one tensor each."""


class Qwen3MoeForCausalLM(LlamaForCausalLM):
    """See `LlamaForCausalLM`."""

    def feed_forward(self, blueprint: Blueprint, layer: int) -> nn.Module:
        """Return the experts of `layer`, or a dense network where the configuration says so."""
        if not is_sparse(self.args, layer):
            return super().feed_forward(blueprint, layer)
        sizes = ExpertSizes.from_config(self.args.raw, self.args.hidden_size)
        scheme = blueprint.quantisation
        if scheme is not None and not explain_quantised_experts(sizes, blueprint.dtype, scheme, kept=blueprint.kept):
            return QuantisedSparseMLP(sizes, blueprint.dtype, blueprint.operations, scheme)
        return SparseMLP(sizes, blueprint.dtype, blueprint.operations, blueprint.expert_kernels)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `CausalLM.load_weights`; experts come one by one or fused."""
        super().load_weights(split_fused_experts(weights))


def is_sparse(args: ModelArgs, layer: int) -> bool:
    """Whether `layer` has experts."""
    config = args.raw
    step = int(config.get("decoder_sparse_step") or 1)
    return layer not in (config.get("mlp_only_layers") or ()) and (layer + 1) % step == 0


def split_fused_experts(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `weights` with every tensor of all experts, [E, 2 I, H] or [E, H, I], as views under the names of single experts."""
    for name, tensor in weights:
        if name.endswith(FUSED_GATE_UP):
            prefix = name.removesuffix(".gate_up_proj")
            for expert, gate_up in enumerate(tensor):
                gate, up = gate_up.chunk(2)
                yield f"{prefix}.{expert}.gate_proj.weight", gate
                yield f"{prefix}.{expert}.up_proj.weight", up
        elif name.endswith(FUSED_DOWN):
            prefix = name.removesuffix(".down_proj")
            for expert, down in enumerate(tensor):
                yield f"{prefix}.{expert}.down_proj.weight", down
        else:
            yield name, tensor
