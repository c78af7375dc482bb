"""The random numbers: published known answers, and that they are functions of seed and step alone."""

import numpy as np
import pytest

from xllm_runtime.sampling.philox import philox4x32, uniforms


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_gives_the_known_answers_of_random123(counter, key, words):
    assert philox4x32(np.array([counter], np.uint64), np.array([key], np.uint64)).tolist() == [words]


def test_every_bit_of_seed_and_step_counts():
    bits = np.left_shift(np.uint64(1), np.arange(64, dtype=np.uint64))
    by_seed = uniforms(bits, np.zeros(64, np.int64))
    by_step = uniforms(np.zeros(63, np.uint64), bits[:63].astype(np.int64))
    assert len({*by_seed.tolist(), *by_step.tolist()}) == 127


def test_a_row_does_not_depend_on_its_neighbours():
    seeds, steps = np.arange(50, dtype=np.uint64), np.arange(50, dtype=np.int64) * 7
    alone = [uniforms(seeds[row : row + 1], steps[row : row + 1])[0] for row in range(50)]
    assert uniforms(seeds, steps).tolist() == alone


def test_numbers_fill_the_unit_interval_evenly():
    drawn = uniforms(np.full(100_000, 7, np.uint64), np.arange(100_000))
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    counts = np.bincount((drawn * 100).astype(int), minlength=100)
    assert ((counts - 1000) ** 2 / 1000).sum() < 149  # chi-square with 99 degrees of freedom, 0.1 %
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.02
