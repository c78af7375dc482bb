"""The vision tower of the Qwen-VL family: Qwen2-VL, Qwen2.5-VL (windows) and Qwen3-VL (learned positions, deepstack).

    x = embed(patches) (+ learned positions)
    for each block:  x += attention(norm(x));  x += mlp(norm(x))
    embeddings = merger(x), and one more merger for each block of the deepstack

What tells the generations apart is a `TowerStyle` and numbers of `VisionArgs`. Knows nothing of prompts or caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from xllm_runtime.attention.segments import Segments
from xllm_runtime.layers.norm import RMSNorm
from xllm_runtime.layers.operations import Operations, select_operations
from xllm_runtime.layers.parameter import WeightTargets, whole_parameter
from xllm_runtime.layers.vision import ACTIVATIONS, LayerNorm, PatchEmbedding, PatchMerger, VisionAttention, VisionMLP
from xllm_runtime.models.vlm.patches import (
    Grid,
    frame_lengths,
    learned_positions,
    patchify,
    rotary_rows,
    window_order,
)
from xllm_runtime.models.vlm.vision_args import VisionArgs


@dataclass(frozen=True, slots=True)
class TowerStyle:
    """What differs between generations beside numbers: kinds of layers, and names in checkpoints."""

    has_rms_norm: bool
    mlp_names: tuple[str, ...]
    merger_names: tuple[str, str, str]
    has_patch_bias: bool
    has_block_bias: bool = True
    """Whether the linear layers of blocks have biases."""


QWEN2_STYLE = TowerStyle(False, ("fc1", "fc2"), ("ln_q", "mlp.0", "mlp.2"), False)
QWEN2_5_STYLE = TowerStyle(True, ("gate_proj", "up_proj", "down_proj"), ("ln_q", "mlp.0", "mlp.2"), False)
QWEN3_STYLE = TowerStyle(False, ("linear_fc1", "linear_fc2"), ("norm", "linear_fc1", "linear_fc2"), True)


class QwenVisionBlock(nn.Module):
    """Attention and feed-forward network, each normed before and added after."""

    def __init__(self, args: VisionArgs, style: TowerStyle, dtype: torch.dtype, operations: Operations) -> None:
        super().__init__()
        size, has_bias = args.hidden_size, style.has_block_bias
        self.norm1 = _norm(args, size, style, dtype, operations)
        self.norm2 = _norm(args, size, style, dtype, operations)
        self.attn = VisionAttention(size, args.num_heads, dtype, operations, has_bias=has_bias)
        activation = ACTIVATIONS[args.activation]
        self.mlp = VisionMLP(
            size, args.intermediate_size, style.mlp_names, activation, dtype, operations, has_bias=has_bias
        )

    def forward(self, x: torch.Tensor, segments: Segments, rotary_table: torch.Tensor) -> None:
        """Change `x` [P, size] in place."""
        y = self.attn(self.norm1(x), segments, rotary_table)
        self.norm2.add(y, x)
        x += self.mlp(y)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.norm1.weight_targets(f"{prefix}.norm1")
        yield from self.norm2.weight_targets(f"{prefix}.norm2")
        yield from self.attn.weight_targets(f"{prefix}.attn")
        yield from self.mlp.weight_targets(f"{prefix}.mlp")


class QwenVisionTower(nn.Module):
    """See the module. Built under a device context, as every model is."""

    def __init__(self, args: VisionArgs, style: TowerStyle, dtype: torch.dtype) -> None:
        super().__init__()
        self._args = args
        operations = select_operations(dtype, torch.get_default_device())
        kernel = (args.temporal_patch_size, args.patch_size, args.patch_size)
        self.patch_embed = PatchEmbedding(kernel, args.hidden_size, has_bias=style.has_patch_bias, dtype=dtype)
        self.blocks = nn.ModuleList(QwenVisionBlock(args, style, dtype, operations) for _ in range(args.depth))
        self.merger = self._merger(style, dtype, operations, is_norm_last=False)
        self.deepstack = nn.ModuleList(
            self._merger(style, dtype, operations, is_norm_last=True) for _ in args.deepstack_blocks
        )
        self.pos_embed: nn.Parameter | None = None
        if args.num_positions:
            table = torch.empty(args.num_positions, args.hidden_size, dtype=dtype)
            self.pos_embed = nn.Parameter(table, requires_grad=False)

    @property
    def num_levels(self) -> int:
        """See `VisionLanguageModel.num_levels`."""
        return 1 + len(self._args.deepstack_blocks)

    def forward(self, frames: Sequence[torch.Tensor], grids: Sequence[Grid]) -> list[torch.Tensor]:
        """Encode items, each float32 [frames, 3, H, W]: one [P / merge_unit, num_levels * out_size] an item."""
        args = self._args
        patches = [patchify(item, args.patch_size, args.temporal_patch_size, args.merge_size) for item in frames]
        x = self.patch_embed(torch.cat(patches))
        table = rotary_rows(grids, args.merge_size, args.head_dim, args.rope_theta, x.device)
        if self.pos_embed is not None:
            side = round(args.num_positions**0.5)
            x = x + learned_positions(self.pos_embed, grids, args.merge_size, side)
        levels = self._run_windowed(x, grids, table) if args.window_size else self._run(x, grids, table)
        sizes = [t * h * w // args.merge_unit for t, h, w in grids]
        return list(torch.split(levels, sizes))

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.patch_embed.weight_targets(f"{prefix}.patch_embed.proj")
        for index, block in enumerate(self.blocks):
            yield from block.weight_targets(f"{prefix}.blocks.{index}")  # type: ignore[operator]
        yield from self.merger.weight_targets(f"{prefix}.merger")
        for index, merger in enumerate(self.deepstack):
            yield from merger.weight_targets(f"{prefix}.deepstack_merger_list.{index}")  # type: ignore[operator]
        if self.pos_embed is not None:
            yield whole_parameter(f"{prefix}.pos_embed.weight", self, "pos_embed")

    def _run(self, x: torch.Tensor, grids: Sequence[Grid], table: torch.Tensor) -> torch.Tensor:
        segments, deep = Segments.of(frame_lengths(grids), x.device), []
        for index, block in enumerate(self.blocks):
            block(x, segments, table)
            if index in self._args.deepstack_blocks:
                deep.append(self.deepstack[self._args.deepstack_blocks.index(index)](x))
        return torch.cat([self.merger(x), *deep], -1) if deep else self.merger(x)

    def _run_windowed(self, x: torch.Tensor, grids: Sequence[Grid], table: torch.Tensor) -> torch.Tensor:
        """Compute windows where blocks see no more; whole frames, in their own order, where they do."""
        args = self._args
        window = args.window_size // args.patch_size // args.merge_size
        units, window_lengths = window_order(grids, args.merge_size, window)
        by_window = _rows_of(units, args.merge_unit, x.device)
        by_frame = torch.argsort(by_window)
        is_windowed = False
        segments = {
            False: Segments.of(frame_lengths(grids), x.device),
            True: Segments.of(window_lengths, x.device),
        }
        tables = {False: table, True: table[by_window]}
        for index, block in enumerate(self.blocks):
            wants_windows = index not in args.full_attention_blocks
            if wants_windows != is_windowed:
                x, is_windowed = x[by_window if wants_windows else by_frame], wants_windows
            block(x, segments[is_windowed], tables[is_windowed])
        output: torch.Tensor = self.merger(x[by_frame] if is_windowed else x)
        return output

    def _merger(
        self, style: TowerStyle, dtype: torch.dtype, operations: Operations, *, is_norm_last: bool
    ) -> PatchMerger:
        args = self._args
        norm = _norm(args, args.hidden_size * (args.merge_unit if is_norm_last else 1), style, dtype, operations)
        sizes = (args.hidden_size, args.merge_unit, args.out_size)
        return PatchMerger(norm, sizes, style.merger_names, dtype, is_norm_last=is_norm_last)


def _norm(
    args: VisionArgs, size: int, style: TowerStyle, dtype: torch.dtype, operations: Operations
) -> LayerNorm | RMSNorm:
    return (
        RMSNorm(size, args.norm_eps, dtype, operations) if style.has_rms_norm else LayerNorm(size, args.norm_eps, dtype)
    )


def _rows_of(units: np.ndarray, unit: int, device: torch.device) -> torch.Tensor:
    """Return the patches, int64 [P], of merge units in order."""
    rows = units[:, None] * unit + np.arange(unit)
    return torch.from_numpy(rows.reshape(-1)).to(device)
