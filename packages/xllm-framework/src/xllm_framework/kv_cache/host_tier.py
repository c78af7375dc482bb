"""Which evicted blocks lie in host memory, and where. Ids and arithmetic only; who moves the bytes obeys `BlockMoves`.

    device block --evicted--> host slot --matched by a later prompt--> device block
                                  |
                                  +--evicted, least recently used first--> forgotten

The moves of a step happen before anything of it is computed, first those to the host, then those from it. A slot that is
read in a step is therefore not given away in it. Keys are the prefix cache's own, so that both tiers mean the same.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from xllm_framework.errors import IntegrityError


@dataclass(slots=True)
class BlockMoves:
    """Blocks to be moved before a step; happens once, also if the step is computed again or not at all."""

    to_host: list[tuple[int, int]] = field(default_factory=list)
    """(device block, host slot); these come first."""
    to_device: list[tuple[int, int]] = field(default_factory=list)
    """(host slot, device block)"""
    to_archive: list[tuple[int, bytes]] = field(default_factory=list)
    """(device block, key), together with those to the host."""
    from_archive: list[tuple[bytes, int]] = field(default_factory=list)
    """(payload, device block), together with those from the host."""
    states: list[tuple[int, int]] = field(default_factory=list)
    """(from, to) slots of linear state, copied one after the other."""

    def __bool__(self) -> bool:
        return bool(self.to_host or self.to_device or self.to_archive or self.from_archive or self.states)

    def __add__(self, other: BlockMoves) -> BlockMoves:
        return BlockMoves(
            self.to_host + other.to_host,
            self.to_device + other.to_device,
            self.to_archive + other.to_archive,
            self.from_archive + other.from_archive,
            self.states + other.states,
        )


class HostTier:
    """`num_slots` host slots by key, and the moves that are due. All operations are O(1) a block."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()
        """The least recently used first."""
        self._is_read: set[int] = set()
        self._moves = BlockMoves()

    def __len__(self) -> int:
        """Return how many blocks lie in the host's memory."""
        return len(self._slot_of)

    def offload(self, key: bytes, block_id: int) -> None:
        """Keep the content of a device block that is about to be taken for other content, if there is room for it."""
        if key in self._slot_of:
            self._slot_of.move_to_end(key)
            return
        slot = self._take_slot()
        if slot is not None:
            self._slot_of[key] = slot
            self._moves.to_host.append((block_id, slot))

    def find(self, key: bytes) -> int | None:
        """Return the slot of `key`, which stays as it is until the next `take_moves`; None if the block is not here."""
        slot = self._slot_of.get(key)
        if slot is not None:
            self._slot_of.move_to_end(key)
            self._is_read.add(slot)
        return slot

    def restore(self, slot: int, block_id: int) -> None:
        """Bring the content of `slot`, a fresh result of `find`, into a device block."""
        self._moves.to_device.append((slot, block_id))

    def take_moves(self) -> BlockMoves | None:
        """Return the moves that are due before the step that has just been planned; None if there are none."""
        self._is_read.clear()
        if not self._moves:
            return None
        moves, self._moves = self._moves, BlockMoves()
        return moves

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless every slot is either free or holds one key's block."""
        if sorted([*self._free, *self._slot_of.values()]) != list(range(self._num_slots)):
            raise IntegrityError("A host slot is free and in use, or neither, or in use twice.")

    def _take_slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        key = next((key for key, slot in self._slot_of.items() if slot not in self._is_read), None)
        return None if key is None else self._slot_of.pop(key)
