"""Rotary positions of prompts with media, in three axes: time, height, width (M-RoPE). Knows nothing of models' names.

Text advances all three axes together. A medium's tokens lie on its grid, from the position that text has reached:

    axis     text    image of 2 x 3 (after merging)    text
    time     0 1 2   3 3 3 3 3 3                       6 7
    height   0 1 2   3 3 3 4 4 4                       6 7
    width    0 1 2   3 4 5 3 4 5                       6 7

Text then goes on at start + max(height, width). Source: Qwen2-VL (Wang et al., 2024), as transformers computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xllm_framework.multimodal.media_item import MediaItem


@dataclass(frozen=True, slots=True)
class PositionRule:
    """How a model lays its media out."""

    merge_size: int
    """Patches of a side that become one token."""
    splits_frames: bool = False
    """Each run of place-holders is a frame of its own, with text (a time stamp) between."""


def multimodal_positions(
    num_tokens: int, items: Sequence[MediaItem], rule: PositionRule, time_steps: Sequence[float] | None = None
) -> tuple[npt.NDArray[np.int32], int]:
    """Return (int32 [3, num_tokens], the delta of tokens behind the prompt).

    Args:
        items: the prompt's media with their ranges, in order.
        time_steps: for each item, how far apart its frames lie on the time axis; None is 1.
    """
    positions = np.empty((3, num_tokens), np.int32)
    token = position = 0
    for index, item in enumerate(items):
        frames, height, width = item.grid
        height, width = height // rule.merge_size, width // rule.merge_size
        step = 1.0 if time_steps is None else time_steps[index]
        for start, end in item.ranges:
            num_text = start - token
            positions[:, token:start] = np.arange(position, position + num_text)
            position += num_text
            grid = _grid(1 if rule.splits_frames else frames, height, width, step)
            positions[:, start:end] = grid[:, : end - start] + position
            position += max(height, width)
            token = end
    positions[:, token:] = np.arange(position, position + num_tokens - token)
    return positions, int(positions.max(initial=-1)) + 1 - num_tokens


def _grid(frames: int, height: int, width: int, step: float) -> npt.NDArray[np.int32]:
    """int32 [3, frames * height * width]."""
    times = (np.arange(frames, dtype=np.float32) * np.float32(step)).astype(np.int32)
    axes = np.meshgrid(times, np.arange(height), np.arange(width), indexing="ij")
    return np.stack([axis.reshape(-1) for axis in axes]).astype(np.int32)
