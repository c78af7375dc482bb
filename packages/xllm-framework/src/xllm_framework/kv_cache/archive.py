"""What a block manager asks of a tier behind host memory, and how much of a prompt is worth fetching from it.

Knows nothing of files, threads or tensors. Keys are the prefix cache's own, so that all tiers mean the same.

    device block --given up--> payload --written, off the step--> file
    file --fetched when a request arrives, off the step--> payload --with the step that admits it--> device block
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class BlockArchive(Protocol):
    """Payloads (all KV of one block) by key. Every method returns at once; used by the loop's thread."""

    def accepts(self, key: bytes) -> bool:
        """Whether the payload of `key` is not kept yet and would be taken now; if so, it counts as announced."""

    def holds(self, key: bytes) -> bool:
        """Whether `key` can be fetched, or is fetched already."""

    def claim(self, key: bytes) -> bytes | None:
        """Return the payload of `key` if it was fetched; it stays for others until room is needed."""

    def fetch(self, keys: list[bytes], limit_s: float, on_end: Callable[[], None]) -> None:
        """Begin to fetch `keys` in order; `on_end` is called once, from another thread, also if some cannot be had.

        Nothing further is read after `limit_s` seconds.
        """

    @property
    def seconds_a_block(self) -> float:
        """What fetching one block takes, as measured lately."""


def plan_restore(
    num_blocks: int, seconds_a_block: float, prefill_s: Callable[[int, int], float], start: int, end: int, size: int
) -> int:
    """Return how many of `num_blocks` blocks of `size` tokens behind token `start` to fetch before computing the rest to `end`.

    `prefill_s(num_tokens, num_before)` are the seconds that computing takes. The number with the least total time; the least
    such number, so that what costs as much as it saves is computed.
    """
    times = [
        count * seconds_a_block + prefill_s(end - start - count * size, start + count * size)
        for count in range(num_blocks + 1)
    ]
    return times.index(min(times))
