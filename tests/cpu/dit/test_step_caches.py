"""Step caches: when each policy computes, and that what it reuses is what the rule says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from support import tiny_pipelines
from support.pipeline_truth import draw_ours, load_ours
from xllm_framework.request.image_params import ImageParams
from xllm_framework.step_cache import StepCacheParams
from xllm_runtime.models.dit.denoiser import denoise
from xllm_runtime.models.dit.step_cache import (
    FirstBlockCache,
    ResidualCache,
    TaylorSeer,
    TaylorSeries,
    make_step_cache,
)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_a_taylor_series_continues_a_polynomial_of_its_order(order: int) -> None:
    series = TaylorSeries(order)
    for step in range(0, 2 * (order + 2), 2):
        series.see(step, torch.tensor([float(step) if order else 3.0]))
    at = 2 * (order + 2) + 1
    assert math.isclose(float(series.at(at)), float(at) if order else 3.0, rel_tol=1e-5)


def test_taylorseer_computes_every_nth_step_after_the_warm_up() -> None:
    cache = TaylorSeer(StepCacheParams("TaylorSeer", warmup_steps=2, skip_interval_steps=3))
    computed = []
    for step in range(12):
        if cache.predicted(step) is None:
            computed.append(step)
            cache.computed(step, torch.tensor([float(step)]))
    assert computed == [0, 1, 2, 5, 8, 11]


def test_the_first_block_decides_by_its_change_since_the_last_computed_step() -> None:
    cache = FirstBlockCache(StepCacheParams("FBCache", residual_diff_threshold=0.1), 4, is_extrapolated=False)
    start, change = torch.zeros(2, 2), torch.ones(2, 2)
    assert cache.filled(0, start, start + change) is None
    cache.computed_span(0, start + change, start + change + 5.0)
    near = cache.filled(1, start, start + 1.05 * change)
    assert near is not None
    assert torch.allclose(near, start + 1.05 * change + 5.0)
    assert cache.filled(2, start, start + 1.2 * change) is None  # 20 % from the last computed one, not from step 1


def test_the_first_blocks_cache_computes_its_warm_up() -> None:
    cache = FirstBlockCache(StepCacheParams("FBCache", warmup_steps=3), 4, is_extrapolated=True)
    for step in range(3):
        assert cache.filled(step, torch.zeros(1), torch.ones(1)) is None
        cache.computed_span(step, torch.ones(1), torch.full((1,), float(step)))
    assert float(cache.filled(3, torch.zeros(1), torch.ones(1))) == 3.0  # extrapolated: 0, 1, 2, so 3


def test_the_residual_cache_leaves_first_and_last_steps_and_blocks_alone() -> None:
    params = StepCacheParams(
        "ResidualCache", skip_interval_steps=3, start_steps=2, end_steps=2, start_blocks=1, end_blocks=2
    )
    cache = ResidualCache(params, num_blocks=8, num_steps=12)
    assert cache.span == (1, 6)
    computed = []
    for step in range(12):
        filled = cache.filled(step, torch.zeros(1), torch.ones(1))
        if filled is None:
            computed.append(step)
            cache.computed_span(step, torch.ones(1), torch.full((1,), 3.0 + step))
        else:
            assert float(filled) == 3.0 + computed[-1]
    assert computed == [0, 1, 2, 5, 8, 10, 11]


def test_a_residual_cache_without_middle_blocks_does_nothing() -> None:
    assert ResidualCache(StepCacheParams("ResidualCache"), num_blocks=4, num_steps=9).span is None


def test_no_policy_is_no_cache() -> None:
    assert make_step_cache(StepCacheParams(), 4, 9) is None


class Counting:
    """A transformer that counts how many rows went through how many blocks."""

    def __init__(self, inner) -> None:
        self._inner = inner
        self.num_computed = 0

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def run(self, hidden, first, last, modulation, context) -> None:
        self.num_computed += len(hidden) * (last - first)
        self._inner.run(hidden, first, last, modulation, context)


@pytest.mark.parametrize(
    ("policy", "threshold", "expected"),
    [("None", 0.0, 32), ("FBCache", 1e9, 11), ("FBCache", 0.0, 32), ("TaylorSeer", 0.0, 12), ("ResidualCache", 0, 24)],
)
@torch.inference_mode()
def test_blocks_that_are_left_out_are_not_computed(
    tmp_path: Path, policy: str, threshold: float, expected: int
) -> None:
    pipeline = load_ours(tiny_pipelines.save_flux(tmp_path))
    pipeline.transformer = counting = Counting(pipeline.transformer)
    settings = StepCacheParams(
        policy,  # type: ignore[arg-type]
        residual_diff_threshold=threshold,
        start_steps=1,
        end_steps=1,
        start_blocks=1,
        end_blocks=1,
    )
    (sample,) = pipeline.begin(ImageParams("a cat", 32, 32, 8, guidance_scale=3.5, max_sequence_length=16))
    sample.rows[0].cache = make_step_cache(settings, 4, 8)
    while not sample.is_done:
        denoise(pipeline, [sample])
    assert counting.num_computed == expected


def test_a_cache_of_threshold_zero_is_exact(tmp_path: Path) -> None:
    pipeline = load_ours(tiny_pipelines.save_sd3(tmp_path))
    params = ImageParams("a cat", 32, 32, 5, guidance_scale=3.0, max_sequence_length=16)
    plain, _ = draw_ours(pipeline, params)
    with torch.inference_mode():
        (sample,) = pipeline.begin(params)
        for row in sample.rows:
            row.cache = make_step_cache(StepCacheParams("FBCache", residual_diff_threshold=0.0), 3, 5)
        while not sample.is_done:
            denoise(pipeline, [sample])
    assert torch.allclose(sample.latents, plain[-1], atol=1e-5)
