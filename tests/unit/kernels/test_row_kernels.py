"""The kernels of single rows against their numpy references in float32, over random shapes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from xllm_kernels import ops, reference

SIZES = st.one_of(st.integers(1, 40), st.sampled_from([64, 70, 576, 1000, 4096]))
ROWS = st.sampled_from([0, 1, 2, 7, 33])
SEEDS = st.integers(0, 2**32 - 1)
EXACT_ENOUGH = {"rtol": 2e-6, "atol": 2e-6}


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@settings(deadline=None, max_examples=60)
@given(SEEDS, ROWS, SIZES, st.sampled_from([1e-6, 1e-5, 0.1]))
def test_rms_norm(seed: int, rows: int, size: int, eps: float) -> None:
    x, weight = normal(seed, rows, size), normal(seed + 1, size)
    out = np.full_like(x, np.nan)
    assert ops.rms_norm(x, weight, eps, out) is out
    np.testing.assert_allclose(out, reference.rms_norm(x, weight, eps), **EXACT_ENOUGH)
    assert np.array_equal(out, ops.rms_norm(x, weight, eps))
    assert np.array_equal(out, ops.rms_norm(x, weight, eps, x))


@settings(deadline=None, max_examples=60)
@given(SEEDS, ROWS, SIZES)
def test_add_rms_norm_is_the_two_steps(seed: int, rows: int, size: int) -> None:
    x, residual, weight = normal(seed, rows, size), normal(seed + 1, rows, size), normal(seed + 2, size)
    expected, total = reference.add_rms_norm(x, residual, weight, 1e-5)
    fused = x.copy()
    assert ops.add_rms_norm(fused, residual, weight, 1e-5) is fused
    assert np.array_equal(residual, total)
    np.testing.assert_allclose(fused, expected, **EXACT_ENOUGH)
    assert np.array_equal(fused, ops.rms_norm(residual, weight, 1e-5))


@settings(deadline=None, max_examples=60)
@given(SEEDS, ROWS, SIZES, st.sampled_from([1.0, 30.0]))
def test_silu_and_mul(seed: int, rows: int, size: int, spread: float) -> None:
    x = normal(seed, rows, 2 * size) * np.float32(spread)
    out = np.full((rows, size), np.nan, np.float32)
    assert ops.silu_and_mul(x, out) is out
    np.testing.assert_allclose(out, reference.silu_and_mul(x), rtol=4e-6, atol=1e-6)
    assert np.array_equal(out, ops.silu_and_mul(x))


def test_silu_of_extreme_values() -> None:
    gate = np.array([[0, 1e4, -1e4, 88.5, -88.5, -1e-30, np.nan]], np.float32)
    out = ops.silu_and_mul(np.concatenate([gate, np.ones_like(gate)], axis=1))
    np.testing.assert_allclose(out[0, :6], [0, 1e4, 0, 88.5, 0, 0], atol=1e-30)
    assert np.isnan(out[0, 6])


@settings(deadline=None, max_examples=60)
@given(
    SEEDS,
    ROWS,
    st.sampled_from([(1, 1, 2), (3, 1, 8), (9, 3, 64), (2, 2, 80), (1, 4, 96)]),
    st.sampled_from([1.0, 0.5, 0.25]),
    st.sampled_from([np.int32, np.int64]),
)
def test_rotary_embedding(
    seed: int, rows: int, heads: tuple[int, int, int], part: float, positions_type: type[np.signedinteger]
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    rotary_dim = max(2, int(head_dim * part) // 2 * 2)
    angles = normal(seed, 50, rotary_dim // 2)
    cache = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    positions = np.random.default_rng(seed).integers(0, 50, rows).astype(positions_type)
    query, key = normal(seed + 1, rows, num_heads, head_dim), normal(seed + 2, rows, num_kv_heads, head_dim)
    expected = reference.rotary_embedding(positions, query, key, cache)
    ops.rotary_embedding(positions, query, key, cache)
    np.testing.assert_allclose(query, expected[0], **EXACT_ENOUGH)
    np.testing.assert_allclose(key, expected[1], **EXACT_ENOUGH)


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.integers(0, 40), st.integers(1, 4), st.sampled_from([1, 8, 64]), st.sampled_from([1, 5, 16]))
def test_write_kv(seed: int, rows: int, num_kv_heads: int, head_dim: int, block_size: int) -> None:
    rng = np.random.default_rng(seed)
    num_blocks = 50 // block_size + 1
    slots = rng.permutation(num_blocks * block_size)[:rows].astype(np.int64)
    slots[rng.random(rows) < 0.2] = -1
    key, value = normal(seed, rows, num_kv_heads, head_dim), normal(seed + 1, rows, num_kv_heads, head_dim)
    key_cache, value_cache = (np.full((num_blocks, block_size, num_kv_heads, head_dim), -1, np.float32) for _ in "kv")
    expected = reference.write_kv(key, value, key_cache, value_cache, slots)
    ops.write_kv(key, value, key_cache, value_cache, slots)
    assert np.array_equal(key_cache, expected[0])
    assert np.array_equal(value_cache, expected[1])


def test_rows_may_be_strided() -> None:
    """Slices of a fused projection go in without a copy."""
    fused, weight = normal(0, 6, 100), normal(1, 30)
    assert np.array_equal(
        ops.rms_norm(fused[:, 40:70], weight, 1e-6), ops.rms_norm(fused[:, 40:70].copy(), weight, 1e-6)
    )
    assert np.array_equal(ops.silu_and_mul(fused[::2, 8:60]), ops.silu_and_mul(fused[::2, 8:60].copy()))
    before = fused.copy()
    out = fused[:, :30]
    ops.rms_norm(fused[:, 40:70], weight, 1e-6, out)
    assert np.array_equal(fused[:, 30:], before[:, 30:])


def test_rows_do_not_depend_on_their_neighbours() -> None:
    x, weight = normal(3, 300, 576), normal(4, 576)
    together = ops.rms_norm(x, weight, 1e-6)
    alone = np.concatenate([ops.rms_norm(x[i : i + 1], weight, 1e-6) for i in range(300)])
    assert np.array_equal(together, alone)
