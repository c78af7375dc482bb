"""What vision towers compute on a GPU against float64: attention within segments, and the passes between products, outputs poisoned."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.gpu
LENGTHS = {"windows": [4, 16, 16, 64, 64, 64, 64], "frames": [1, 130, 257, 1024], "one": [333], "equal": [256, 256]}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def error_of(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


def poison(num_bytes: int) -> None:
    """Leave NaN in the memory that the next tensor of this size is made of."""
    torch.empty(num_bytes, dtype=torch.uint8, device="cuda").fill_(0xFF)


@pytest.mark.parametrize("name", ["hopper", "sdpa"])
@pytest.mark.parametrize("head_dim", [64, 72, 80, 128])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_segments_equal_float64(name, head_dim, lengths, dtype):
    from xllm_runtime.attention import AttentionSpec
    from xllm_runtime.attention.segments import Segments, select_segment_attention

    heads, device = 4, torch.device("cuda", 0)
    spec = AttentionSpec(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        dtype=dtype,
        device=device,
    )
    three = normal(sum(lengths), 3, heads, head_dim).to(dtype).unbind(1)  # strided rows, as a fused product leaves them
    expected = torch.cat(
        [
            torch.einsum("hqn,nhd->qhd", (torch.einsum("qhd,nhd->hqn", q, k) * spec.scale).softmax(-1), v)
            for q, k, v in zip(*(rows.double().split(lengths) for rows in three), strict=True)
        ]
    )
    backend = select_segment_attention(spec, name)
    poison(2 * expected.numel())
    assert error_of(backend.forward(*three, Segments.of(lengths, device)), expected) < 1e-2


def test_auto_takes_the_kernel_and_says_why_not(caplog):
    from xllm_runtime.attention.segments import select_segment_attention
    from xllm_runtime.layers.vision import segment_spec

    with torch.device("cuda"):
        assert select_segment_attention(segment_spec(16, 80, torch.bfloat16)).name == "hopper"
        assert select_segment_attention(segment_spec(16, 96, torch.bfloat16)).name == "sdpa"
        assert select_segment_attention(segment_spec(16, 80, torch.float32)).name == "sdpa"
    assert "64, 72, 80 or 128" in caplog.text
    assert "bfloat16" in caplog.text


@pytest.mark.parametrize("size", [1152, 1280, 4096, 5120])
def test_add_layer_norm(size):
    from xllm_runtime.layers.vision_operations import add_layer_norm

    x, residual, weight, bias = normal(77, size), normal(77, size) + 3, normal(size), normal(size)
    total = (x.double() + residual.double()).bfloat16()
    expected = F.layer_norm(total.double(), (size,), weight.double(), bias.double(), 1e-6)
    add_layer_norm(x, residual, weight, bias, 1e-6)
    assert torch.equal(residual, total)
    assert error_of(x, expected) < 5e-3


def test_activations():
    from xllm_runtime.layers.vision_operations import gelu_tanh_of_product, quick_gelu

    x, weight, bias = normal(301, 1152), normal(4304, 1152) * 0.05, normal(4304)
    poison(2 * x.numel())
    wide = x.double()
    assert error_of(quick_gelu(x), wide * torch.sigmoid(1.702 * wide)) < 5e-3
    expected = F.gelu(F.linear(wide, weight.double(), bias.double()), approximate="tanh")
    assert error_of(gelu_tanh_of_product(x, weight, bias), expected) < 1e-2


@pytest.mark.parametrize("kind", ["qwen2", "qwen2_5", "qwen3", "glm", "siglip"])
def test_towers_equal_torch(kind):
    """In bfloat16 with the kernels, beside float64 by torch alone."""
    from support.vision_towers import random_tower

    fast, truth, inputs = random_tower(kind, torch.device("cuda", 0))
    with torch.inference_mode():
        found, expected = fast(inputs), truth(inputs)
    assert error_of(found, expected) < 3e-2
