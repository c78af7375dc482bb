"""A small mixture of experts as GLM-4.5 has it: a router of sigmoids with a bias, in groups, and an expert that all tokens share."""

from __future__ import annotations

import torch

from xllm_framework.model import ModelArgs
from xllm_runtime.layers.experts import ExpertSizes
from xllm_runtime.layers.operations import select_operations
from xllm_runtime.layers.rotary import RotaryEmbedding
from xllm_runtime.models.llm.glm4_moe import Glm4MoeMLP
from xllm_runtime.models.llm.llama import Blueprint


def glm_mlp(dtype: torch.dtype, num_groups: int, *, num_experts: int = 64) -> Glm4MoeMLP:
    """Return one of experts of 512 -> 192, four a token from two of `num_groups` groups, on the default device, without weights."""
    raw = {
        "num_local_experts": num_experts,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 192,
        "norm_topk_prob": True,
        "n_group": num_groups,
        "topk_group": min(2, num_groups),
        "routed_scaling_factor": 1.5,
        "n_shared_experts": 1,
    }
    args = ModelArgs(
        architecture="Glm4MoeForCausalLM", model_type="glm4_moe", hidden_size=512, intermediate_size=1024, num_heads=4,
        num_kv_heads=4, head_dim=128, num_layers=1, max_position_embeddings=64, vocab_size=64, raw=raw,
    )  # fmt: skip
    operations = select_operations(dtype, torch.get_default_device())
    rotary = RotaryEmbedding(args, operations)
    return Glm4MoeMLP(
        Blueprint(args, dtype, operations, rotary, "auto", "auto"), ExpertSizes.from_config(raw, args.hidden_size)
    )
