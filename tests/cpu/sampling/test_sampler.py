"""The sampler against its float64 meaning, its statistics, and that a row is its own whoever shares the batch."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.sampling_batches import batches, is_near_a_border
from support.sampling_reference import adjusted_logits, expected_token, filtered_probabilities
from support.sampling_rows import Row, sampling_rows
from xllm_runtime.sampling.sampler import sample


def draw(logits: np.ndarray, rows: list[Row]) -> list[int]:
    return sample(torch.from_numpy(logits.copy()), sampling_rows(rows)).token_ids.tolist()


@given(batches())
@settings(deadline=None, max_examples=100)
def test_gives_the_token_that_the_options_mean(batch):
    logits, rows = batch
    tokens = draw(logits, rows)
    for row_logits, row, token in zip(logits, rows, tokens, strict=True):
        if not is_near_a_border(row_logits, row):
            assert token == expected_token(row_logits, row)


@given(batches(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=50)
def test_a_row_is_the_same_to_the_bit_alone_and_in_any_batch(batch, random):
    logits, rows = batch
    order = random.sample(range(len(rows)), len(rows))
    together = sample(torch.from_numpy(logits[order]), sampling_rows([rows[index] for index in order]))
    for place, index in enumerate(order):
        alone = sample(torch.from_numpy(logits[index : index + 1].copy()), sampling_rows([rows[index]]))
        assert together.token_ids[place] == alone.token_ids[0]
        if rows[index].logprobs >= 0:
            assert together.logprobs[place] == alone.logprobs[0]
        for wide, narrow in ((together.top_ids, alone.top_ids), (together.top_logprobs, alone.top_logprobs)):
            if rows[index].logprobs > 0:
                assert wide[place].tolist() == narrow[0].tolist()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_large_row_is_the_same_alone_and_in_a_batch_that_threads_share(num_threads):
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        logits = np.random.default_rng(5).normal(0.0, 1.0, (9, 70_001)).astype(np.float32)
        rows = [
            Row(temperature=1.0, seed=s, top_p=p) for s, p in enumerate([1.0, 0.999, 1.0, 0.3, 0.9, 1.0, 1.0, 1.0, 0.5])
        ]
        alone = [draw(logits[index : index + 1], [row])[0] for index, row in enumerate(rows)]
        assert draw(logits, rows) == alone
        assert draw(logits[3:6], rows[3:6]) == alone[3:6]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "row",
    [
        Row(temperature=1.0),
        Row(temperature=0.5, top_k=5),
        Row(temperature=1.5, top_p=0.7),
        Row(temperature=1.0, min_p=0.2),
        Row(temperature=1.3, top_k=9, top_p=0.8, min_p=0.1),
        Row(temperature=1.0, repetition_penalty=1.8, frequency_penalty=0.5, prompt=(0, 1), output=(2, 2, 3)),
    ],
    ids=["plain", "top_k", "top_p", "min_p", "all", "penalties"],
)
def test_draws_follow_the_filtered_distribution(row):
    num_draws = 20_000
    logits = np.random.default_rng(11).normal(0.0, 1.5, 16).astype(np.float32)
    rows = sampling_rows([row])
    for name in ("temperature", "top_p", "top_k", "min_p", "num_logprobs", "seed", "step"):
        setattr(rows, name, np.repeat(getattr(rows, name), num_draws))
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        setattr(rows, name, np.repeat(getattr(rows, name), num_draws))
    rows.step = np.arange(num_draws)
    rows.penalised = [(index, *entry[1:]) for index in range(num_draws) for entry in rows.penalised]
    tokens = sample(torch.from_numpy(np.tile(logits, (num_draws, 1))), rows).token_ids
    expected = filtered_probabilities(adjusted_logits(logits, row), row) * num_draws
    counts = np.bincount(tokens, minlength=16)
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    freedom = max(possible.sum() - 1, 1)
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3  # 0.1 %


def test_top_p_is_the_smallest_set_that_reaches_it():
    logits = np.log(np.array([[0.1, 0.5, 0.4]], np.float32))
    uniform = np.zeros((1, 4), np.float32)

    def reachable(logits: np.ndarray, **filters: float) -> set[int]:
        rows = [Row(temperature=1.0, step=step, **filters) for step in range(300)]
        return set(draw(np.repeat(logits, 300, axis=0), rows))

    assert reachable(logits, top_p=0.9) == {1, 2}
    assert reachable(logits, top_p=0.91) == {0, 1, 2}
    assert reachable(logits, top_p=0.5) == {1}
    assert reachable(logits, top_p=1e-9) == {1}
    assert reachable(uniform, top_p=0.5) == {0, 1}
    assert reachable(uniform, top_k=3) == {0, 1, 2}
    assert reachable(uniform, top_k=3, top_p=0.5) == {0, 1}
    assert reachable(uniform, min_p=1.0) == {0, 1, 2, 3}


def test_seeds_steps_and_sequences_differ():
    logits = np.zeros((60, 5000), np.float32)
    tokens = draw(logits, [Row(temperature=1.0, seed=seed) for seed in range(60)])
    assert len(set(tokens)) > 55
    assert tokens == draw(logits, [Row(temperature=1.0, seed=seed) for seed in range(60)])
    assert len(set(draw(logits, [Row(temperature=1.0, seed=9, step=step) for step in range(60)]))) > 55


def test_extreme_temperatures():
    logits = np.array([[1.0, 1.5, -3e38, 0.0], [5e4, 4e4, -5e4, 0.0]], np.float32)
    cold = [Row(temperature=0.01, seed=seed) for seed in range(2)]
    assert draw(logits, cold) == [1, 0]
    hot = draw(np.repeat(logits[:1], 500, axis=0), [Row(temperature=1e30, seed=seed) for seed in range(500)])
    assert set(hot) == {0, 1, 3}


def test_a_broken_row_fails_alone():
    logits = np.random.default_rng(3).normal(size=(6, 50)).astype(np.float32)
    rows = [Row(temperature=t, logprobs=k, seed=7) for t in (0.0, 1.0) for k in (-1, 0, 2)]
    whole = sample(torch.from_numpy(logits.copy()), sampling_rows(rows))
    broken = logits.copy()
    broken[1, 4], broken[3, 9], broken[4, :] = np.nan, np.inf, -np.inf
    output = sample(torch.from_numpy(broken), sampling_rows(rows))
    assert sorted(output.errors) == [1, 3, 4]
    assert "not finite" in output.errors[1]
    assert "barred" in output.errors[4]
    assert output.token_ids[[1, 3, 4]].tolist() == [-1, -1, -1]
    for row in (0, 2, 5):
        assert output.token_ids[row] == whole.token_ids[row]
        assert output.logprobs[row] == whole.logprobs[row]
        assert output.top_ids[row].tolist() == whole.top_ids[row].tolist()
    assert whole.errors is None


def test_barred_tokens_are_never_drawn():
    logits = np.full((400, 3), -np.inf, np.float32)
    logits[:, 1] = 0.0
    assert set(draw(logits, [Row(temperature=1.0, seed=seed) for seed in range(400)])) == {1}
    barred = [Row(temperature=2.0, seed=seed, banned=(1,)) for seed in range(400)]
    assert set(draw(np.zeros((400, 3), np.float32), barred)) == {0, 2}


def test_no_rows():
    output = sample(torch.empty(0, 11), sampling_rows([]))
    assert output.token_ids.tolist() == []
    assert output.errors is None


def test_logprobs_are_the_models_own():
    logits = np.random.default_rng(2).normal(0.0, 3.0, (4, 40)).astype(np.float32)
    rows = [
        Row(logprobs=0),
        Row(temperature=1.7, top_k=2, logprobs=3, seed=4),
        Row(),
        Row(temperature=0.4, logprobs=1, banned=(int(logits[3].argmax()),), bias=((5, 9.0),)),
    ]
    output = sample(torch.from_numpy(logits.copy()), sampling_rows(rows))
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    for row in (0, 1, 3):
        assert output.logprobs[row] == pytest.approx(exact[row, output.token_ids[row]], abs=1e-5)
        best = np.argsort(-exact[row])[:3]
        assert output.top_ids[row].tolist() == best.tolist()
        assert output.top_logprobs[row] == pytest.approx(exact[row, best], abs=1e-5)
    assert output.top_ids[2].tolist() == [-1, -1, -1]
    assert output.top_ids[3, 0] != output.token_ids[3]
    greedy_only = sample(torch.from_numpy(logits.copy()), sampling_rows([Row()] * 4))
    assert greedy_only.logprobs is greedy_only.top_ids is greedy_only.top_logprobs is None


@given(batches())
@settings(deadline=None, max_examples=25)
def test_slicing_rows_changes_nothing(batch):
    logits, rows = batch
    assume(len(rows) > 1)
    whole = sample(torch.from_numpy(logits.copy()), sampling_rows(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xllm_runtime.sampling.slices.MAX_ELEMENTS", 2 * logits.shape[1])
        sliced = sample(torch.from_numpy(logits.copy()), sampling_rows(rows))
    assert sliced.token_ids.tolist() == whole.token_ids.tolist()
    if whole.logprobs is not None:
        assert sliced.logprobs.tolist() == whole.logprobs.tolist()
