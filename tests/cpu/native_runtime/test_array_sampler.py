"""The sampler on arrays: its meaning in float64, and the very tokens of the sampler on torch's tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sampling_batches import batches, is_near_a_border
from support.sampling_reference import expected_token
from support.sampling_rows import Row, sampling_rows
from xllm_runtime.sampling import native as native_sampler
from xllm_runtime.sampling import sampler as torch_sampler
from xllm_runtime.sampling.arrays.ranking import best_tokens
from xllm_runtime.sampling.arrays.sampler import sample

SAMPLERS = [pytest.param(sample, id="numpy"), pytest.param(native_sampler.sample, id="native")]


@pytest.mark.parametrize("sample", SAMPLERS)
@given(batch=batches())
@settings(deadline=None, max_examples=100)
def test_gives_the_token_that_the_options_mean(sample, batch):
    logits, rows = batch
    tokens = sample(logits.copy(), sampling_rows(rows)).token_ids
    for row_logits, row, token in zip(logits, rows, tokens.tolist(), strict=True):
        if not is_near_a_border(row_logits, row):
            assert token == expected_token(row_logits, row)


@pytest.mark.parametrize("sample", SAMPLERS)
@given(batch=batches())
@settings(deadline=None, max_examples=100)
def test_agrees_with_the_torch_sampler(sample, batch):
    logits, rows = batch
    ours = sample(logits.copy(), sampling_rows(rows))
    theirs = torch_sampler.sample(torch.from_numpy(logits.copy()), sampling_rows(rows))
    assert ours.errors == theirs.errors
    for index, row in enumerate(rows):
        if not is_near_a_border(logits[index], row):
            assert ours.token_ids[index] == theirs.token_ids[index]
    for name in ("logprobs", "top_logprobs", "top_ids"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert (mine is None) == (other is None)
        if mine is None:
            continue
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        same = ours.token_ids == theirs.token_ids
        if name != "top_ids":
            np.testing.assert_allclose(mine[same], other[same], atol=1e-5)


@pytest.mark.parametrize("sample", SAMPLERS)
@pytest.mark.parametrize("row", [Row(temperature=0.8), Row(temperature=1.0, top_p=0.9), Row(temperature=1.2, top_k=40)])
def test_gives_the_same_tokens_as_torch_on_a_large_vocabulary(row, sample):
    num_rows, vocab_size = 40, 49152
    logits = np.random.default_rng(8).normal(0.0, 2.5, (num_rows, vocab_size)).astype(np.float32)
    options = [Row(temperature=row.temperature, top_p=row.top_p, top_k=row.top_k, seed=s) for s in range(num_rows)]
    ours = sample(logits.copy(), sampling_rows(options)).token_ids
    theirs = torch_sampler.sample(torch.from_numpy(logits.copy()), sampling_rows(options)).token_ids
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("sample", SAMPLERS)
@given(batch=batches(), random=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=50)
def test_a_row_is_the_same_to_the_bit_alone_and_in_any_batch(sample, batch, random):
    logits, rows = batch
    order = random.sample(range(len(rows)), len(rows))
    together = sample(logits[order], sampling_rows([rows[index] for index in order]))
    for place, index in enumerate(order):
        alone = sample(logits[index : index + 1].copy(), sampling_rows([rows[index]]))
        assert together.token_ids[place] == alone.token_ids[0]
        if rows[index].logprobs >= 0:
            assert together.logprobs[place] == alone.logprobs[0]
        if rows[index].logprobs > 0:
            width = alone.top_ids.shape[1]
            assert together.top_ids[place, :width].tolist() == alone.top_ids[0].tolist()


@given(st.integers(1, 5000), st.integers(0, 2**32), st.sampled_from([1, 2, 64, 1024, 5000]), st.booleans())
@settings(deadline=None, max_examples=100)
def test_best_tokens_are_those_of_a_stable_sort(vocab_size, seed, width, has_many_equals):
    row = np.random.default_rng(seed).normal(0.0, 2.0, vocab_size).astype(np.float32)
    if has_many_equals:
        row = np.round(row)
    row[:: max(vocab_size // 7, 1)] = -np.inf
    width = min(width, vocab_size)
    values, ids = best_tokens(row, width)
    expected = np.argsort(-row, kind="stable")[:width]
    assert ids.tolist() == expected.tolist()
    assert values.tolist() == row[expected].tolist()


@pytest.mark.parametrize("sample", SAMPLERS)
def test_a_broken_row_fails_alone(sample):
    logits = np.random.default_rng(3).normal(size=(6, 50)).astype(np.float32)
    rows = [Row(temperature=t, logprobs=k, seed=7) for t in (0.0, 1.0) for k in (-1, 0, 2)]
    whole = sample(logits.copy(), sampling_rows(rows))
    broken = logits.copy()
    broken[1, 4], broken[3, 9], broken[4, :] = np.nan, np.inf, -np.inf
    output = sample(broken, sampling_rows(rows))
    assert sorted(output.errors) == [1, 3, 4]
    assert "not finite" in output.errors[1]
    assert "barred" in output.errors[4]
    assert output.token_ids[[1, 3, 4]].tolist() == [-1, -1, -1]
    for row in (0, 2, 5):
        assert output.token_ids[row] == whole.token_ids[row]
        assert output.logprobs[row] == whole.logprobs[row]
        assert output.top_ids[row].tolist() == whole.top_ids[row].tolist()
    assert whole.errors is None


@pytest.mark.parametrize("sample", SAMPLERS)
def test_barred_tokens_are_never_drawn(sample):
    logits = np.full((400, 3), -np.inf, np.float32)
    logits[:, 1] = 0.0
    assert set(sample(logits, sampling_rows([Row(temperature=1.0, seed=s) for s in range(400)])).token_ids) == {1}
    barred = [Row(temperature=2.0, seed=seed, banned=(1,)) for seed in range(400)]
    assert set(sample(np.zeros((400, 3), np.float32), sampling_rows(barred)).token_ids) == {0, 2}


@pytest.mark.parametrize("sample", SAMPLERS)
def test_no_rows(sample):
    output = sample(np.empty((0, 11), np.float32), sampling_rows([]))
    assert output.token_ids.tolist() == []
    assert output.errors is None
