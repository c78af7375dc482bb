"""Cuts rows of vocabulary size into pieces of bounded memory. Knows nothing of what is computed on them."""

from __future__ import annotations

from collections.abc import Iterator

MAX_ELEMENTS = 2**21
"""Numbers in one piece: 8 MiB of float32, which a CPU's last-level cache still holds."""


def row_slices(num_rows: int, row_width: int) -> Iterator[slice]:
    """Yield consecutive slices over `num_rows` rows of `row_width` numbers, each of `MAX_ELEMENTS` numbers or one row.

    Without rows there is one empty slice.
    """
    step = max(1, MAX_ELEMENTS // max(row_width, 1))
    for start in range(0, max(num_rows, 1), step):
        yield slice(start, min(start + step, num_rows))
