"""Images: ours beside diffusers, and step caches beside none. Random weights of FLUX.1's form; one table each.

    python benchmarks/dit.py speed             a tiny FLUX.1 of 4 + 8 blocks at 256 x 256 on CPU, alone and 4 at once
    python benchmarks/dit.py caches            each step cache: speed-up, PSNR and SSIM against no cache
    python benchmarks/dit.py caches --model F  the same on the pipeline in folder F

Runs alternate between the two sides, and medians are printed. `--cpu-time` counts CPU seconds instead of the clock, for
machines that others use too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import tiny_pipelines
from support.pipeline_truth import load_ours, load_theirs
from xllm_framework.model.image_pipeline import read_image_pipeline
from xllm_framework.request.image_params import ImageParams, StepCacheParams
from xllm_runtime.models.dit.autoencoders import to_pixels
from xllm_runtime.models.dit.denoiser import denoise
from xllm_runtime.models.dit.pipelines.interface import Pipeline
from xllm_runtime.models.dit.step_cache import make_step_cache
from xllm_runtime.platform.cpu_cores import set_kernel_threads

SIZE = 256
POLICIES = ("None", "FBCache", "TaylorSeer", "FBCacheTaylorSeer", "ResidualCache")


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "caches"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--prompt", default="a cat")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    set_kernel_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or tiny_pipelines.save_flux(
            Path(folder), num_layers=4, num_single_layers=8, heads=4, head_size=64
        )
        if arguments.what == "speed":
            compare_speed(model, arguments, clock)
        else:
            compare_caches(model, arguments, clock)


def compare_speed(model: Path, arguments: argparse.Namespace, clock: Callable[[], float]) -> None:
    """Print seconds an image and images a second of both sides."""
    ours, theirs = load_ours(model), load_theirs(model, "FluxPipeline")
    same = {"num_inference_steps": arguments.steps, "width": SIZE, "height": SIZE, "guidance_scale": 3.5}

    def draw_theirs(num_images: int) -> None:
        for seed in range(num_images):
            theirs("a cat", generator=torch.Generator().manual_seed(seed), **same)

    def batch_theirs(num_images: int) -> None:
        generators = [torch.Generator().manual_seed(seed) for seed in range(num_images)]
        theirs(["a cat"] * num_images, generator=generators, **same)

    def draw_ours(num_images: int) -> None:
        params = [
            ImageParams("a cat", SIZE, SIZE, arguments.steps, guidance_scale=3.5, seed=seed)
            for seed in range(num_images)
        ]
        draw(ours, params)

    rows: list[tuple[str, int, dict[str, Callable[[int], None]]]] = [
        ("1 image", 1, {"ours": draw_ours, "diffusers": draw_theirs}),
        ("4 at once", 4, {"ours": draw_ours, "diffusers": draw_theirs, "diffusers, one batch": batch_theirs}),
    ]
    for name, num_images, sides in rows:
        calls: dict[str, Callable[[], None]] = {side: partial(run, num_images) for side, run in sides.items()}
        seconds = alternate(calls, arguments.rounds, clock)
        for side, taken in seconds.items():
            rate = num_images / taken
            print(
                f"{name:10} {side:22} {taken:8.3f} s  {rate:7.3f} images/s  ours is {taken / seconds['ours']:.2f} times as fast"
            )


def compare_caches(model: Path, arguments: argparse.Namespace, clock: Callable[[], float]) -> None:
    """Print, for each policy, how much faster it draws and how near its image is."""
    pipeline, described = load_ours(model), read_image_pipeline(model)
    width, height = described.default_size if arguments.model else (SIZE, SIZE)
    truth: Any = None
    before = 1.0
    for policy in POLICIES:
        params = ImageParams(
            arguments.prompt,
            width,
            height,
            arguments.steps,
            guidance_scale=described.default_guidance_scale,
            cache=StepCacheParams(policy, start_steps=2, end_steps=2, start_blocks=2, end_blocks=2),
        )
        draw(pipeline, [params])
        began_s = clock()
        (image,) = draw(pipeline, [params])
        taken = clock() - began_s
        if truth is None:
            truth, before = image, taken
        print(
            f"{policy:18} {taken:7.3f} s  {before / taken:5.2f} times as fast  "
            f"PSNR {psnr(truth, image):6.2f} dB  SSIM {ssim(truth, image):.4f}"
        )


@torch.inference_mode()
def draw(pipeline: Pipeline, requests: list[ImageParams]) -> list[np.ndarray]:
    """Draw requests of one shape together, as the worker does."""
    samples = []
    for params in requests:
        for sample in pipeline.begin(params):
            for row in sample.rows:
                row.cache = make_step_cache(params.cache, pipeline.transformer.num_blocks, sample.schedule.num_steps)
            samples.append(sample)
    while not samples[0].is_done:
        denoise(pipeline, samples)
    return list(to_pixels(pipeline.decode(torch.cat([pipeline.latents(sample) for sample in samples]))))


def alternate(sides: dict[str, Callable[[], None]], num_rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the median seconds of each side; the first round warms up."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(num_rounds + 1):
        for side, run in sides.items():
            began_s = clock()
            run()
            seconds[side].append(clock() - began_s)
    return {side: statistics.median(values[1:]) for side, values in seconds.items()}


def psnr(truth: np.ndarray, image: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio of 8-bit images in decibels."""
    error = np.mean((truth.astype(np.float64) - image.astype(np.float64)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255.0**2 / error))


def ssim(truth: np.ndarray, image: np.ndarray, window: int = 8) -> float:
    """Return the structural similarity (Wang et al., 2004) of grey images, over windows that do not overlap."""

    def windows(pixels: np.ndarray) -> np.ndarray:
        grey = pixels.astype(np.float64).mean(axis=2)
        rows, columns = (side // window * window for side in grey.shape)
        cut = grey[:rows, :columns].reshape(rows // window, window, columns // window, window)
        return cut.transpose(0, 2, 1, 3).reshape(-1, window * window)

    a, b = windows(truth), windows(image)
    mean_a, mean_b = a.mean(axis=1), b.mean(axis=1)
    covariance = ((a - mean_a[:, None]) * (b - mean_b[:, None])).mean(axis=1)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    likeness = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    return float(np.mean(likeness / ((mean_a**2 + mean_b**2 + c1) * (a.var(axis=1) + b.var(axis=1) + c2))))


if __name__ == "__main__":
    main()
