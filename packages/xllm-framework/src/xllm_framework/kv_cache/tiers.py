"""What lies behind the device's own blocks: host memory, then an archive; either may be missing. Ids and keys only.

Knows nothing of sequences. One lookup goes through both: a run of keys may lie partly here and partly there.
"""

from __future__ import annotations

from collections.abc import Sequence

from xllm_framework.kv_cache.archive import BlockArchive
from xllm_framework.kv_cache.host_tier import BlockMoves, HostTier

Source = int | bytes
"""A host slot, or a payload."""


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

    def find(self, keys: Sequence[bytes]) -> list[Source]:
        """Return where the longest run of leading `keys` lies that can be had at once."""
        found: list[Source] = []
        while len(found) < len(keys):
            slots = [] if self._host is None else self._host.find(keys[len(found) :])
            found.extend(slots)
            if self._archive is None or len(found) == len(keys):
                break
            payload = self._archive.claim(keys[len(found)])
            if payload is None:
                break
            found.append(payload)
        return found

    def restore(self, sources: list[Source], blocks: list[int]) -> None:
        """Bring `sources`, a fresh result of `find`, into as many device blocks."""
        pairs = list(zip(sources, blocks, strict=True))
        self._moves.from_archive.extend((source, block) for source, block in pairs if isinstance(source, bytes))
        if self._host is not None:
            slots = [(source, block) for source, block in pairs if isinstance(source, int)]
            self._host.restore([slot for slot, _ in slots], [block for _, block in slots])

    def find_fetchable(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return those of the longest run of leading `keys`, as it could be had from all tiers, that would have to be fetched."""
        if self._archive is None:
            return []
        num_in_host = 0 if self._host is None else len(self._host.find(keys))
        fetchable: list[bytes] = []
        for key in keys[num_in_host:]:
            if not self._archive.holds(key):
                break
            fetchable.append(key)
        return fetchable

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
