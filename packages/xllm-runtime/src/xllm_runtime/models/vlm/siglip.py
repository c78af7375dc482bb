"""The SigLIP vision tower: pictures of one size, learned positions, every patch sees all others of its picture.

Knows nothing of what becomes of its features. Source: SigLIP (Zhai et al., 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from xllm_framework.model.config_fields import ConfigFields
from xllm_runtime.attention.segments import Segments, select_segment_attention
from xllm_runtime.layers.embedding import Embedding
from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.operations import Operations, select_operations
from xllm_runtime.layers.parameter import WeightTargets
from xllm_runtime.layers.vision import ACTIVATIONS, LayerNorm, PatchEmbedding, VisionMLP, segment_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class SiglipArgs:
    """The numbers of a tower."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    image_size: int
    patch_size: int
    activation: str
    norm_eps: float

    @property
    def side(self) -> int:
        """Patches of a picture's side."""
        return self.image_size // self.patch_size


def siglip_args(raw: dict[str, Any]) -> SiglipArgs:
    """Return the arguments of a tower from `vision_config` in config.json; raises `ModelLoadError` for a wrong field."""
    config = ConfigFields(raw, "vision_config in config.json")
    return SiglipArgs(
        num_layers=config.integer("num_hidden_layers", default=12),
        hidden_size=config.integer("hidden_size", default=768),
        intermediate_size=config.integer("intermediate_size", default=3072),
        num_heads=config.integer("num_attention_heads", default=12),
        image_size=config.integer("image_size", default=224),
        patch_size=config.integer("patch_size", default=16),
        activation=config.text("hidden_act", default="gelu_pytorch_tanh"),
        norm_eps=config.number("layer_norm_eps", default=1e-6),
    )


class SiglipLayer(nn.Module):
    """Attention and feed-forward network, each normed before and added after."""

    def __init__(self, args: SiglipArgs, dtype: torch.dtype, operations: Operations) -> None:
        super().__init__()
        size = args.hidden_size
        self.layer_norm1 = LayerNorm(size, args.norm_eps, dtype)
        self.layer_norm2 = LayerNorm(size, args.norm_eps, dtype)
        names = [(f"{name}_proj", size) for name in ("q", "k", "v")]
        self.qkv = Linear(size, names, has_bias=True, dtype=dtype)
        self.out_proj = Linear(size, [("out_proj", size)], has_bias=True, dtype=dtype)
        activation = ACTIVATIONS[args.activation]
        self.mlp = VisionMLP(size, args.intermediate_size, ("fc1", "fc2"), activation, dtype, operations)
        self._num_heads = args.num_heads
        self._attention = select_segment_attention(segment_spec(args.num_heads, size // args.num_heads, dtype))

    def forward(self, x: torch.Tensor, segments: Segments) -> None:
        """Change `x` [P, size] in place; a patch sees its segment."""
        query, key, value = self.qkv(self.layer_norm1(x)).view(len(x), 3, self._num_heads, -1).unbind(1)
        y = self.out_proj(self._attention.forward(query, key, value, segments).flatten(1))
        self.layer_norm2.add(y, x)
        x += self.mlp(y)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.layer_norm1.weight_targets(f"{prefix}.layer_norm1")
        yield from self.layer_norm2.weight_targets(f"{prefix}.layer_norm2")
        yield from self.qkv.weight_targets(f"{prefix}.self_attn")
        yield from self.out_proj.weight_targets(f"{prefix}.self_attn")
        yield from self.mlp.weight_targets(f"{prefix}.mlp")


class SiglipTower(nn.Module):
    """The features of the last of `num_layers` layers, before any norm behind it."""

    def __init__(self, args: SiglipArgs, num_layers: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._args = args
        kernel = (args.patch_size, args.patch_size)
        self.patch_embedding = PatchEmbedding(kernel, args.hidden_size, has_bias=True, dtype=dtype)
        self.position_embedding = Embedding(args.side**2, args.hidden_size, dtype)
        operations = select_operations(dtype, torch.get_default_device())
        self.layers = nn.ModuleList(SiglipLayer(args, dtype, operations) for _ in range(num_layers))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Float32 [N, 3, image_size, image_size] -> [N, side^2, size]."""
        side, patch = self._args.side, self._args.patch_size
        cut = pictures[:, :, : side * patch, : side * patch].reshape(len(pictures), 3, side, patch, side, patch)
        x: torch.Tensor = self.patch_embedding(cut.permute(0, 2, 4, 1, 3, 5).reshape(len(pictures) * side * side, -1))
        x = (x.view(len(pictures), side * side, -1) + self.position_embedding.weight).flatten(0, 1)
        segments = Segments.of([side * side] * len(pictures), x.device)
        for layer in self.layers:
            layer(x, segments)
        return x.view(len(pictures), side * side, -1)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.patch_embedding.weight_targets(f"{prefix}.embeddings.patch_embedding")
        yield from self.position_embedding.weight_targets(f"{prefix}.embeddings.position_embedding")
        for index, layer in enumerate(self.layers):
            yield from layer.weight_targets(f"{prefix}.encoder.layers.{index}")  # type: ignore[operator]
