"""Quantised matrices as kernels read them: what goes in comes out, whatever the sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xllm_kernels.quantised_matrix import from_4_bits, from_8_bits, numbers, stack, unpack_4_bits

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 5).map(lambda groups: 128 * groups))


def four_bits(n: int, k: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 16, (n, k), generator=generator, dtype=torch.uint8)
    scales = torch.rand(n, k // 128, generator=generator).half() + 1e-3
    zeros = torch.randint(0, 17, (n, k // 128), generator=generator)
    return values, scales, zeros


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(0, 2**32))
def test_4_bits_come_back(sizes, seed):
    values, scales, zeros = four_bits(*sizes, seed)
    matrix = from_4_bits(values, scales, zeros)
    for found, expected in zip(unpack_4_bits(matrix), (values, scales.float(), zeros.int()), strict=True):
        assert torch.equal(found, expected)
    plain = (values.double() - zeros.repeat_interleave(128, 1)) * scales.double().repeat_interleave(128, 1)
    assert torch.equal(numbers(matrix, torch.float64), plain)


def test_places_of_4_bits_are_those_that_a_warp_takes():
    """A column at a time: piece 2 t + h, word w, place of column 128 h + 32 t + 8 w + e."""
    for column in range(256):
        values = torch.zeros(1, 256, dtype=torch.uint8)
        values[0, column] = 15
        words = from_4_bits(values, torch.ones(1, 2), torch.zeros(1, 2)).values[0].tolist()
        h, t, w, e = column // 128, column % 128 // 32, column % 32 // 8, column % 8
        expected = [0] * 32
        expected[(2 * t + h) * 4 + w] = 15 << 4 * (e // 2 + e % 2 * 4)
        assert [word & 0xFFFFFFFF for word in words] == expected


def test_8_bits_take_scales_of_rows_and_blocks():
    torch.manual_seed(0)
    stored = torch.randint(-128, 128, (192, 256), dtype=torch.int8)
    rows, blocks = torch.rand(192), torch.rand(2, 2)
    spread = blocks.repeat_interleave(128, 0)[:192].repeat_interleave(128, 1)
    assert torch.equal(numbers(from_8_bits(stored, rows)), stored.float() * rows[:, None])
    assert torch.equal(numbers(from_8_bits(stored, block_scales=blocks)), stored.float() * spread)
    assert torch.equal(numbers(from_8_bits(stored)), stored.float())
    with pytest.raises(ValueError, match="int8"):
        from_8_bits(stored.float())


def test_stacks():
    torch.manual_seed(1)
    whole = torch.randn(256, 128).to(torch.float8_e4m3fn)
    rows, blocks = torch.rand(128), torch.rand(1, 1)
    parts = [from_8_bits(whole[:128], rows), from_8_bits(whole[128:])]
    assert torch.equal(numbers(stack(parts)), torch.cat([numbers(part) for part in parts]))
    values, scales, zeros = four_bits(24, 384, 0)
    ints = [from_4_bits(v, s, z) for v, s, z in zip(values.split(8), scales.split(8), zeros.split(8), strict=True)]
    assert torch.equal(numbers(stack(ints)), numbers(from_4_bits(values, scales, zeros)))
    with pytest.raises(ValueError, match="different kinds"):
        stack([parts[0], ints[0]])
    with pytest.raises(ValueError, match="do not meet"):
        stack([from_8_bits(whole[:64], block_scales=blocks), from_8_bits(whole[128:], block_scales=blocks)])
