"""Memory that blocks on the CPU write their intermediate results to, again and again. Knows nothing of what they are.

Fresh pages of the system cost a fault each. Blocks run one after the other, and what one writes under a name
is read before the next one writes it.
"""

from __future__ import annotations

import math
import threading

import torch


class Workspace(threading.local):
    """Buffers by name, each as large as it ever was; every thread has its own."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor on the CPU; its memory is what the same name got before."""
        count = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < count:
            self._buffers.pop((name, dtype), None)
            with torch.inference_mode(False):  # so that it may also be written where that mode is off
                buffer = self._buffers[name, dtype] = torch.empty(count, dtype=dtype, device="cpu")
        return buffer[:count].view(shape)


WORKSPACE = Workspace()
