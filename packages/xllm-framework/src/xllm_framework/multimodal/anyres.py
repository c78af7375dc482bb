"""The arithmetic of LLaVA's "any resolution": which grid of tiles a picture fills, and what of it is not padding.

A picture is shrunk or stretched, its shape kept, into the best of a list of sizes, padded to it, and cut into square tiles;
before them comes the whole picture as one tile. Knows nothing of pixels or features. Source: LLaVA-NeXT (Liu et al., 2024), as
transformers has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Size = tuple[int, int]
"""(height, width)"""


def best_resolution(size: Size, choices: Sequence[Sequence[int]]) -> Size:
    """Return the choice that keeps the most pixels of a picture of `size`, and wastes the fewest among those."""
    height, width = size
    best, most, least = (choices[0][0], choices[0][1]), -1, math.inf
    for choice_height, choice_width in choices:
        scale = min(choice_width / width, choice_height / height)
        kept = min(int(width * scale) * int(height * scale), height * width)
        wasted = choice_width * choice_height - kept
        if kept > most or (kept == most and wasted < least):
            best, most, least = (choice_height, choice_width), kept, wasted
    return best


def fitted_size(size: Size, frame: Size) -> Size:
    """Return the largest size of the shape of `size` within `frame`; what is left of the frame is padding."""
    height, width = size
    frame_height, frame_width = frame
    if frame_width / width < frame_height / height:
        return min(math.ceil(height * frame_width / width), frame_height), frame_width
    return frame_height, min(math.ceil(width * frame_height / height), frame_width)


def unpadded(size: Size, rows: int, columns: int) -> tuple[slice, slice]:
    """Return which of `rows` x `columns` features of a padded picture stand for more than padding."""
    height, width = size
    if width / height > columns / rows:
        padding = (rows - int(round(height * (columns / width), 7))) // 2
        return slice(padding, rows - padding), slice(0, columns)
    padding = (columns - int(round(width * (rows / height), 7))) // 2
    return slice(0, rows), slice(padding, columns - padding)


def reduced_shape(rows: int, columns: int, side: int, max_tiles: int) -> Size:
    """Return the shape that `rows` x `columns` features are shrunk to where they are more than `max_tiles` tiles hold."""
    ratio = math.sqrt(rows * columns / (max_tiles * side**2))
    return (int(rows // ratio), int(columns // ratio)) if ratio > 1.1 else (rows, columns)


def num_features(size: Size, grid: Size, side: int, max_tiles: int) -> int:
    """Return the embeddings of a picture of `size` in `grid` tiles of `side` x `side` features, row ends included."""
    kept_rows, kept_columns = unpadded(size, grid[0] * side, grid[1] * side)
    num_rows, num_columns = kept_rows.stop - kept_rows.start, kept_columns.stop - kept_columns.start
    rows, columns = reduced_shape(num_rows, num_columns, side, max_tiles)
    return side * side + rows * (columns + 1)
