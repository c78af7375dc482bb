"""Steps and noise of an image: which timesteps, by diffusers' schedulers, and the random start. Knows nothing of models.

Noise comes from a generator of the image's own, on the CPU in float32: the same seed starts the same image everywhere.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from xllm_runtime.models.dit.samples import Schedule

BASE_SHIFT, BASE_TOKENS = 0.5, 256
MAX_SHIFT, MAX_TOKENS = 1.15, 4096
SCHEDULERS = {
    "FlowMatchEulerDiscreteScheduler": "diffusers",
    "UniPCMultistepScheduler": "diffusers",
    "DDIMScheduler": "diffusers",
}
"""Scheduler classes that can draw; all of them work on tokens as on pictures."""


def flow_schedule(
    scheduler: Any, num_steps: int, num_tokens: int, device: torch.device, strength: float = 1.0
) -> Schedule:
    """Return the schedule of FLUX.1 and Qwen-Image: even noise levels, shifted by the size of the image (Esser et al., 2024).

    Args:
        scheduler: is copied, not changed.
        strength: share of the steps, from the end, that is taken.
    """
    scheduler = copy.deepcopy(scheduler)
    config = scheduler.config
    sigmas = None if config.get("use_flow_sigmas") else np.linspace(1.0, 1 / num_steps, num_steps)
    if type(scheduler).__name__ == "FlowMatchEulerDiscreteScheduler":
        scheduler.set_timesteps(num_steps, device=device, sigmas=sigmas, mu=shift_of(config, num_tokens))
    else:
        scheduler.set_timesteps(num_steps, device=device)
    start = int(max(num_steps - min(num_steps * strength, num_steps), 0))
    return _begun(scheduler, start)


def shifted_schedule(scheduler: Any, num_steps: int, num_tokens: int, device: torch.device) -> Schedule:
    """Return the scheduler's own steps, shifted by the size of the image only where its configuration says so."""
    scheduler = copy.deepcopy(scheduler)
    if scheduler.config.get("use_dynamic_shifting"):
        scheduler.set_timesteps(num_steps, device=device, mu=shift_of(scheduler.config, num_tokens))
    else:
        scheduler.set_timesteps(num_steps, device=device)
    return _begun(scheduler, 0)


def shift_of(config: Any, num_tokens: int) -> float:
    """Return how much noise levels move up for an image of `num_tokens`: linear between two given sizes."""
    base_tokens, max_tokens = config.get("base_image_seq_len", BASE_TOKENS), config.get("max_image_seq_len", MAX_TOKENS)
    base, top = config.get("base_shift", BASE_SHIFT), config.get("max_shift", MAX_SHIFT)
    slope = (top - base) / (max_tokens - base_tokens)
    return float(num_tokens * slope + base - slope * base_tokens)


def _begun(scheduler: Any, start: int) -> Schedule:
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(start)
    timesteps = scheduler.timesteps[start:]
    if start:
        scheduler.timesteps = timesteps
    return Schedule(scheduler, timesteps.to(torch.float32))


def noise(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return normal numbers, float32 on the CPU."""
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def generator_of(seed: int) -> torch.Generator:
    """Return a generator that starts at `seed`."""
    return torch.Generator("cpu").manual_seed(seed)
