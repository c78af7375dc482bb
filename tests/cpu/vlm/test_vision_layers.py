"""Parts of vision towers in numbers: widened layers, attention within segments, whole towers beside float64."""

from __future__ import annotations

import pytest
import torch

from support.vision_towers import random_tower
from xllm_framework.errors import InvalidConfig, UnsupportedModel
from xllm_runtime.attention.segments import Segments, select_segment_attention
from xllm_runtime.layers import torch_operations
from xllm_runtime.layers.vision import ACTIVATIONS, VisionMLP, segment_spec


@pytest.mark.parametrize("names", [("fc1", "fc2"), ("gate_proj", "up_proj", "down_proj")])
@pytest.mark.parametrize("has_bias", [False, True])
def test_widening_the_inner_layer_changes_no_result(names: tuple[str, ...], has_bias: bool) -> None:
    torch.manual_seed(0)
    mlp = VisionMLP(12, 21, names, ACTIVATIONS["silu"], torch.float32, torch_operations, has_bias=has_bias)
    for parameter in mlp.parameters():
        parameter.data.normal_()
    x = torch.randn(5, 12)
    expected = mlp(x)
    mlp.align()
    assert mlp.second.weight.shape == (12, 24)
    torch.testing.assert_close(mlp(x), expected)


def test_the_inner_layer_is_on_the_device_of_its_rows() -> None:
    """Whatever device that is: memory that is used again is a CPU's alone."""
    with torch.device("meta"):
        mlp = VisionMLP(
            12, 21, ("gate_proj", "up_proj", "down_proj"), ACTIVATIONS["silu"], torch.float32, torch_operations
        )
        y = mlp(torch.empty(5, 12))
    assert y.shape == (5, 12)
    assert y.device.type == "meta"


@pytest.mark.parametrize("lengths", [[3], [1, 4, 4, 4, 9], [5, 2, 5]], ids=str)
def test_rows_see_their_own_segment_alone(lengths: list[int]) -> None:
    torch.manual_seed(0)
    three = torch.randn(sum(lengths), 3, 2, 8, dtype=torch.float64).unbind(1)
    segments = Segments.of(lengths, torch.device("cpu"))
    assert segments.starts.tolist() == [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    assert (segments.sizes.tolist(), segments.longest) == (lengths, max(lengths))
    parts = zip(*(rows.split(lengths) for rows in three), strict=True)
    expected = [
        torch.einsum("hqn,nhd->qhd", (torch.einsum("qhd,nhd->hqn", q, k) * 8**-0.5).softmax(-1), v) for q, k, v in parts
    ]
    found = select_segment_attention(segment_spec(2, 8, torch.float64)).forward(*three, segments)
    assert found.is_contiguous()
    torch.testing.assert_close(found, torch.cat(expected))


def test_segment_attention_is_chosen_with_reasons() -> None:
    spec = segment_spec(2, 80, torch.float32)
    assert select_segment_attention(spec).name == "sdpa"
    with pytest.raises(UnsupportedModel, match=r"hopper: .* not on cpu"):
        select_segment_attention(spec, "hopper")
    with pytest.raises(InvalidConfig, match="choose auto, hopper, sdpa"):
        select_segment_attention(spec, "flash")


@pytest.mark.parametrize("kind", ["qwen2", "qwen2_5", "qwen3", "glm", "siglip"])
def test_towers_in_bfloat16_follow_float64(kind: str) -> None:
    torch.manual_seed(0)
    fast, truth, pictures = random_tower(kind, torch.device("cpu"))
    with torch.inference_mode():
        found, expected = fast(pictures).double(), truth(pictures)
    assert (found - expected).norm() / expected.norm() < 3e-2
