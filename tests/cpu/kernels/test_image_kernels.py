"""Kernels of diffusion transformers beside float64: strided, in both types, masked, and what they refuse by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xllm_kernels import ops

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


def random(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert (got.double() - expected).abs().max() <= TOLERANCE[got.dtype] * max(1.0, float(expected.abs().max()))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3), st.integers(1, 5), st.sampled_from([1, 3, 16, 31, 64, 129, 256]), DTYPES, st.integers(0, 99))
def test_norm_gate_and_gelu(batch: int, tokens: int, size: int, dtype: torch.dtype, seed: int) -> None:
    hidden = random(batch, tokens + 2, size, dtype=dtype, seed=seed) * 3 + 1
    rows = random(batch, 7 * size, dtype=dtype, seed=seed + 1)
    x, shift, scale, gate = hidden[:, 2:], rows[:, size : 2 * size], rows[:, 2 * size : 3 * size], rows[:, -size:]
    normal = torch.nn.functional.layer_norm(x.double(), (size,), eps=1e-6)
    out = ops.modulated_norm(x, shift, scale, 1e-6)
    assert_near(out, normal * (1 + scale.double()[:, None]) + shift.double()[:, None])
    before = hidden.clone()
    total = x.double() + gate.double()[:, None] * out.double()
    ops.add_gated(x, out, gate)
    assert_near(x, total)
    wide = torch.full((batch, tokens, size + 3), 7.0, dtype=dtype)
    ops.gelu(x, wide[..., 3:])
    assert_near(wide[..., 3:], torch.nn.functional.gelu(x.double(), approximate="tanh"))
    assert torch.equal(hidden[:, :2], before[:, :2]), "what is not asked for is left alone"
    assert bool((wide[..., :3] == 7).all())


def attention_truth(
    streams: list[Any], num_heads: int, cos: Any, sin: Any, mask: torch.Tensor | None, first_query: int
) -> torch.Tensor:
    """Compute in float64 what `ops.joint_attention` does."""
    parts: list[list[torch.Tensor]] = [[], [], []]
    for qkv, *norms in streams:
        heads = qkv.double().view(*qkv.shape[:2], 3, num_heads, -1).unbind(2)
        for part, head in enumerate(heads):
            if part < 2 and norms[part] is not None:
                head = torch.nn.functional.rms_norm(head, head.shape[-1:], norms[part].double(), 1e-6)
            parts[part].append(head)
    query, key, value = (torch.cat(part, dim=1) for part in parts)
    if cos is not None:
        turns = torch.complex(cos.double(), sin.double())[:, None]
        query, key = (
            torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns).flatten(-2)
            for x in (query, key)
        )
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    seen = None if mask is None else mask.bool()[:, None, None]
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    return out.transpose(1, 2).flatten(2)[:, first_query:]


@settings(deadline=None, max_examples=60)
@given(
    batch=st.integers(1, 2),
    lengths=st.sampled_from([(1,), (7,), (130,), (1, 1), (5, 11), (33, 300)]),
    num_heads=st.integers(1, 2),
    head_size=st.sampled_from([2, 6, 16, 40, 64]),
    dtype=DTYPES,
    has_norm=st.booleans(),
    has_angles=st.booleans(),
    has_mask=st.booleans(),
    skips_first=st.booleans(),
)
def test_joint_attention(
    batch: int,
    lengths: tuple[int, ...],
    num_heads: int,
    head_size: int,
    dtype: torch.dtype,
    has_norm: bool,
    has_angles: bool,
    has_mask: bool,
    skips_first: bool,
) -> None:
    inner, num_tokens = num_heads * head_size, sum(lengths)
    streams = []
    for index, length in enumerate(lengths):
        qkv = random(batch, length + 1, 3 * inner + 8, dtype=dtype, seed=index)[:, 1:, 8:]
        norms = [random(head_size, dtype=dtype, seed=9 + part) if has_norm else None for part in range(2)]
        streams.append((qkv, *norms))
    angle = random(num_tokens, head_size // 2, dtype=torch.float32, seed=4)
    cos, sin = (angle.cos(), angle.sin()) if has_angles else (None, None)
    mask = None
    if has_mask:
        mask = (torch.rand(batch, num_tokens, generator=torch.Generator().manual_seed(5)) < 0.7).int()
        mask[:, -1] = 1
    first_query = lengths[0] if skips_first and len(lengths) > 1 else 0
    wide = torch.full((batch, num_tokens - first_query + 2, inner + 3), 7.0, dtype=dtype)
    out = wide[:, 1:-1, :inner]
    ops.joint_attention(streams, num_heads, cos=cos, sin=sin, mask=mask, first_query=first_query, out=out)
    assert_near(out, attention_truth(streams, num_heads, cos, sin, mask, first_query))
    assert bool((wide[:, 0] == 7).all())
    assert bool((wide[:, -1] == 7).all())
    assert bool((wide[..., inner:] == 7).all())


def test_a_rows_attention_does_not_depend_on_its_batch() -> None:
    qkv = random(3, 50, 3 * 32, dtype=torch.float32, seed=1)
    together = ops.joint_attention([(qkv, None, None)], 2)
    assert torch.equal(together[1:2], ops.joint_attention([(qkv[1:2], None, None)], 2))


def test_large_scores_stay_finite_and_nan_stays_nan() -> None:
    qkv = random(1, 300, 3 * 16, dtype=torch.float32, seed=1) * 1e4
    out = ops.joint_attention([(qkv, None, None)], 1)
    assert_near(out, attention_truth([(qkv, None, None)], 1, None, None, None, 0))
    qkv[0, 7, 0] = float("nan")
    out = ops.joint_attention([(qkv, None, None)], 1)
    assert bool(out[0, 7].isnan().all())
    assert bool(out[0, 8].isfinite().all())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"shift": torch.zeros(2, 7)}, "shift"),
        ({"scale": torch.zeros(1, 8)}, "scale"),
        ({"scale": torch.zeros(2, 8, dtype=torch.bfloat16)}, "scale"),
        ({"x": torch.zeros(2, 8)}, "x"),
        ({"x": torch.zeros(2, 8, 3).transpose(1, 2)}, "x"),
        ({"out": torch.zeros(2, 3, 9)}, "out"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, torch.Tensor], word: str) -> None:
    arguments = {"x": torch.zeros(2, 3, 8), "shift": torch.zeros(2, 8), "scale": torch.zeros(2, 8), **change}
    with pytest.raises((ValueError, TypeError), match=word):
        ops.modulated_norm(**arguments, eps=1e-6)


QKV = torch.zeros(1, 2, 24)


@pytest.mark.parametrize(
    ("streams", "options", "word"),
    [
        ([], {}, "streams"),
        ([(QKV, None, None)] * 3, {}, "streams"),
        ([(QKV, None)], {}, "streams"),
        ([(QKV, None, None)], {"num_heads": 3}, "qkv"),
        ([(QKV, None, None)], {"num_heads": 0}, "num_heads"),
        ([(QKV, None, torch.zeros(4))], {}, "k_norm"),
        ([(QKV, None, None), (torch.zeros(2, 2, 24), None, None)], {}, "qkv"),
        ([(QKV, None, None)], {"cos": torch.zeros(2, 4)}, "come together"),
        ([(QKV, None, None)], {"cos": torch.zeros(3, 4), "sin": torch.zeros(3, 4)}, "cos"),
        ([(QKV, None, None)], {"mask": torch.zeros(1, 2)}, "mask"),
        ([(QKV, None, None)], {"mask": torch.zeros(1, 3, dtype=torch.int32)}, "mask"),
        ([(QKV, None, None)], {"first_query": 3, "out": torch.zeros(1, 2, 8)}, "first_query"),
        ([(QKV, None, None)], {"out": torch.zeros(1, 2, 9)}, "out"),
    ],
)
def test_attention_that_does_not_fit_is_refused(streams: list[Any], options: dict[str, Any], word: str) -> None:
    arguments = {"num_heads": 1, "out": torch.zeros(1, 2, 8), **options}
    with pytest.raises((ValueError, TypeError), match=word):
        ops.joint_attention(streams, **arguments)
