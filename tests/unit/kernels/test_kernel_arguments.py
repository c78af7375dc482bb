"""Wrong arguments raise an error that names them, and never touch memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.attention_cases import AttentionCase, make_attention_case
from xllm_kernels import ops


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def test_rms_norm_arguments() -> None:
    x, weight = zeros(2, 8), zeros(8)
    with pytest.raises(ValueError, match="weight has size 7"):
        ops.rms_norm(x, zeros(7), 1e-6)
    with pytest.raises(ValueError, match="x must have 2 dimensions"):
        ops.rms_norm(zeros(8), weight, 1e-6)
    with pytest.raises(ValueError, match="x must be contiguous within dimension 0"):
        ops.rms_norm(zeros(2, 16)[:, ::2], weight, 1e-6)
    with pytest.raises(ValueError, match="out has size 3"):
        ops.rms_norm(x, weight, 1e-6, zeros(3, 8))
    with pytest.raises(TypeError, match="x must have elements of type"):
        ops.rms_norm(zeros(2, 8, dtype=np.float64), weight, 1e-6)
    with pytest.raises(TypeError, match="x must be float32 or bfloat16, not int32"):
        ops.rms_norm(zeros(2, 8, dtype=np.int32), weight, 1e-6)
    with pytest.raises(TypeError, match="weight must be float32 as x is, not int64"):
        ops.rms_norm(x, zeros(8, dtype=np.int64), 1e-6)
    with pytest.raises(TypeError, match=r"x must be a torch tensor .* or a numpy array"):
        ops.rms_norm([1.0, 2.0], weight, 1e-6, x)
    read_only = zeros(2, 8)
    read_only.setflags(write=False)
    with pytest.raises(ValueError, match="out must be writable"):
        ops.rms_norm(x, weight, 1e-6, read_only)
    ops.rms_norm(read_only, weight, 1e-6)
    with pytest.raises(ValueError, match="residual has size 3"):
        ops.add_rms_norm(x, zeros(3, 8), weight, 1e-6)


def test_silu_and_mul_arguments() -> None:
    with pytest.raises(ValueError, match="x has an odd row size"):
        ops.silu_and_mul(zeros(2, 7))
    with pytest.raises(ValueError, match="out has size 8"):
        ops.silu_and_mul(zeros(2, 8), zeros(2, 8))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("position", [-1, 10, 2**31 - 1])
def test_positions_outside_the_table(dtype: type, position: int) -> None:
    positions = np.array([0, position], dtype)
    with pytest.raises(ValueError, match=rf"positions\[1\] is {position}, outside the 10 rows"):
        ops.rotary_embedding(positions, zeros(2, 1, 8), zeros(2, 1, 8), zeros(10, 8))


def test_rotary_embedding_arguments() -> None:
    positions, query, key = zeros(2, dtype=np.int64), zeros(2, 1, 8), zeros(2, 1, 8)
    with pytest.raises(ValueError, match="cos_sin_cache has row size 10"):
        ops.rotary_embedding(positions, query, key, zeros(4, 10))
    with pytest.raises(ValueError, match="cos_sin_cache has row size 7"):
        ops.rotary_embedding(positions, query, key, zeros(4, 7))
    with pytest.raises(TypeError, match="positions must be int64, not float32"):
        ops.rotary_embedding(zeros(2), query, key, zeros(4, 8))
    with pytest.raises(ValueError, match="key has size 3"):
        ops.rotary_embedding(positions, query, zeros(3, 1, 8), zeros(4, 8))


def test_write_kv_arguments() -> None:
    key, cache = zeros(2, 1, 8), zeros(3, 4, 1, 8)
    slots = np.array([0, 12], np.int64)
    with pytest.raises(ValueError, match=r"slot_mapping\[1\] is 12, but the cache has 12 slots"):
        ops.write_kv(key, key, cache, cache.copy(), slots)
    with pytest.raises(TypeError, match="slot_mapping must be int64"):
        ops.write_kv(key, key, cache, cache.copy(), slots.astype(np.int32))
    with pytest.raises(ValueError, match="value has size 2 in dimension 1"):
        ops.write_kv(key, zeros(2, 2, 8), cache, cache.copy(), zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match="key_cache must be contiguous within dimension 0"):
        ops.write_kv(key, key, zeros(3, 8, 1, 8)[:, ::2], cache, zeros(2, dtype=np.int64))


@pytest.fixture
def case() -> AttentionCase:
    return make_attention_case(0, lengths=[(1, 20), (3, 5)], num_kv_heads=2, group=2, head_dim=8, block_size=4)


def changed(case: AttentionCase, name: str, index: object, value: int) -> AttentionCase:
    array = getattr(case, name).copy()
    array[index] = value
    return replace(case, **{name: array})


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("block_tables", (0, 4), -1, r"block_tables\[0\]\[4\] is -1"),
        ("block_tables", (1, 0), 10**6, r"block_tables\[1\]\[0\] is 1000000"),
        ("query_start", 0, 1, r"query_start\[0\] must be 0"),
        ("query_start", 1, 9, r"query_start\[2\] is less"),
        ("query_start", 2, 3, "query_start ends at 3, but query has 4 rows"),
        ("query_start", 2, 2**31 - 1, r"seq_lens\[1\] is 5, less than"),
        ("seq_lens", 1, 2, r"seq_lens\[1\] is 2, less than the sequence's 3 rows"),
        ("seq_lens", 0, -5, r"seq_lens\[0\] is -5, less than"),
        ("seq_lens", 0, 2**31 - 1, r"seq_lens\[0\] is 2147483647, more than the 6 columns"),
    ],
)
def test_attention_indices(case: AttentionCase, name: str, index: object, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.paged_attention(*changed(case, name, index, value).arguments())


def test_attention_shapes(case: AttentionCase) -> None:
    arguments = case.arguments()
    with pytest.raises(ValueError, match="query has 3 heads, expected a multiple of the 2"):
        ops.paged_attention(case.query[:, :3].copy(), *arguments[1:])
    with pytest.raises(ValueError, match="value_cache has size"):
        ops.paged_attention(*arguments[:2], case.value_cache[:-1], *arguments[3:])
    with pytest.raises(TypeError, match="block_tables must be int32"):
        ops.paged_attention(*arguments[:3], case.block_tables.astype(np.int64), *arguments[4:])
    with pytest.raises(ValueError, match="sliding_window must not be negative"):
        ops.paged_attention(*arguments, sliding_window=-1)
    with pytest.raises(ValueError, match="query_start has size 2"):
        ops.paged_attention(*arguments[:4], case.query_start[:2], *arguments[5:])
