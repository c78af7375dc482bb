"""Our pipelines draw what diffusers draws: latents after each step within 1e-4, pictures within 1/255, same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support import tiny_pipelines
from support.pipeline_truth import draw_ours, draw_theirs, load_ours, load_theirs, raw
from xllm_framework.request.image_params import ImageParams
from xllm_runtime.models.dit.patches import from_tokens

SIZE = {"width": 48, "height": 32}
STEPS = 4


def compare(folder: Path, class_name: str, theirs: dict[str, Any], ours: dict[str, Any], **settings: Any) -> None:
    """Draw the same with both and compare every step and the picture."""
    expected, picture = draw_theirs(
        load_theirs(folder, class_name), 5, **{"num_inference_steps": STEPS, "prompt": "a cat", **SIZE, **theirs}
    )
    params = ImageParams(**{"prompt": "a cat", "num_steps": STEPS, "seed": 5, **SIZE, **ours})
    latents, pixels = draw_ours(load_ours(folder, **settings), params)
    assert len(latents) == len(expected) > 0
    for step, (got, wanted) in enumerate(zip(latents, expected, strict=True)):
        if wanted.ndim == 4:
            got = from_tokens(got, 2, wanted.shape[2], wanted.shape[3])
        difference = (got - wanted[:1]).abs().max()
        assert difference < 1e-4, f"step {step}: {difference}"
    assert pixels.shape == picture.shape
    assert np.abs(pixels.astype(int) - picture.astype(int)).max() <= 1
    assert picture.std() > 5, "a flat picture would prove nothing"


def test_flux_dev(tmp_path: Path) -> None:
    folder = tiny_pipelines.save_flux(tmp_path)
    same = {"guidance_scale": 3.5, "max_sequence_length": 32}
    compare(folder, "FluxPipeline", {**same, "prompt_2": "a dog"}, {**same, "prompt_2": "a dog"})


def test_flux_schnell_has_no_guidance(tmp_path: Path) -> None:
    folder = tiny_pipelines.save_flux(
        tmp_path, has_guidance=False, scheduler=tiny_pipelines.flow_scheduler(is_dynamic=False)
    )
    same = {"guidance_scale": 0.0, "max_sequence_length": 32}
    compare(folder, "FluxPipeline", same, same)


def test_flux_with_a_negative_prompt(tmp_path: Path) -> None:
    folder = tiny_pipelines.save_flux(tmp_path)
    same = {"true_cfg_scale": 2.5, "negative_prompt": "fog", "guidance_scale": 3.5, "max_sequence_length": 32}
    compare(folder, "FluxPipeline", same, same)


def test_class_dit_with_unipc_shifted_by_five(tmp_path: Path) -> None:
    import diffusers

    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0
    )
    folder = tiny_pipelines.save_class_dit(tmp_path, scheduler)
    compare_class(folder, scale=1.0, num_steps=8)


def test_flux_control(tmp_path: Path) -> None:
    folder = tiny_pipelines.save_flux(tmp_path, "FluxControlPipeline")
    image = tiny_pipelines.picture(64, 64)
    same = {"guidance_scale": 3.5, "max_sequence_length": 32}
    compare(folder, "FluxControlPipeline", {**same, "control_image": image}, {**same, "images": [raw(image)]})


@pytest.mark.parametrize("strength", [1.0, 0.6])
def test_flux_fill(tmp_path: Path, strength: float) -> None:
    folder = tiny_pipelines.save_flux(tmp_path, "FluxFillPipeline")
    image, mask = tiny_pipelines.picture(64, 64), tiny_pipelines.picture(48, 32, seed=1).convert("L")
    same = {"guidance_scale": 30.0, "max_sequence_length": 32, "strength": strength, "num_inference_steps": 5}
    ours = {name: value for name, value in same.items() if name != "num_inference_steps"} | {"num_steps": 5}
    compare(
        folder,
        "FluxFillPipeline",
        {**same, "image": image, "mask_image": mask},
        {**ours, "images": [raw(image)], "mask": raw(mask)},
    )


@pytest.mark.parametrize(("qk_norm", "has_t5"), [(None, True), ("rms_norm", True), (None, False)])
def test_sd3(tmp_path: Path, qk_norm: str | None, has_t5: bool) -> None:
    folder = tiny_pipelines.save_sd3(tmp_path, qk_norm=qk_norm, has_t5=has_t5)
    same = {"guidance_scale": 4.0, "negative_prompt": "fog", "max_sequence_length": 32}
    compare(folder, "StableDiffusion3Pipeline", same, same)


@pytest.mark.parametrize("qk_norm", [None, "rms_norm"])
def test_sd3_with_a_second_attention_in_some_blocks(tmp_path: Path, qk_norm: str | None) -> None:
    folder = tiny_pipelines.save_sd3(tmp_path, qk_norm=qk_norm, dual_attention_layers=(0, 1))
    same = {"guidance_scale": 4.0, "negative_prompt": "fog", "max_sequence_length": 32}
    compare(folder, "StableDiffusion3Pipeline", same, same)


def test_sd3_without_guidance(tmp_path: Path) -> None:
    same = {"guidance_scale": 1.0, "max_sequence_length": 32}
    compare(tiny_pipelines.save_sd3(tmp_path), "StableDiffusion3Pipeline", same, same)


def test_qwen_image(tmp_path: Path) -> None:
    folder = tiny_pipelines.save_qwen_image(tmp_path)
    compare(folder, "QwenImagePipeline", {}, {"max_sequence_length": 512})


def test_qwen_image_with_a_negative_prompt_of_another_length(tmp_path: Path) -> None:
    folder = tiny_pipelines.save_qwen_image(tmp_path)
    same = {"true_cfg_scale": 4.0, "negative_prompt": "nothing but fog", "prompt": "two cats"}
    compare(folder, "QwenImagePipeline", same, {**same, "max_sequence_length": 512})


def test_qwen_image_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit as module

    calculate = module.calculate_dimensions
    monkeypatch.setattr(module, "calculate_dimensions", lambda _, ratio: calculate(64 * 64, ratio))
    folder = tiny_pipelines.save_qwen_image(tmp_path, "QwenImageEditPipeline")
    image = tiny_pipelines.picture(80, 40)
    same = {"true_cfg_scale": 3.0, "negative_prompt": "fog"}
    compare(
        folder,
        "QwenImageEditPipeline",
        {**same, "image": image},
        {**same, "images": [raw(image)]},
        edited_area=64 * 64,
    )


@pytest.mark.parametrize("sizes", [[(80, 40)], [(80, 40), (33, 70)]])
def test_qwen_image_edit_plus_with_one_image_and_with_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[tuple[int, int]]
) -> None:
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as module

    monkeypatch.setattr(module, "CONDITION_IMAGE_SIZE", 56 * 56)
    monkeypatch.setattr(module, "VAE_IMAGE_SIZE", 64 * 64)
    folder = tiny_pipelines.save_qwen_image(tmp_path, "QwenImageEditPlusPipeline")
    images = [tiny_pipelines.picture(*size, seed=seed) for seed, size in enumerate(sizes)]
    same = {"true_cfg_scale": 3.0, "negative_prompt": "fog"}
    compare(
        folder,
        "QwenImageEditPlusPipeline",
        {**same, "image": images},
        {**same, "images": [raw(image) for image in images]},
        edited_area=64 * 64,
        shown_area=56 * 56,
    )


def compare_class(folder: Path, scale: float, num_steps: int = 5) -> None:
    theirs = load_theirs(folder, "DiTPipeline")
    expected, picture = draw_theirs(theirs, 5, class_labels=[7], guidance_scale=scale, num_inference_steps=num_steps)
    params = ImageParams("seven", 32, 32, num_steps, guidance_scale=scale, seed=5)
    latents, pixels = draw_ours(load_ours(folder), params)
    for got, wanted in zip(latents, expected, strict=True):
        scale_of_latents = max(1.0, float(wanted.std()))  # random weights let DDIM's grow
        assert (from_tokens(got, 2, 8, 8) - wanted[:1]).abs().max() < 1e-4 * scale_of_latents
    assert np.abs(pixels.astype(int) - picture.astype(int)).max() <= 1


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_class_dit(tmp_path: Path, scale: float) -> None:
    compare_class(tiny_pipelines.save_class_dit(tmp_path), scale)


def test_class_dit_with_ddim_and_learned_variance(tmp_path: Path) -> None:
    import diffusers

    folder = tiny_pipelines.save_class_dit(tmp_path, diffusers.DDIMScheduler(clip_sample=False), out_channels=8)
    compare_class(folder, 3.0)


def test_latents_do_not_depend_on_how_many_steps_are_prepared_at_once(tmp_path: Path, monkeypatch) -> None:
    pipeline = load_ours(tiny_pipelines.save_flux(tmp_path))
    params = ImageParams("a cat", 32, 32, 5, guidance_scale=3.5, max_sequence_length=16)
    whole, _ = draw_ours(pipeline, params)
    monkeypatch.setattr("xllm_runtime.models.dit.modulation.STEPS_AT_ONCE", 2)
    parts, _ = draw_ours(pipeline, params)
    assert torch.allclose(whole[-1], parts[-1], atol=1e-5)
