"""What a request for images asks for. Plain data that travels between processes; knows nothing of models or of HTTP."""

from __future__ import annotations

from typing import Literal

import msgspec

from xllm_framework.step_cache import NO_CACHE, StepCacheParams


class RawImage(msgspec.Struct, array_like=True, frozen=True):
    """Decoded pixels, row by row, 8 bits a channel."""

    width: int
    height: int
    pixels: bytes
    """height * width * `num_channels` bytes."""
    num_channels: Literal[1, 3] = 3


class ImageParams(msgspec.Struct, array_like=True, frozen=True):
    """One prompt and how its images are drawn. Values are checked by whoever makes it; see `xllm_runtime.master.dit`."""

    prompt: str
    width: int
    height: int
    num_steps: int
    prompt_2: str = ""
    """For the second text encoder; empty takes `prompt`."""
    negative_prompt: str | None = None
    negative_prompt_2: str = ""
    guidance_scale: float = 0.0
    """Distilled guidance, or classifier-free guidance in families that know no other."""
    true_cfg_scale: float = 1.0
    """Classifier-free guidance beside a distilled one; above 1 it needs a negative prompt."""
    num_images: int = 1
    seed: int = 0
    """Of the first image; image i has `seed` + i."""
    max_sequence_length: int = 512
    """Tokens that a prompt is padded or cut to."""
    strength: float = 1.0
    """Share of the steps that change the given image; below 1, drawing starts from it."""
    images: list[RawImage] = []
    """To edit, or to follow."""
    mask: RawImage | None = None
    """One channel; what is bright is drawn anew."""
    cache: StepCacheParams = NO_CACHE
