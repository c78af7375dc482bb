"""Makes a language model of the Llama family compute beams. Knows nothing of searches or of how tokens are chosen."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from xllm_framework.errors import UnsupportedModel
from xllm_runtime.attention.backend import AttentionBackend, AttentionSpec
from xllm_runtime.attention.beams import BeamAttention
from xllm_runtime.models.interface import CausalLM
from xllm_runtime.models.llm.llama import LlamaAttention


def let_attend_beams(model: CausalLM) -> None:
    """Put `BeamAttention` before the attention of every layer of `model`.

    Raises:
        UnsupportedModel: its layers are of another kind, or attend in a way that beams cannot.
    """
    layers = (
        [module for module in model.modules() if isinstance(module, LlamaAttention)]
        if isinstance(model, nn.Module)
        else []
    )
    if not layers or len(layers) != len(model.kv_cache_shapes()):
        raise UnsupportedModel(f"The rec backend cannot search with {model.args.architecture} in this implementation.")
    for index, layer in enumerate(layers):
        layer.wrap_attention(partial(_beam_attention, layer=index))


def _beam_attention(inner: AttentionBackend, spec: AttentionSpec, *, layer: int) -> AttentionBackend:
    reasons = BeamAttention.explain(spec)
    if reasons:
        raise UnsupportedModel(f"Layer {layer} cannot attend beams: the rec backend {', '.join(reasons)}.")
    return BeamAttention(inner, spec, layer)


def beam_kv(
    model: CausalLM, num_rounds: int, num_rows: int, device: torch.device
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return room for the KV of beams: (K, V) of each layer, [num_rounds, num_rows, num_kv_heads, head_dim]."""
    return [
        (
            torch.zeros(num_rounds, num_rows, shape.num_kv_heads, shape.head_dim, dtype=shape.dtype, device=device),
            torch.zeros(num_rounds, num_rows, shape.num_kv_heads, shape.head_dim, dtype=shape.dtype, device=device),
        )
        for shape in model.kv_cache_shapes()
    ]
