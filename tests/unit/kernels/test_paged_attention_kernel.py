"""Paged attention in float32: against the reference, and bit for bit against itself cut in every way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.attention_cases import AttentionCase, attention_cases, make_attention_case
from xllm_kernels import get_num_threads, ops, reference, set_num_threads


def attend(case: AttentionCase) -> np.ndarray:
    out = np.full_like(case.query, np.nan)
    result = ops.paged_attention(*case.arguments(), sliding_window=case.sliding_window, out=out)
    assert result is out
    return out


@settings(deadline=None, max_examples=120)
@given(attention_cases())
def test_equals_the_reference(case: AttentionCase) -> None:
    expected = reference.paged_attention(*case.arguments(), sliding_window=case.sliding_window)
    np.testing.assert_allclose(attend(case), expected, rtol=2e-5, atol=3e-6)


@settings(deadline=None, max_examples=60)
@given(attention_cases(max_len=300), st.sampled_from([1, 5, 16, 17, 64]))
def test_batch_and_chunks_do_not_change_a_bit(case: AttentionCase, chunk: int) -> None:
    together = attend(case)
    for sequence in range(len(case.seq_lens)):
        rows = case.rows(sequence)
        for first in range(rows.start, rows.stop, chunk):
            end = min(first + chunk, rows.stop)
            part = case.part(sequence, first - rows.start, end - rows.start)
            assert np.array_equal(attend(part), together[first:end])


LONG = [(1, 1700), (1, 513), (40, 1100), (1, 512), (1, 3)]


@pytest.fixture
def restore_threads():
    before = get_num_threads()
    yield
    set_num_threads(before)


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("sliding_window", [0, 700])
def test_threads_and_splits_of_the_keys_do_not_change_a_bit(sliding_window: int) -> None:
    shape = {"num_kv_heads": 1, "group": 3, "head_dim": 64, "block_size": 16, "sliding_window": sliding_window}
    case = make_attention_case(1, lengths=LONG, **shape)
    set_num_threads(1)
    expected = attend(case)
    np.testing.assert_allclose(
        expected, reference.paged_attention(*case.arguments(), sliding_window=sliding_window), rtol=2e-5, atol=3e-6
    )
    for num_threads in (2, 3, 8):
        set_num_threads(num_threads)
        assert np.array_equal(attend(case), expected)
        for sequence in range(len(LONG)):
            rows = case.rows(sequence)
            alone = case.part(sequence, 0, rows.stop - rows.start)
            assert np.array_equal(attend(alone), expected[rows])


def test_block_size_and_place_do_not_change_a_bit() -> None:
    shape = {"num_kv_heads": 2, "group": 2, "head_dim": 80}
    case = make_attention_case(2, lengths=[(1, 150), (20, 90)], block_size=16, **shape)
    other = make_attention_case(2, lengths=[(1, 150), (20, 90)], block_size=7, **shape)
    for sequence, seq_len in enumerate(case.seq_lens):
        for position in range(seq_len):
            here = case.block_tables[sequence, position // 16], position % 16
            there = other.block_tables[sequence, position // 7], position % 7
            other.key_cache[there] = case.key_cache[here]
            other.value_cache[there] = case.value_cache[here]
    other.query[:] = case.query
    assert np.array_equal(attend(other), attend(case))


def test_large_scores_do_not_overflow() -> None:
    case = make_attention_case(3, lengths=[(1, 700), (9, 80)], num_kv_heads=1, group=4, head_dim=16, block_size=16)
    case.query[:] *= 1e4
    expected = reference.paged_attention(*case.arguments())
    np.testing.assert_allclose(attend(case), expected, rtol=1e-4, atol=1e-4)


def test_a_layer_of_a_larger_cache_and_slices_of_a_fused_projection() -> None:
    case = make_attention_case(4, lengths=[(3, 20), (1, 33)], num_kv_heads=2, group=2, head_dim=32, block_size=16)
    interleaved = np.stack([case.key_cache, case.value_cache], axis=1)  # [num_blocks, 2, block_size, Hk, D]
    fused = np.zeros((4, 8, 32), np.float32)
    fused[:, 2:6] = case.query
    out = ops.paged_attention(fused[:, 2:6], interleaved[:, 0], interleaved[:, 1], *case.arguments()[3:])
    assert np.array_equal(out, attend(case))
