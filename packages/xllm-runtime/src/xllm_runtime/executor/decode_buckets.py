"""Which batch a decode step is padded to, so that few graphs serve all. Knows nothing of devices or graphs."""

from __future__ import annotations

LEAST_TABLE_WIDTH = 64
"""Blocks; shorter contexts share a graph."""


def row_bucket(num_rows: int) -> int:
    """Return the rows that `num_rows` are padded to: a power of two to 8, then steps of an eighth or less.

    Up to 8 rows a step costs the same; more are padded by multiples of 8 (to 64), 16 (to 256), then 32.
    """
    if num_rows <= 8:
        return 1 << (num_rows - 1).bit_length() if num_rows > 1 else 1
    step = 8 if num_rows <= 64 else 16 if num_rows <= 256 else 32
    return -(-num_rows // step) * step


def width_bucket(num_blocks: int) -> int:
    """Return the block table's width for contexts of at most `num_blocks` blocks: a power of two."""
    return max(LEAST_TABLE_WIDTH, 1 << (num_blocks - 1).bit_length())
