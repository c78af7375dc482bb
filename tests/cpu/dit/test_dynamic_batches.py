"""Images drawn together are those drawn alone: whoever joins, leaves or fails between two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support import tiny_pipelines
from support.pipeline_truth import load_ours, raw
from xllm_framework.request.image_params import ImageParams
from xllm_framework.step_cache import StepCacheParams
from xllm_runtime.models.dit.denoiser import denoise
from xllm_runtime.models.dit.pipelines.interface import Pipeline
from xllm_runtime.models.dit.samples import Sample
from xllm_runtime.models.dit.step_cache import make_step_cache

PROMPTS = ["a cat", "a dog on a hill", "", "x", "two birds", "fog", "the sea", "a very long prompt about nothing"]


def begin(pipeline: Pipeline, params: ImageParams) -> Sample:
    (sample,) = pipeline.begin(params)
    for row in sample.rows:
        row.cache = make_step_cache(params.cache, pipeline.transformer.num_blocks, sample.schedule.num_steps)
    return sample


def alone(pipeline: Pipeline, params: ImageParams) -> torch.Tensor:
    sample = begin(pipeline, params)
    while not sample.is_done:
        denoise(pipeline, [sample])
    return sample.latents


def flux(index: int, **more: Any) -> ImageParams:
    """Requests that differ in prompt, seed, steps and guidance."""
    guided: dict[str, Any] = {"negative_prompt": "fog", "true_cfg_scale": 2.0} if index % 3 == 0 else {}
    return ImageParams(
        PROMPTS[index], 32, 32, 3 + index % 4, seed=index, guidance_scale=3.5, max_sequence_length=16, **guided, **more
    )


def qwen(index: int, **more: Any) -> ImageParams:
    guided: dict[str, Any] = {"negative_prompt": "nothing", "true_cfg_scale": 2.0} if index % 2 else {}
    return ImageParams(PROMPTS[index], 32, 32, 3 + index % 3, seed=index, **guided, **more)


def sd3(index: int, **more: Any) -> ImageParams:
    return ImageParams(
        PROMPTS[index], 32, 32, 3 + index % 3, seed=index, guidance_scale=index % 3, max_sequence_length=16, **more
    )


CASES = {
    "flux": (tiny_pipelines.save_flux, flux),
    "qwen": (tiny_pipelines.save_qwen_image, qwen),
    "sd3": (tiny_pipelines.save_sd3, sd3),
}


@pytest.fixture(scope="module", params=CASES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Pipeline, Callable]:
    save, params = CASES[request.param]
    return load_ours(save(tmp_path_factory.mktemp(request.param))), params


@torch.inference_mode()
def test_eight_in_a_batch_are_eight_alone(family: tuple[Pipeline, Callable[..., ImageParams]]) -> None:
    pipeline, params = family
    expected = [alone(pipeline, params(index)) for index in range(8)]
    samples = [begin(pipeline, params(index)) for index in range(8)]
    while running := [sample for sample in samples if not sample.is_done]:
        denoise(pipeline, running)
    for sample, wanted in zip(samples, expected, strict=True):
        assert (sample.latents - wanted).abs().max() < 1e-4


@torch.inference_mode()
def test_joining_and_leaving_between_steps_changes_nobodys_image(family) -> None:
    pipeline, params = family
    expected = [alone(pipeline, params(index)) for index in range(8)]
    running: dict[int, Sample] = {}
    done: dict[int, Sample] = {}
    for step in range(30):
        if step < 8:
            running[step] = begin(pipeline, params(step))  # one joins before each of the first steps
        running.pop({3: 1, 5: 5}.get(step, -1), None)  # two are cancelled
        if not running:
            break
        denoise(pipeline, list(running.values()))
        done |= {index: sample for index, sample in running.items() if sample.is_done}
        running = {index: sample for index, sample in running.items() if not sample.is_done}
    assert set(done) >= set(range(8)) - {1, 5}
    for index, sample in done.items():
        assert (sample.latents - expected[index]).abs().max() < 1e-4, index


@torch.inference_mode()
def test_caches_of_neighbours_do_not_mix(tmp_path: Path) -> None:
    pipeline = load_ours(tiny_pipelines.save_flux(tmp_path))
    policies = ["None", "FBCache", "TaylorSeer", "FBCacheTaylorSeer", "ResidualCache"]
    caches = [
        StepCacheParams(policy, 1, 2, 2, 10.0, start_steps=1, end_steps=1, start_blocks=1, end_blocks=1)  # type: ignore[arg-type]
        for policy in policies
    ]
    requests = [
        ImageParams("a cat", 32, 32, 7, seed=3, guidance_scale=3.5, max_sequence_length=16, cache=cache)
        for cache in caches
    ]
    expected = [alone(pipeline, params) for params in requests]
    assert all((other - expected[0]).abs().max() > 1e-3 for other in expected[1:]), "a cache that changes nothing"
    samples = [begin(pipeline, params) for params in requests]
    while not samples[0].is_done:
        denoise(pipeline, samples)
    for policy, sample, wanted in zip(policies, samples, expected, strict=True):
        assert (sample.latents - wanted).abs().max() < 1e-4, policy


@torch.inference_mode()
def test_images_to_edit_share_a_batch(tmp_path: Path) -> None:
    pipeline = load_ours(tiny_pipelines.save_qwen_image(tmp_path, "QwenImageEditPipeline"), edited_area=64 * 64)
    given = [raw(tiny_pipelines.picture(40, 40, seed)) for seed in range(3)]
    requests = [ImageParams(PROMPTS[index], 32, 32, 3, seed=index, images=[given[index]]) for index in range(3)]
    expected = [alone(pipeline, params) for params in requests]
    samples = [begin(pipeline, params) for params in requests]
    for _ in range(3):
        denoise(pipeline, samples)
    for sample, wanted in zip(samples, expected, strict=True):
        assert (sample.latents - wanted).abs().max() < 1e-4
