"""KV blocks in host memory, and their way to a device and back. Knows nothing of which block holds what."""

from __future__ import annotations

import torch

from xllm_framework.kv_cache import BlockMoves

KVTensors = list[tuple[torch.Tensor, torch.Tensor]]


class HostBlocks:
    """`num_slots` blocks in host memory beside `caches`, (K, V) of each layer, each [num_blocks, ...].

    Pinned where the caches are on an accelerator, so that copies to it need no intermediate one. Moves are queued on the
    device's stream, in front of the step that they precede.
    """

    def __init__(self, caches: KVTensors, num_slots: int) -> None:
        self._layers = [(device, _host_like(device, num_slots)) for layer in caches for device in layer]

    def move(self, moves: BlockMoves) -> None:
        """Do first the moves to the host, then those to the device."""
        self._to_host(moves.to_host)
        self._to_device(moves.to_device)

    def _to_host(self, pairs: list[tuple[int, int]]) -> None:
        if not pairs:
            return
        blocks, slots = torch.tensor(pairs, dtype=torch.int64).unbind(1)
        for device, host in self._layers:
            host.index_copy_(0, slots, device.index_select(0, blocks.to(device.device)).cpu())

    def _to_device(self, pairs: list[tuple[int, int]]) -> None:
        if not pairs:
            return
        slots, blocks = torch.tensor(pairs, dtype=torch.int64).unbind(1)
        for device, host in self._layers:
            device.index_copy_(0, blocks.to(device.device), host.index_select(0, slots).to(device.device))


def _host_like(device: torch.Tensor, num_slots: int) -> torch.Tensor:
    is_pinned = device.device.type == "cuda"
    return torch.zeros((num_slots, *device.shape[1:]), dtype=device.dtype, pin_memory=is_pinned)
