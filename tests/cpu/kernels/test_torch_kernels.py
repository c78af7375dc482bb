"""The kernels on torch tensors: bfloat16 against the float32 reference, and torch's own kinds of tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.attention_cases import AttentionCase, attention_cases
from xllm_kernels import ops, reference

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.sampled_from([1, 7, 8, 64, 70, 576, 1000])
ROWS = st.sampled_from([0, 1, 5, 40])
HALF_STEP = 2.0**-8
"""Largest relative error of rounding to bfloat16."""


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def poison(*shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=torch.bfloat16)


def floats(tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().numpy()


def assert_rounded(actual: torch.Tensor, exact: np.ndarray, *, slack: float = 1.01, atol: float = 1e-6) -> None:
    assert actual.dtype == torch.bfloat16
    np.testing.assert_allclose(floats(actual), exact, rtol=HALF_STEP * slack, atol=atol)


@settings(deadline=None, max_examples=40)
@given(SEEDS, ROWS, SIZES)
def test_rms_norm(seed: int, rows: int, size: int) -> None:
    x, residual, weight = normal(seed, rows, size), normal(seed + 1, rows, size), normal(seed + 2, size)
    assert_rounded(
        ops.rms_norm(x, weight, 1e-5, poison(rows, size)), reference.rms_norm(floats(x), floats(weight), 1e-5)
    )
    total = residual + x
    expected = ops.rms_norm(total, weight, 1e-5)
    assert ops.add_rms_norm(x, residual, weight, 1e-5) is x
    assert torch.equal(residual, total)
    assert torch.equal(x, expected)


@settings(deadline=None, max_examples=40)
@given(SEEDS, ROWS, SIZES)
def test_silu_and_mul(seed: int, rows: int, size: int) -> None:
    x = normal(seed, rows, 2 * size) * 5
    assert_rounded(ops.silu_and_mul(x, poison(rows, size)), reference.silu_and_mul(floats(x)))


@settings(deadline=None, max_examples=40)
@given(SEEDS, ROWS, st.sampled_from([(1, 1, 8, 4), (9, 3, 64, 64), (2, 1, 80, 20), (3, 2, 96, 96)]))
def test_rotary_embedding(seed: int, rows: int, heads: tuple[int, int, int, int]) -> None:
    num_heads, num_kv_heads, head_dim, rotary_dim = heads
    query, key = normal(seed, rows, num_heads, head_dim), normal(seed + 1, rows, num_kv_heads, head_dim)
    angles = np.random.default_rng(seed).standard_normal((30, rotary_dim // 2), dtype=np.float32)
    cache = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    positions = np.random.default_rng(seed).integers(0, 30, rows)
    expected = reference.rotary_embedding(positions, floats(query), floats(key), cache)
    ops.rotary_embedding(torch.from_numpy(positions), query, key, torch.from_numpy(cache))
    assert_rounded(query, expected[0])
    assert_rounded(key, expected[1])


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(0, 30), st.sampled_from([(1, 8), (3, 64)]))
def test_write_kv(seed: int, rows: int, heads: tuple[int, int]) -> None:
    key, value = normal(seed, rows, *heads), normal(seed + 1, rows, *heads)
    slots = torch.randperm(48, generator=torch.Generator().manual_seed(seed))[:rows]
    slots[slots % 7 == 0] = -1
    caches = [torch.zeros(3, 16, *heads, dtype=torch.bfloat16) for _ in "kv"]
    expected = reference.write_kv(floats(key), floats(value), *[floats(cache) for cache in caches], slots.numpy())
    ops.write_kv(key, value, *caches, slots)
    for cache, wanted in zip(caches, expected, strict=True):
        assert np.array_equal(floats(cache), wanted)


def in_bfloat16(case: AttentionCase) -> tuple[list[object], np.ndarray]:
    """The call on torch tensors, and the exact result for the rounded inputs."""
    tensors = [torch.from_numpy(array) for array in case.arguments()[:6]]
    rounded = [tensor.bfloat16() for tensor in tensors[:3]]
    exact = reference.paged_attention(
        *[floats(tensor) for tensor in rounded], *case.arguments()[3:], sliding_window=case.sliding_window
    )
    return [*rounded, *tensors[3:], case.scale], exact


@settings(deadline=None, max_examples=80)
@given(attention_cases())
def test_paged_attention(case: AttentionCase) -> None:
    arguments, exact = in_bfloat16(case)
    out = ops.paged_attention(*arguments, sliding_window=case.sliding_window, out=poison(*case.query.shape))
    assert_rounded(out, exact, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(attention_cases(max_len=300), st.sampled_from([1, 17, 64]))
def test_batch_and_chunks_do_not_change_a_bit(case: AttentionCase, chunk: int) -> None:
    """Few rows read bfloat16 where it lies, many convert it once: the same bits."""
    together = ops.paged_attention(*in_bfloat16(case)[0], sliding_window=case.sliding_window)
    for sequence in range(len(case.seq_lens)):
        rows = case.rows(sequence)
        for first in range(rows.start, rows.stop, chunk):
            end = min(first + chunk, rows.stop)
            part = case.part(sequence, first - rows.start, end - rows.start)
            alone = ops.paged_attention(*in_bfloat16(part)[0], sliding_window=case.sliding_window)
            assert torch.equal(alone, together[first:end])


def test_rounding_is_to_nearest_even_and_keeps_nan() -> None:
    """The sum of two bfloat16 values needs more bits than one has; torch says how it must be rounded."""
    wide = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-12, 3.3e38, float("nan")] * 4)
    residual = wide.bfloat16()[None]
    x = (wide - wide.bfloat16().float()).bfloat16()[None]
    expected = residual + x
    ops.add_rms_norm(x, residual, torch.ones(20, dtype=torch.bfloat16), 1e-6)
    torch.testing.assert_close(residual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_and_inference_tensors(dtype: torch.dtype) -> None:
    weight = torch.nn.Parameter(torch.ones(16, dtype=dtype))
    with torch.inference_mode():
        x = torch.ones(2, 16, dtype=dtype)
        out = ops.rms_norm(x, weight, 1e-6)
    assert isinstance(out, torch.Tensor)
    assert out.dtype == dtype


def test_tensors_that_do_not_fit() -> None:
    weight = torch.ones(8)
    with pytest.raises(ValueError, match="x must be on the CPU"):
        ops.rms_norm(torch.empty(2, 8, device="meta"), weight, 1e-6, torch.empty(2, 8))
    with pytest.raises(TypeError, match="x must have elements of type"):
        ops.rms_norm(torch.ones(2, 8, dtype=torch.float16), weight, 1e-6)
    with pytest.raises(TypeError, match="weight must be bfloat16 as x is, not float32"):
        ops.rms_norm(torch.ones(2, 8, dtype=torch.bfloat16), weight, 1e-6)
    with pytest.raises(ValueError, match="x must be contiguous"):
        ops.rms_norm(torch.ones(8, 2).t(), weight, 1e-6)
