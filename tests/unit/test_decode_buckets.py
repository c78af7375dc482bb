"""Padded sizes of decode steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xllm_runtime.executor.decode_buckets import row_bucket, width_bucket


@given(st.integers(1, 2000))
def test_a_bucket_holds_its_rows_and_is_its_own_bucket(num_rows):
    bucket = row_bucket(num_rows)
    assert num_rows <= bucket
    assert row_bucket(bucket) == bucket
    assert bucket - num_rows < max(8, bucket / 4)


@given(st.integers(1, 100_000))
def test_a_width_is_a_power_of_two(num_blocks):
    width = width_bucket(num_blocks)
    assert width >= max(num_blocks, 64)
    assert width & (width - 1) == 0
    assert width == 64 or width < 2 * num_blocks


def test_there_are_few_buckets():
    assert len({row_bucket(n) for n in range(1, 513)}) <= 40
    assert [row_bucket(n) for n in (1, 2, 3, 5, 9, 33, 65, 257)] == [1, 2, 4, 8, 16, 40, 80, 288]
