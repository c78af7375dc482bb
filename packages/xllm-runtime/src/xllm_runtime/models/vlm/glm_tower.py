"""The vision tower of GLM-4.1V to 4.6V: blocks as Qwen2.5-VL's without windows, between norms and a gated merger.

    x = norm(embed(patches)) + learned positions, stretched over each picture
    for each block:  x += attention(norm(x));  x += mlp(norm(x))
    embeddings = merger(downsample(norm(x))), one of each merge unit

Knows nothing of prompts or caches. Source: GLM-4.1V-Thinking (2025), as transformers computes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from xllm_runtime.attention.segments import Segments
from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.norm import RMSNorm
from xllm_runtime.layers.operations import Operations, select_operations
from xllm_runtime.layers.parameter import WeightTargets, whole_parameter
from xllm_runtime.layers.vision import ACTIVATIONS, LayerNorm, PatchEmbedding, VisionMLP
from xllm_runtime.models.vlm.patches import Grid, frame_lengths, patchify, rotary_rows, sampled_positions
from xllm_runtime.models.vlm.qwen_tower import QwenVisionBlock, TowerStyle
from xllm_runtime.models.vlm.vision_args import VisionArgs

GLM_STYLE = TowerStyle(True, ("gate_proj", "up_proj", "down_proj"), ("", "", ""), True, has_block_bias=False)
MERGER_NORM_EPS = 1e-5


class GlmPatchMerger(nn.Module):
    """gated(gelu(norm(proj(x)))) over embeddings of the language model's size."""

    def __init__(self, args: VisionArgs, dtype: torch.dtype, operations: Operations) -> None:
        super().__init__()
        size = args.out_size
        self.proj = Linear(size, [("proj", size)], has_bias=False, dtype=dtype)
        self.norm = LayerNorm(size, MERGER_NORM_EPS, dtype)
        activation = ACTIVATIONS[args.activation]
        self.mlp = VisionMLP(size, args.merger_size, GLM_STYLE.mlp_names, activation, dtype, operations, has_bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[E, out_size] -> [E, out_size]."""
        output: torch.Tensor = self.mlp(F.gelu(self.norm(self.proj(x))))
        return output

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.proj.weight_targets(prefix)
        yield from self.norm.weight_targets(f"{prefix}.post_projection_norm")
        yield from self.mlp.weight_targets(prefix)


class GlmVisionTower(nn.Module):
    """See the module. Built under a device context, as every model is."""

    num_levels = 1

    def __init__(self, args: VisionArgs, dtype: torch.dtype) -> None:
        super().__init__()
        self._args = args
        operations = select_operations(dtype, torch.get_default_device())
        size, unit = args.hidden_size, args.merge_size
        kernel = (args.temporal_patch_size, args.patch_size, args.patch_size)
        self.patch_embed = PatchEmbedding(kernel, size, has_bias=True, dtype=dtype)
        self.post_conv_layernorm = RMSNorm(size, args.norm_eps, dtype, operations)
        self.positions = nn.Parameter(torch.empty(args.num_positions, size, dtype=dtype), requires_grad=False)
        self.blocks = nn.ModuleList(QwenVisionBlock(args, GLM_STYLE, dtype, operations) for _ in range(args.depth))
        self.post_layernorm = RMSNorm(size, args.norm_eps, dtype, operations)
        self.downsample = nn.Parameter(torch.empty(args.out_size, size, unit, unit, dtype=dtype), requires_grad=False)
        self.downsample_bias = nn.Parameter(torch.empty(args.out_size, dtype=dtype), requires_grad=False)
        self.merger = GlmPatchMerger(args, dtype, operations)

    def forward(self, frames: Sequence[torch.Tensor], grids: Sequence[Grid]) -> list[torch.Tensor]:
        """Encode items, each float32 [frames, 3, H, W]: one [P / merge_unit, out_size] an item."""
        args = self._args
        patches = [patchify(item, args.patch_size, args.temporal_patch_size, args.merge_size) for item in frames]
        x = self.post_conv_layernorm(self.patch_embed(torch.cat(patches)))
        x = x + sampled_positions(self.positions, grids, args.merge_size, round(args.num_positions**0.5))
        table = rotary_rows(grids, args.merge_size, args.head_dim, args.rope_theta, x.device)
        segments = Segments.of(frame_lengths(grids), x.device)
        for block in self.blocks:
            block(x, segments, table)
        units = self.post_layernorm(x).view(-1, args.merge_unit, args.hidden_size)
        joined = F.linear(units.transpose(1, 2).flatten(1), self.downsample.flatten(1), self.downsample_bias)
        return list(torch.split(self.merger(joined), [t * h * w // args.merge_unit for t, h, w in grids]))

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.patch_embed.weight_targets(f"{prefix}.patch_embed.proj")
        yield from self.post_conv_layernorm.weight_targets(f"{prefix}.post_conv_layernorm")
        yield whole_parameter(f"{prefix}.embeddings.position_embedding.weight", self, "positions")
        for index, block in enumerate(self.blocks):
            yield from block.weight_targets(f"{prefix}.blocks.{index}")  # type: ignore[operator]
        yield from self.post_layernorm.weight_targets(f"{prefix}.post_layernorm")
        yield whole_parameter(f"{prefix}.downsample.weight", self, "downsample")
        yield whole_parameter(f"{prefix}.downsample.bias", self, "downsample_bias")
        yield from self.merger.weight_targets(f"{prefix}.merger")
