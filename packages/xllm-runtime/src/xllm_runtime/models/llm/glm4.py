"""The GLM-4 decoder: Llama's, with norms also behind attention and feed-forward network, and parts of heads rotated.

Checkpoints pair neighbouring numbers of a head where Llama pairs halves. Rows of queries and keys are put into Llama's order
as they are loaded, which changes no product of a query with a key. Knows nothing of batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from xllm_framework.model import ModelArgs
from xllm_runtime.attention import AttentionMetadata, LastRows
from xllm_runtime.layers.parameter import WeightTargets
from xllm_runtime.layers.rope_frequencies import rotary_dim
from xllm_runtime.models.llama_settings import explain_llama
from xllm_runtime.models.llm.llama import Blueprint, LlamaDecoderLayer, LlamaForCausalLM

_FUSED_MLP = ".mlp.gate_up_proj.weight"


class Glm4DecoderLayer(LlamaDecoderLayer):
    """See `LlamaDecoderLayer`; what attention and network give is normed before it is added."""

    def __init__(self, blueprint: Blueprint, layer: int, mlp: nn.Module) -> None:
        super().__init__(blueprint, layer, mlp)
        self.post_self_attn_layernorm = blueprint.norm(blueprint.args.hidden_size)
        self.post_mlp_layernorm = blueprint.norm(blueprint.args.hidden_size)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata
    ) -> torch.Tensor:
        """See `LlamaDecoderLayer.forward`."""
        self.input_layernorm.add(x, residual)
        x = self.post_self_attn_layernorm(self.self_attn(x, positions, attention))
        self.post_attention_layernorm.add(x, residual)
        output: torch.Tensor = self.post_mlp_layernorm(self.mlp(x))
        return output

    def forward_last(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        positions: torch.Tensor,
        attention: AttentionMetadata,
        last: LastRows,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `LlamaDecoderLayer.forward_last`."""
        self.input_layernorm.add(x, residual)
        x = self.post_self_attn_layernorm(self.self_attn(x, positions, attention, last))
        residual = residual[last.rows]
        self.post_attention_layernorm.add(x, residual)
        return self.post_mlp_layernorm(self.mlp(x)), residual

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from super().weight_targets(prefix)
        yield from self.post_self_attn_layernorm.weight_targets(f"{prefix}.post_self_attn_layernorm")
        yield from self.post_mlp_layernorm.weight_targets(f"{prefix}.post_mlp_layernorm")


class Glm4ForCausalLM(LlamaForCausalLM):
    """See `LlamaForCausalLM`; weights come through `glm4_weights`."""

    layer_class = Glm4DecoderLayer

    @classmethod
    def explain(cls, args: ModelArgs) -> list[str]:
        """Return every reason why a model of these arguments cannot be computed here."""
        return explain_llama(args, may_rotate_parts=True)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `CausalLM.load_weights`."""
        super().load_weights(glm4_weights(weights, self.args))


def glm4_weights(weights: Iterable[tuple[str, torch.Tensor]], args: ModelArgs) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors under Llama's names and in its order of rows."""
    for name, tensor in weights:
        if name.endswith(_FUSED_MLP):
            prefix = name.removesuffix("gate_up_proj.weight")
            gate, up = tensor.chunk(2)
            yield f"{prefix}gate_proj.weight", gate
            yield f"{prefix}up_proj.weight", up
        elif ".self_attn.q_proj." in name or ".self_attn.k_proj." in name:
            yield name, halved_pairs(tensor, args.head_dim, rotary_dim(args))
        else:
            yield name, tensor


def halved_pairs(rows: torch.Tensor, head_dim: int, num_rotated: int) -> torch.Tensor:
    """Return [heads * head_dim, ...] with the first of each pair of a head's rotated rows before the second of all pairs."""
    order = torch.arange(head_dim)
    order[:num_rotated] = order[:num_rotated].view(-1, 2).T.reshape(-1)
    heads = rows.view(-1, head_dim, *rows.shape[1:])
    return heads[:, order.to(rows.device)].flatten(0, 1)
