"""The latency model: fitted exactly, never negative, saved and loaded, and turned into budgets."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xllm_framework.errors import InvalidConfig
from xllm_scheduler.latency import (
    LatencyModel,
    LatencySample,
    StepShape,
    SweepPlan,
    find_token_budget,
    fit_latency_model,
    load_latency_model,
    measure_accuracy,
    measure_latency_model,
    save_latency_model,
)
from xllm_scheduler.latency.fit import non_negative_least_squares

TRUTH = LatencyModel(
    constant_us=900.0,
    per_token_us=12.0,
    per_token_squared_us=0.004,
    per_token_before_us=0.006,
    per_before_us=0.5,
    per_decode_us=8.0,
    per_decode_before_us=0.02,
)


def test_a_sweep_over_a_device_finds_its_coefficients() -> None:
    calls: list[StepShape] = []

    def run_step(shape: StepShape) -> float:
        calls.append(shape)
        return TRUTH.step_s(shape)

    model, accuracy = measure_latency_model(run_step)
    for name in LatencyModel.__struct_fields__:
        assert getattr(model, name) == pytest.approx(getattr(TRUTH, name), rel=1e-4), name
    assert accuracy.worst_percentage < 1e-3
    assert len(calls) == 4 * len(set(calls))
    chunks = [shape.chunks[0] for shape in set(calls) if shape.chunks]
    assert max(chunks) == (2048, 0)
    assert all(tokens + before <= 2048 for tokens, before in chunks)
    assert {len(shape.decodes) for shape in set(calls) if shape.decodes} == set(range(1, 26, 2))


def test_noise_moves_the_fit_little_and_the_median_ignores_outliers() -> None:
    draw = random.Random(0)

    def run_step(shape: StepShape) -> float:
        return TRUTH.step_s(shape) * draw.uniform(0.98, 1.02) * (5.0 if draw.random() < 0.05 else 1.0)

    model, _ = measure_latency_model(run_step, SweepPlan(num_repeats=5))
    unseen = [StepShape(((700, 300),), ((1, 500),) * 12), StepShape(((90, 0), (64, 1024))), StepShape((), ((1, 99),))]
    samples = [LatencySample(shape, TRUTH.step_s(shape)) for shape in unseen]
    accuracy = measure_accuracy(model, samples)
    assert accuracy.num_samples == 3
    assert accuracy.worst_percentage < 6
    assert "3 steps" in accuracy.to_text()


@given(seed=st.integers(0, 10_000), num_terms=st.integers(1, 6), num_samples=st.integers(1, 15))
@settings(deadline=None, max_examples=60)
def test_the_least_squares_solution_meets_the_conditions_of_an_optimum(
    seed: int, num_terms: int, num_samples: int
) -> None:
    draw = np.random.default_rng(seed)
    matrix, target = draw.normal(size=(num_samples, num_terms)), draw.normal(size=num_samples)
    solution = non_negative_least_squares(matrix, target)
    gradient = matrix.T @ (matrix @ solution - target)
    assert (solution >= 0).all()
    assert (gradient >= -1e-8).all(), "a coefficient could grow"
    assert np.abs(gradient[solution > 0]).max(initial=0.0) < 1e-8, "a positive coefficient could move"


def test_a_term_that_would_be_negative_is_left_out() -> None:
    samples = [LatencySample(StepShape(((n, 0),)), 0.01 - 1e-6 * n) for n in (10, 100, 1000)]
    model = fit_latency_model(samples)
    assert model.per_token_us == model.per_decode_us == 0.0
    assert model.constant_us == pytest.approx(9600, rel=0.05)
    with pytest.raises(InvalidConfig, match="at least one step"):
        fit_latency_model([])
    with pytest.raises(InvalidConfig, match="some time"):
        fit_latency_model([LatencySample(StepShape(((1, 0),)), 0.0)])


def test_the_longest_chunk_is_the_longest() -> None:
    for before in (0, 1000):
        for limit_s in (0.0, 1e-5, 1e-3, 0.02, 9.0):
            longest = TRUTH.longest_chunk(before, 500, limit_s)
            assert longest == max((n for n in range(1, 501) if TRUTH.prefill_s(n, before) <= limit_s), default=0), (
                before,
                limit_s,
            )


def test_the_token_budget_fits_the_limit_and_one_token_more_does_not() -> None:
    budget = find_token_budget(TRUTH, 0.020)
    assert TRUTH.step_s(StepShape(((budget, 0),))) <= 0.020 < TRUTH.step_s(StepShape(((budget + 1, 0),)))
    assert find_token_budget(TRUTH, 1e-6) == 1
    assert find_token_budget(TRUTH, 99.0) == 4096
    assert find_token_budget(TRUTH, 99.0, max_tokens=77) == 77


def test_a_step_is_the_sum_of_its_parts_and_nothing_takes_no_time() -> None:
    shape = StepShape(((100, 0), (50, 200)), ((1, 80), (3, 90)))
    parts = TRUTH.prefill_s(100, 0) + TRUTH.prefill_s(50, 200) + TRUTH.decode_s(80) + TRUTH.decode_s(90, 3)
    assert TRUTH.step_s(shape) == pytest.approx(TRUTH.constant_s + parts)
    coefficients = [getattr(TRUTH, name) for name in LatencyModel.__struct_fields__]
    assert TRUTH.step_s(shape) == pytest.approx(1e-6 * np.dot(shape.terms(), coefficients))
    assert TRUTH.step_s(StepShape()) == 0.0


def test_a_model_is_saved_and_loaded_and_its_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    save_latency_model(TRUTH, path)
    assert load_latency_model(path) == TRUTH
    path.write_text('{"constant_us": -1}')
    with pytest.raises(InvalidConfig, match="constant_us must be 0 or more"):
        load_latency_model(path)
    path.write_text('{"speed": 1}')
    with pytest.raises(InvalidConfig, match="speed"):
        load_latency_model(path)
    with pytest.raises(InvalidConfig, match=r"nowhere\.json cannot be read"):
        load_latency_model(tmp_path / "nowhere.json")
