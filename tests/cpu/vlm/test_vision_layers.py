"""Parts of vision towers that only a GPU needs, in numbers."""

from __future__ import annotations

import pytest
import torch

from xllm_runtime.layers.vision import ACTIVATIONS, VisionMLP


@pytest.mark.parametrize("names", [("fc1", "fc2"), ("gate_proj", "up_proj", "down_proj")])
@pytest.mark.parametrize("has_bias", [False, True])
def test_widening_the_inner_layer_changes_no_result(names: tuple[str, ...], has_bias: bool) -> None:
    torch.manual_seed(0)
    mlp = VisionMLP(12, 21, names, ACTIVATIONS["silu"], torch.float32, has_bias=has_bias)
    for parameter in mlp.parameters():
        parameter.data.normal_()
    x = torch.randn(5, 12)
    expected = mlp(x)
    mlp.align()
    assert mlp.second.weight.shape == (12, 24)
    torch.testing.assert_close(mlp(x), expected)
