"""KV blocks of a C++ decoder on their way to host slots and archives, and back. Knows nothing of which block holds what."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from xllm_framework.kv_cache import BlockMoves
from xllm_kernels.native import LlamaDecoder


class NativeBlocks:
    """Moves whole blocks of a decoder's cache, which `allocate_kv_cache` has made before the first move.

    On a CPU both sides are the same memory: a host slot keeps what the pool gives up, at the price of a copy.
    """

    def __init__(self, decoder: LlamaDecoder) -> None:
        self._decoder = decoder
        self._slots: npt.NDArray[np.uint8] = np.empty((0, 0), np.uint8)
        """[slots, bytes of a block]; the system gives pages when they are first written."""
        self.put_payload: Callable[[bytes, bytes], None] | None = None
        """Takes the key and the contents of a block that goes to an archive."""

    def allocate_host(self, num_slots: int) -> None:
        """Allocate `num_slots` slots; what earlier ones held is gone."""
        self._slots = np.zeros((num_slots, self._decoder.num_block_bytes), np.uint8)

    def move(self, moves: BlockMoves) -> None:
        """Do first the moves out of the pool, then those into it."""
        if moves.to_archive and self.put_payload is not None:
            contents = self._decoder.read_blocks(np.array([block for block, _ in moves.to_archive], np.int32))
            for (_, key), payload in zip(moves.to_archive, contents, strict=True):
                self.put_payload(key, payload.tobytes())
        if moves.to_host:
            blocks, slots = np.array(moves.to_host, np.int32).T
            self._slots[slots] = self._decoder.read_blocks(np.ascontiguousarray(blocks))
        if moves.to_device:
            slots, blocks = np.array(moves.to_device, np.int32).T
            self._decoder.write_blocks(np.ascontiguousarray(blocks), self._slots[slots])
        for payload, block in moves.from_archive:
            self._decoder.write_blocks(np.array([block], np.int32), payload)
