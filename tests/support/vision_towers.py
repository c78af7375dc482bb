"""Random vision towers of every family, twice: in bfloat16 as a device computes them, and in float64 by torch alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from xllm_runtime.models.vlm import qwen_tower
from xllm_runtime.models.vlm.glm_tower import GlmVisionTower
from xllm_runtime.models.vlm.siglip import SiglipArgs, SiglipTower
from xllm_runtime.models.vlm.vision_args import VisionArgs

Encode = Callable[[list[torch.Tensor]], torch.Tensor]
SIDES = [(84, 140), (112, 56), (84, 140)]
"""Pixels of the pictures, whole merge units of 28."""


def vision_args(**changes: Any) -> VisionArgs:
    """Return a small tower's arguments."""
    args = VisionArgs(
        depth=3,
        hidden_size=320,
        intermediate_size=430,
        num_heads=4,
        out_size=256,
        patch_size=14,
        temporal_patch_size=2,
        merge_size=2,
        activation="silu",
    )
    return replace(args, **changes)


def _tower(kind: str, dtype: torch.dtype) -> nn.Module:
    if kind == "qwen2":
        args = vision_args(activation="quick_gelu", intermediate_size=640)
        return qwen_tower.QwenVisionTower(args, qwen_tower.QWEN2_STYLE, dtype)
    if kind == "qwen2_5":
        args = vision_args(window_size=56, full_attention_blocks=(1,))
        return qwen_tower.QwenVisionTower(args, qwen_tower.QWEN2_5_STYLE, dtype)
    if kind == "qwen3":
        args = vision_args(hidden_size=288, activation="gelu_pytorch_tanh", num_positions=64, deepstack_blocks=(0,))
        return qwen_tower.QwenVisionTower(args, qwen_tower.QWEN3_STYLE, dtype)
    if kind == "glm":
        return GlmVisionTower(vision_args(hidden_size=512, num_positions=64, merger_size=344), dtype)
    siglip = SiglipArgs(
        num_layers=3, hidden_size=288, intermediate_size=432, num_heads=4, image_size=84, patch_size=14,
        activation="gelu_pytorch_tanh", norm_eps=1e-6,
    )  # fmt: skip
    return SiglipTower(siglip, siglip.num_layers, dtype)


def random_tower(kind: str, device: torch.device) -> tuple[Encode, Encode, list[torch.Tensor]]:
    """Return (in bfloat16, in float64, pictures) of one of qwen2, qwen2_5, qwen3, glm, siglip."""
    with torch.device(device):
        fast, truth = _tower(kind, torch.bfloat16), _tower(kind, torch.float64)
    parameters = truth.named_parameters()
    for (name, wide), narrow in zip(parameters, fast.parameters(), strict=True):
        is_factor = wide.dim() == 1 and name.endswith("weight")
        narrow.data.copy_(torch.randn_like(wide) * (0.1 if wide.dim() == 1 else wide.flatten(1).shape[1] ** -0.5))
        narrow.data += float(is_factor)
        wide.data.copy_(narrow.data)
    sides = [(84, 84)] * 2 if kind == "siglip" else SIDES
    pictures = [torch.randn(1, 3, *side, device=device) for side in sides]

    def encoded_by(tower: nn.Module) -> Encode:
        def encode(given: list[torch.Tensor]) -> torch.Tensor:
            if isinstance(tower, SiglipTower):
                features: torch.Tensor = tower(torch.cat(given))
                return features.flatten(0, 1)
            grids = [(1, height // 14, width // 14) for height, width in sides]
            return torch.cat(tower(given, grids))

        return encode

    return encoded_by(fast), encoded_by(truth), pictures
