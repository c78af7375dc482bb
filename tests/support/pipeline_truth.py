"""What diffusers draws, step by step, and what ours does, for comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from support import tiny_pipelines
from xllm_framework.model.image_pipeline import read_image_pipeline
from xllm_framework.request.image_params import ImageParams, RawImage
from xllm_runtime.models.dit.autoencoders import to_pixels
from xllm_runtime.models.dit.denoiser import denoise
from xllm_runtime.models.dit.loading import load_pipeline, pack_blocks
from xllm_runtime.models.dit.pipelines.interface import Pipeline

CPU = torch.device("cpu")
NO_T5 = {"text_encoder_3": None, "tokenizer_3": None}


def load_ours(folder: Path, **settings: Any) -> Pipeline:
    """Return our pipeline of a folder, in float32 on the CPU, as the worker has it."""
    pipeline = load_pipeline(folder, read_image_pipeline(folder), torch.float32, CPU, **settings)
    pack_blocks(pipeline.transformer)
    return pipeline


def load_theirs(folder: Path, class_name: str) -> Any:
    """Return diffusers' pipeline of a folder."""
    import diffusers

    pipeline_class = getattr(diffusers, class_name)
    if class_name.startswith("QwenImageEdit"):
        pipeline = pipeline_class.from_pretrained(folder, processor=None)
        pipeline.processor = tiny_pipelines.ImageAndText(pipeline.tokenizer)
    else:
        components = read_image_pipeline(folder).components
        absent = {} if class_name != "StableDiffusion3Pipeline" or "text_encoder_3" in components else NO_T5
        pipeline = pipeline_class.from_pretrained(folder, **absent)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def draw_theirs(pipeline: Any, seed: int, **arguments: Any) -> tuple[list[torch.Tensor], np.ndarray]:
    """Return the latents after each step, and the picture [H, W, 3] uint8."""
    latents: list[torch.Tensor] = []
    step = pipeline.scheduler.step

    def recording_step(*given: Any, **options: Any) -> Any:
        result = step(*given, **options)
        latents.append((result[0] if isinstance(result, tuple) else result.prev_sample).clone())
        return result

    pipeline.scheduler.step = recording_step
    try:
        result = pipeline(generator=torch.Generator("cpu").manual_seed(seed), **arguments)
    finally:
        pipeline.scheduler.step = step
    return latents, np.asarray(result.images[0])


def draw_ours(pipeline: Pipeline, params: ImageParams) -> tuple[list[torch.Tensor], np.ndarray]:
    """Return the latents after each step, as tokens, and the picture [H, W, 3] uint8."""
    with torch.inference_mode():
        (sample,) = pipeline.begin(params)
        latents = []
        while not sample.is_done:
            denoise(pipeline, [sample])
            latents.append(sample.latents.clone())
        return latents, to_pixels(pipeline.decode(pipeline.latents(sample)))[0]


def raw(image: Image.Image) -> RawImage:
    """Return Pillow's image as requests carry it."""
    return RawImage(image.width, image.height, image.tobytes(), 1 if image.mode == "L" else 3)
