"""What lies behind the device's own blocks: host memory, then an archive; either may be missing. Ids and keys only.

Knows nothing of sequences or of groups of layers: a key stands for one block.
"""

from __future__ import annotations

from typing import NamedTuple

from xllm_framework.kv_cache.archive import BlockArchive
from xllm_framework.kv_cache.host_tier import BlockMoves, HostTier

Source = int | bytes
"""A host slot, or a payload."""


class OnDevice(NamedTuple):
    """A block that the prefix cache knows."""

    block_id: int


Place = Source | OnDevice
"""Where the content of a block can be had at once."""


class CacheTiers:
    """The tiers of one block manager, and the moves that are due before its next step."""

    def __init__(self, host: HostTier | None, archive: BlockArchive | None) -> None:
        self._host = host
        self._archive = archive
        self._moves = BlockMoves()

    @property
    def has_archive(self) -> bool:
        """Whether there is an archive."""
        return self._archive is not None

    def offload(self, key: bytes, block_id: int) -> None:
        """Keep the content of a device block that is about to be taken for other content, wherever there is room."""
        if self._host is not None:
            self._host.offload(key, block_id)
        self.archive(key, block_id)

    def archive(self, key: bytes, block_id: int) -> None:
        """Keep the content of a device block, which stays what it is until the next step, in the archive, too."""
        if self._archive is not None and self._archive.accepts(key):
            self._moves.to_archive.append((block_id, key))

    def find(self, key: bytes) -> Source | None:
        """Return where the block of `key` can be had at once, if anywhere; it stays there until the next `take_moves`."""
        slot = None if self._host is None else self._host.find(key)
        if slot is not None or self._archive is None:
            return slot
        return self._archive.claim(key)

    def restore(self, source: Source, block_id: int) -> None:
        """Bring a fresh result of `find` into a device block."""
        if isinstance(source, bytes):
            self._moves.from_archive.append((source, block_id))
        elif self._host is not None:
            self._host.restore(source, block_id)

    def is_in_host(self, key: bytes) -> bool:
        """Whether host memory has the block of `key`."""
        return self._host is not None and self._host.find(key) is not None

    def is_archived(self, key: bytes) -> bool:
        """Whether the archive has the block of `key`, fetched or not."""
        return self._archive is not None and self._archive.holds(key)

    def take_moves(self) -> BlockMoves | None:
        """Return the moves that are due before the step that has just been planned; None if there are none."""
        host_moves = None if self._host is None else self._host.take_moves()
        if not self._moves:
            return host_moves
        moves, self._moves = self._moves, BlockMoves()
        return moves if host_moves is None else host_moves + moves

    def check_integrity(self) -> None:
        """Raise `IntegrityError` if a tier has lost count."""
        if self._host is not None:
            self._host.check_integrity()
