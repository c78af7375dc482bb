"""The geometry of patches: their order, their rotary angles, windows, and learned positions at any size.

Patches of a frame are ordered by merge unit, so that those which become one embedding are neighbours. Knows nothing of
weights. Formulas as in transformers' towers of the Qwen family.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

Grid = tuple[int, int, int]
"""Patches in time, height and width."""
Ints = npt.NDArray[np.int64]


def patchify(frames: torch.Tensor, patch_size: int, temporal_patch_size: int, merge_size: int) -> torch.Tensor:
    """Cut [frames, 3, H, W] into flat patches [P, 3 * temporal_patch_size * patch_size^2]; one frame stands for an image.

    Frames are a multiple of `temporal_patch_size`, or one, which is then repeated.
    """
    if len(frames) == 1:
        frames = frames.expand(temporal_patch_size, -1, -1, -1)
    num_frames, channels, height, width = frames.shape
    unit = patch_size * merge_size
    cut = frames.reshape(
        num_frames // temporal_patch_size,
        temporal_patch_size,
        channels,
        height // unit,
        merge_size,
        patch_size,
        width // unit,
        merge_size,
        patch_size,
    )
    return cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, channels * temporal_patch_size * patch_size**2)


def coordinates(grid: Grid, merge_size: int) -> tuple[Ints, Ints]:
    """Return (row, column) of each patch of one frame, [H * W] each, in the order of patches."""
    _, height, width = grid
    cells = np.arange(height * width).reshape(height // merge_size, merge_size, width // merge_size, merge_size)
    order = cells.transpose(0, 2, 1, 3).reshape(-1)
    return order // width, order % width


def rotary_rows(
    grids: Sequence[Grid], merge_size: int, head_dim: int, theta: float, device: torch.device
) -> torch.Tensor:
    """Return float32 [P, head_dim]: cosines and sines of all patches; a quarter of a head turns by each axis."""
    frequencies = 1.0 / (theta ** (torch.arange(0, head_dim // 2, 2, dtype=torch.float32) / (head_dim // 2)))
    longest = max(max(height, width) for _, height, width in grids)
    angles = torch.arange(longest, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos().to(device), angles.sin().to(device)
    tables = {}
    for grid in dict.fromkeys(grids):
        rows, columns = (torch.from_numpy(axis).to(device) for axis in coordinates(grid, merge_size))
        tables[grid] = torch.cat((cos[rows], cos[columns], sin[rows], sin[columns]), -1).repeat(grid[0], 1)
    return torch.cat([tables[grid] for grid in grids])


def frame_lengths(grids: Sequence[Grid]) -> list[int]:
    """Return the patches of each frame (of `temporal_patch_size` pictures)."""
    return [height * width for frames, height, width in grids for _ in range(frames)]


def window_order(grids: Sequence[Grid], merge_size: int, window: int) -> tuple[Ints, list[int]]:
    """Return (merge units ordered by window, patches of each window).

    Windows are `window` units wide and high, less at the borders; they come by size, as none sees another.
    """
    windows: list[Ints] = []
    offset = 0
    for frames, height, width in grids:
        rows, columns = height // merge_size, width // merge_size
        units = np.arange(frames * rows * columns, dtype=np.int64).reshape(frames, rows, columns) + offset
        offset += units.size
        windows += [
            frame[top : top + window, left : left + window].reshape(-1)
            for frame in units
            for top in range(0, rows, window)
            for left in range(0, columns, window)
        ]
    windows.sort(key=len)
    return np.concatenate(windows), [len(units) * merge_size**2 for units in windows]


def learned_positions(table: torch.Tensor, grids: Sequence[Grid], merge_size: int, side: int) -> torch.Tensor:
    """Return [P, size]: `table` [side^2, size] stretched bilinearly over each grid, corner to corner."""
    parts = []
    for grid in grids:
        taps, weights = zip(
            *(_axis_taps(axis, size, side) for axis, size in zip(coordinates(grid, merge_size), grid[1:], strict=True)),
            strict=True,
        )
        indices = (taps[0][:, :, None] * side + taps[1][:, None, :]).reshape(-1, 4)
        factors = (weights[0][:, :, None] * weights[1][:, None, :]).reshape(-1, 4)
        rows = table[torch.from_numpy(indices).to(table.device)]
        part = (rows * torch.from_numpy(factors).to(table.device)[:, :, None]).sum(1)
        parts.append(part.to(table.dtype).repeat(grid[0], 1))
    return torch.cat(parts)


def sampled_positions(table: torch.Tensor, grids: Sequence[Grid], merge_size: int, side: int) -> torch.Tensor:
    """Return [P, size]: `table` [side^2, size] stretched bicubically over each grid, edge to edge, as GLM's towers do."""
    picture = table.float().view(1, side, side, -1).permute(0, 3, 1, 2)
    parts = []
    for grid in grids:
        axes = zip(coordinates(grid, merge_size), grid[1:], strict=True)
        rows, columns = ((axis.astype(np.float32) + 0.5) / np.float32(size) * 2 - 1 for axis, size in axes)
        points = torch.from_numpy(np.stack((columns, rows), -1)).to(table.device)
        sampled = F.grid_sample(
            picture, points[None, :, None], mode="bicubic", padding_mode="border", align_corners=False
        )
        parts.append(sampled[0, :, :, 0].T.to(table.dtype).repeat(grid[0], 1))
    return torch.cat(parts)


def _axis_taps(index: Ints, size: int, side: int) -> tuple[Ints, npt.NDArray[np.float32]]:
    """Return the two neighbours in the table, and their weights, of positions `index` on an axis of `size`: [P, 2] each."""
    source = index.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    low = np.floor(source).astype(np.int64)
    share = (source - low).astype(np.float32)
    return np.stack((low, np.minimum(low + 1, side - 1)), 1), np.stack((1 - share, share), 1)
