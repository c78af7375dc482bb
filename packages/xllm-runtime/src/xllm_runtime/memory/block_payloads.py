"""All KV of a block as bytes, and back. Knows nothing of where payloads are kept.

A payload is the block of each tensor, K then V, layer after layer, as it lies in memory.
"""

from __future__ import annotations

import numpy as np
import torch

from xllm_runtime.memory.host_blocks import KVTensors
from xllm_runtime.platform.uploads import upload


def payload_bytes(caches: KVTensors) -> int:
    """Return the bytes of a payload."""
    return sum(tensor[0].numel() * tensor.element_size() for layer in caches for tensor in layer)


def read_payloads(caches: KVTensors, blocks: list[int]) -> list[bytes]:
    """Return the payloads of `blocks`; (K, V) of each layer, each [num_blocks, ...]. Waits for the device."""
    [index] = upload([np.array(blocks, np.int64)], caches[0][0].device)
    rows = [tensor.index_select(0, index).flatten(1).view(torch.uint8) for layer in caches for tensor in layer]
    joined = torch.cat(rows, dim=1).cpu().numpy()
    return [row.tobytes() for row in joined]


def write_payloads(caches: KVTensors, pairs: list[tuple[bytes, int]]) -> None:
    """Put payloads into blocks, (payload, block) of `pairs`."""
    if not pairs:
        return
    octets = np.stack([np.frombuffer(payload, np.uint8) for payload, _ in pairs])
    index, rows = upload([np.array([block for _, block in pairs], np.int64), octets], caches[0][0].device)
    start = 0
    for tensor in (tensor for layer in caches for tensor in layer):
        end = start + tensor[0].numel() * tensor.element_size()
        tensor.index_copy_(
            0, index, rows[:, start:end].contiguous().view(tensor.dtype).view(len(pairs), *tensor.shape[1:])
        )
        start = end
