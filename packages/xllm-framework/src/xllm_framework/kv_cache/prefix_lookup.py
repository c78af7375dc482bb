"""How much of a prompt is known, on the device and behind it, over all groups of layers. Takes nothing, moves nothing.

Knows nothing of how many blocks are left, or of who may have them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass

from xllm_framework.kv_cache.prefix_match import PrefixMatch, longest_usable
from xllm_framework.kv_cache.state_slots import StateSlots
from xllm_framework.kv_cache.table_group import TableGroup
from xllm_framework.kv_cache.tiers import CacheTiers, OnDevice, Place
from xllm_framework.request.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Fetchable:
    """What of a new prompt an archive could bring."""

    start: int
    """Tokens that are at hand."""
    keys: tuple[tuple[bytes, ...], ...] = ()
    """For each number of blocks behind them, from 1 on: what would have to be fetched to go on there, in order."""


class PrefixLookup:
    """Looks prompts up in `groups` of layers, in `tiers` behind the device and among saved `states`."""

    def __init__(
        self, groups: List[TableGroup], block_size: int, tiers: CacheTiers | None, states: StateSlots | None
    ) -> None:
        self._groups = groups
        self._windows = [group.window for group in groups]
        self._block_size = block_size
        self._tiers = tiers
        self._states = states

    def on_device(self, sequence: Sequence, salt: str) -> PrefixMatch:
        """Return the longest beginning that leaves at least one token to compute."""
        max_blocks, keys = self._max_blocks(sequence), sequence.block_hashes
        cache = self._groups[0].prefix_cache
        if self._windows == [None] and self._states is None:
            return PrefixMatch((cache.match(sequence.token_ids, keys, salt, max_blocks, sequence.media),))
        cache.extend_keys(sequence.token_ids, keys, salt, max_blocks, sequence.media)
        found = [group.find(keys[:max_blocks]) for group in self._groups]
        count = longest_usable(found, self._windows, lambda count: self._has_state(keys[count - 1]))
        return PrefixMatch(
            tuple(group.matched(places, count) for group, places in zip(self._groups, found, strict=True))
        )

    def behind(self, sequence: Sequence, match: PrefixMatch, announced: Container[int]) -> list[list[Place | None]]:
        """Return, for each group, where the blocks behind `match` can be had, as many as are of use; None is behind a window.

        Blocks that are only `announced` are left out.
        """
        if self._tiers is None:
            return [[] for _ in self._groups]
        keys = sequence.block_hashes[len(match) : self._max_blocks(sequence)]
        columns = []
        for index, group in enumerate(self._groups):
            matched = match.tables[index] if match.tables else []
            column: list[Place | None] = [OnDevice(block_id) if block_id else None for block_id in matched]
            for place in self._places(self._tiers, group, keys, announced):
                column.append(place)
                if place is None and group.window is None:
                    break
            columns.append(column)
        end = longest_usable(columns, self._windows)
        firsts = (group.num_behind(end) for group in self._groups)
        return [
            [column[index] if index >= first else None for index in range(len(match), end)]
            for column, first in zip(columns, firsts, strict=True)
        ]

    def fetchable(self, sequence: Sequence, tiers: CacheTiers) -> Fetchable:
        """Return what an archive could bring of a prompt whose keys are made."""
        keys = sequence.block_hashes[: self._max_blocks(sequence)]
        names = [[group.key(key) for key in keys] for group in self._groups]
        here = [
            [
                block_id is not None or tiers.is_in_host(name) or None
                for block_id, name in zip(group.find(keys), own, strict=True)
            ]
            for group, own in zip(self._groups, names, strict=True)
        ]
        anywhere = [
            [is_here or tiers.is_archived(name) or None for is_here, name in zip(column, own, strict=True)]
            for column, own in zip(here, names, strict=True)
        ]
        start = longest_usable(here, self._windows)
        counts = range(start + 1, longest_usable(anywhere, self._windows) + 1)
        return Fetchable(
            start * self._block_size, tuple(tuple(self._missing(names, here, anywhere, count)) for count in counts)
        )

    def _max_blocks(self, sequence: Sequence) -> int:
        return (sequence.num_tokens - 1) // self._block_size

    def _has_state(self, key: bytes) -> bool:
        return self._states is None or self._states.knows(key)

    @staticmethod
    def _places(
        tiers: CacheTiers, group: TableGroup, keys: list[bytes], announced: Container[int]
    ) -> Iterator[Place | None]:
        for key, block_id in zip(keys, group.find(keys), strict=True):
            if block_id is None:
                yield tiers.find(group.key(key))
            else:
                yield None if block_id in announced else OnDevice(block_id)

    def _missing(
        self, names: List[List[bytes]], here: List[List[object]], anywhere: List[List[object]], count: int
    ) -> Iterator[bytes]:
        """Yield the keys of what is not here and would let one go on behind `count` blocks."""
        firsts = [group.num_behind(count) for group in self._groups]
        for index in range(count):
            for group, first in enumerate(firsts):
                if index >= first and anywhere[group][index] and not here[group][index]:
                    yield names[group][index]
