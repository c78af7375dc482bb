"""Blocks whose products are the CPU's kernels' compute what torch's products do, call after call, for pictures of any sizes."""

from __future__ import annotations

import pytest
import torch

from support.vision_towers import vision_args
from xllm_runtime.layers.packed_linear import PackedLinear
from xllm_runtime.models.vlm.qwen_tower import QWEN2_5_STYLE, QWEN2_STYLE, QWEN3_STYLE, QwenVisionTower, TowerStyle
from xllm_runtime.models.vlm.vision_args import VisionArgs
from xllm_runtime.worker.tower_loading import pack_blocks

KINDS = {
    "gated, in windows": (
        vision_args(intermediate_size=432, window_size=56, full_attention_blocks=(1,)),
        QWEN2_5_STYLE,
        12,
    ),
    "gated, an inner size that no tile divides": (vision_args(intermediate_size=430), QWEN2_5_STYLE, 9),
    "quick GELU": (vision_args(activation="quick_gelu", intermediate_size=640), QWEN2_STYLE, 12),
    "GELU at the end of the product": (
        vision_args(hidden_size=288, activation="gelu_pytorch_tanh", intermediate_size=432, num_positions=64),
        QWEN3_STYLE,
        12,
    ),
}


@pytest.mark.parametrize(("args", "style", "num_packed"), KINDS.values(), ids=KINDS.keys())
def test_packed_blocks_compute_the_same(args: VisionArgs, style: TowerStyle, num_packed: int) -> None:
    torch.manual_seed(0)
    tower = QwenVisionTower(args, style, torch.float32)
    for parameter in tower.parameters():
        parameter.data.normal_(0, 0.05)
    calls = [[(84, 140), (112, 56)], [(56, 56)], [(84, 140)]]
    pictures = [[torch.randn(1, 3, *side) for side in sides] for sides in calls]

    def encode() -> list[torch.Tensor]:
        grids = [[(1, height // 14, width // 14) for height, width in sides] for sides in calls]
        return [torch.cat(tower(given, grid)) for given, grid in zip(pictures, grids, strict=True)]

    with torch.inference_mode():
        expected = encode()
        pack_blocks(tower)
        assert sum(isinstance(module, PackedLinear) for module in tower.modules()) == num_packed
        for found, wanted in zip(encode(), expected, strict=True):
            torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
