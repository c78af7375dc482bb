"""KV blocks in host memory, and their way to a device and back. Knows nothing of which block holds what."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.kv_cache import BlockMoves
from xllm_runtime.platform.uploads import upload

KVTensors = list[tuple[torch.Tensor, torch.Tensor]]


class HostBlocks:
    """`num_slots` blocks in host memory beside `caches`, (K, V) of each layer, each [num_blocks, ...].

    Pinned where the caches are on an accelerator, so that copies need no intermediate one, and nobody waits for them. Moves are queued
    on the device's stream, in front of the step that they precede; what is in a slot is known to the device alone.
    """

    def __init__(self, caches: KVTensors, num_slots: int) -> None:
        self._layers = [(device, _host_like(device, num_slots)) for layer in caches for device in layer]

    def move(self, moves: BlockMoves) -> None:
        """Do first the moves to the host, then those to the device."""
        if moves.to_host:
            self._to_host(sorted((slot, block) for block, slot in moves.to_host))
        if moves.to_device:
            self._to_device(sorted(moves.to_device))

    def _to_host(self, pairs: list[tuple[int, int]]) -> None:
        slots, blocks = np.array(pairs, np.int64).T
        [index] = upload([blocks], self._layers[0][0].device)
        for device, host in self._layers:
            gathered = device.index_select(0, index)
            for start, end in _runs(slots):
                host[slots[start] :][: end - start].copy_(gathered[start:end], non_blocking=True)

    def _to_device(self, pairs: list[tuple[int, int]]) -> None:
        slots, blocks = np.array(pairs, np.int64).T
        [index] = upload([blocks], self._layers[0][0].device)
        for device, host in self._layers:
            gathered = device.new_empty((len(slots), *device.shape[1:]))
            for start, end in _runs(slots):
                gathered[start:end].copy_(host[slots[start] :][: end - start], non_blocking=True)
            device.index_copy_(0, index, gathered)


def _runs(slots: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of the stretches of rising `slots` that lie next to each other: one copy each."""
    ends = np.flatnonzero(np.diff(slots) != 1) + 1
    yield from zip([0, *ends.tolist()], [*ends.tolist(), len(slots)], strict=True)


def _host_like(device: torch.Tensor, num_slots: int) -> torch.Tensor:
    is_pinned = device.device.type == "cuda"
    return torch.zeros((num_slots, *device.shape[1:]), dtype=device.dtype, pin_memory=is_pinned)
