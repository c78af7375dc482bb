"""Sizes that a vision tower takes, and pictures brought to them. Knows nothing of models beyond their numbers."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import PIL.Image

from xllm_framework.errors import InvalidRequest

MAX_ASPECT_RATIO = 200
Pixels = npt.NDArray[np.uint8]


def smart_size(height: int, width: int, unit: int, min_pixels: int, max_pixels: int, place: str) -> tuple[int, int]:
    """Return (height, width), multiples of `unit` near the given shape with about `min_pixels` to `max_pixels` pixels.

    The rule of Qwen2-VL's processor (Wang et al., 2024).

    Raises:
        InvalidRequest: one side is more than 200 times the other; names `place`.
    """
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise InvalidRequest(
            f"{place} is {width} x {height} pixels; no side may be more than {MAX_ASPECT_RATIO} times the other.",
            "messages",
        )
    new_height, new_width = round(height / unit) * unit, round(width / unit) * unit
    if new_height * new_width > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        new_height = max(unit, math.floor(height / shrink / unit) * unit)
        new_width = max(unit, math.floor(width / shrink / unit) * unit)
    elif new_height * new_width < min_pixels:
        growth = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * growth / unit) * unit
        new_width = math.ceil(width * growth / unit) * unit
    return new_height, new_width


def resize_image(image: PIL.Image.Image, height: int, width: int) -> Pixels:
    """Return uint8 [height, width, 3], resized bicubically in fixed point, as Pillow does."""
    resized = image.resize((width, height), PIL.Image.Resampling.BICUBIC)
    return np.asarray(resized)


def smart_video_size(
    num_frames: int, shape: tuple[int, int], unit: int, pair: int, limits: tuple[int, int], place: str
) -> tuple[int, int]:
    """Return (height, width), multiples of `unit`, so that all frames together have about `limits` pixels.

    The rule of Qwen3-VL's processor (Bai et al., 2025); `pair` frames become one patch.

    Raises:
        InvalidRequest: one side is more than 200 times the other; names `place`.
    """
    height, width = shape
    min_pixels, max_pixels = limits
    if height < unit or width < unit:
        scale = max(unit / height, unit / width)
        height, width = int(height * scale), int(width * scale)
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise InvalidRequest(
            f"{place} is {width} x {height} pixels; no side may be more than {MAX_ASPECT_RATIO} times the other.",
            "messages",
        )
    new_height, new_width = round(height / unit) * unit, round(width / unit) * unit
    num_pixels = round(num_frames / pair) * pair * new_height * new_width
    if num_pixels > max_pixels:
        shrink = math.sqrt((num_frames * height * width) / max_pixels)
        new_height = max(unit, math.floor(height / shrink / unit) * unit)
        new_width = max(unit, math.floor(width / shrink / unit) * unit)
    elif num_pixels < min_pixels:
        growth = math.sqrt(min_pixels / (num_frames * height * width))
        new_height = math.ceil(height * growth / unit) * unit
        new_width = math.ceil(width * growth / unit) * unit
    return new_height, new_width


def resize_frame(frame: Pixels, height: int, width: int) -> Pixels:
    """Return uint8 [height, width, 3], resized bicubically by torch, in whose rounding video processors resize.

    Imports torch, which the front side does for videos alone.
    """
    import torch
    import torch.nn.functional as F

    picture = torch.from_numpy(frame).permute(2, 0, 1)[None]
    resized = F.interpolate(picture, size=(height, width), mode="bicubic", antialias=True)
    return resized[0].permute(1, 2, 0).contiguous().numpy()
