"""Triton's kernels of diffusion transformers beside float64, on strided rows, in both types."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
pytest.importorskip("triton")

from xllm_runtime.models.dit import operations as ours  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16]


def random(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


def assert_near(got: torch.Tensor, expected: torch.Tensor) -> None:
    error = (got.double() - expected).norm() / expected.norm()
    assert error < (1e-2 if got.dtype == torch.bfloat16 else 2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "tokens", "size"), [(1, 7, 96), (2, 130, 3072)])
def test_norm_and_gate(dtype: torch.dtype, batch: int, tokens: int, size: int) -> None:
    hidden = random(batch, tokens + 3, size, dtype=dtype, seed=1) * 3 + 1
    assert ours.triton_module("images", hidden) is not None
    x, (shift, scale, gate) = hidden[:, 3:], random(batch, 3 * size, dtype=dtype, seed=2).chunk(3, dim=1)
    normal = torch.nn.functional.layer_norm(x.double(), (size,), eps=1e-6)
    out = ours.modulated_norm(x, shift, scale)
    assert_near(out, normal * (1 + scale.double()[:, None]) + shift.double()[:, None])
    before, total = hidden[:, :3].clone(), x.double() + gate.double()[:, None] * out.double()
    ours.add_gated(x, out, gate)
    assert_near(x, total)
    assert torch.equal(hidden[:, :3], before)


def test_float16_stays_finite() -> None:
    x = torch.full((1, 2, 64), 60000.0, dtype=torch.float16, device="cuda")
    ours.add_gated(x, x.clone(), torch.ones(1, 64, dtype=torch.float16, device="cuda"))
    assert bool((x == 65504).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("num_streams", [1, 2])
def test_attention_and_what_stands_beside_it(
    dtype: torch.dtype, has_norm: bool, num_streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_heads, head_size, lengths = 3, 64, (33, 200)[:num_streams]
    inner, mlp_size = num_heads * head_size, 1100
    streams = []
    for index, length in enumerate(lengths):
        qkv = random(2, length, 3 * inner + mlp_size, dtype=dtype, seed=index)[..., : 3 * inner]
        norms = [random(head_size, dtype=dtype, seed=5 + part) if has_norm else None for part in range(2)]
        streams.append(ours.Projected(qkv, num_heads, *norms))
    angle = random(sum(lengths), head_size // 2, dtype=torch.float32, seed=9)
    rotary = ours.Rotary(angle.cos(), angle.sin())
    mlp = random(2, lengths[0], 3 * inner + mlp_size, dtype=dtype, seed=11)[..., 3 * inner :]
    attended = ours.joint_attention(streams, rotary)
    beside = ours.attention_beside_gelu(streams[0], mlp, None, None)
    monkeypatch.setattr(ours, "_gpu_kernels", lambda x: None)
    doubled = [
        ours.Projected(s.qkv.float(), num_heads, *(None if n is None else n.float() for n in (s.q_norm, s.k_norm)))
        for s in streams
    ]
    assert_near(attended, ours.joint_attention(doubled, rotary).double())
    assert_near(beside, ours.attention_beside_gelu(doubled[0], mlp.float(), None, None).double())
