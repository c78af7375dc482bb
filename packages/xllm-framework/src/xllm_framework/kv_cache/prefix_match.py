"""How much of a prompt is known, where several groups of layers must know it. Knows nothing of what the places are.

A group with full attention must know every block of the beginning; one with a sliding window the last window, and what is behind it
may be known or not; a linear state must have been saved just there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xllm_framework.kv_cache.block_pool import PADDING_BLOCK
from xllm_framework.kv_cache.sliding_window import SlidingWindow


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The blocks of the longest known beginning of a prompt, valid until somebody allocates or frees."""

    tables: tuple[list[int], ...] = ()
    """One list a group, all of one length; block 0 stands for what is behind a window. None at all if nothing is known."""

    def __len__(self) -> int:
        """Return how many blocks long the beginning is."""
        return len(self.tables[0]) if self.tables else 0

    @property
    def num_blocks(self) -> int:
        """Return how many blocks it has over all groups."""
        return sum(len(table) - table.count(PADDING_BLOCK) for table in self.tables)

    def shortened(self) -> PrefixMatch:
        """Return the match without its last block; only where no group has a window."""
        return PrefixMatch(tuple(table[:-1] for table in self.tables))


NO_MATCH = PrefixMatch()


def longest_usable(
    places: Sequence[Sequence[object]],
    windows: Sequence[SlidingWindow | None],
    can_resume: Callable[[int], bool] = lambda count: True,
) -> int:
    """Return the largest number of leading blocks behind which every group can go on; O(groups x blocks).

    `places` has, for each group, one entry a block, None for an unknown one; `can_resume` says what else speaks against a number.
    """
    limit, runs = min(len(column) for column in places), []
    for column, window in zip(places, windows, strict=True):
        if window is None:
            limit = min(limit, next((index for index, place in enumerate(column) if place is None), len(column)))
        else:
            runs.append((window, _runs(column)))
    for count in range(limit, 0, -1):
        if all(window.covers(known[count - 1], count) for window, known in runs) and can_resume(count):
            return count
    return 0


def _runs(column: Sequence[object]) -> list[int]:
    """Return, for each place, how many known ones end there."""
    runs, length = [], 0
    for place in column:
        length = 0 if place is None else length + 1
        runs.append(length)
    return runs
